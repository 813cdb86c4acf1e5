"""Names of functions and modules, as people can read them."""

from __future__ import annotations

import shutil

import pytest

from servebench.profile import symbols
from servebench.profile.modules import ModuleKind, interpreter_of, kind_of, module_of


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("main", "main"),
        ("void at::native::sum<float>(at::Tensor const&)", "at::native::sum"),
        ("(anonymous namespace)::tinygemm<c10::BFloat16, true>::apply(long)", "tinygemm::apply"),
        (
            "void foo<int, (anonymous namespace)::A>(int)::{lambda(int)#1}::operator()(int) const",
            "foo::{lambda}::operator()",
        ),
        ("std::ostream& operator<< <char>(std::ostream&, char)", "operator<<"),
        ("bool x::operator<(int) const", "x::operator<"),
        ("a::operator bool() const", "a::operator bool"),
        ("operator new(unsigned long)", "operator new(unsigned long)"),
        ("unsigned long std::count<int>(long)", "std::count"),
        ("std::vector<int> const& a::b<std::x>(int)", "a::b"),
        ("x(void (*)(int))::y", "x::y"),
        ("x<int>()::{lambda()#1}::operator()() const::{lambda(long)#2}::y()", "x::{lambda}::operator()::{lambda}::y"),
        ("a::~a()", "a::~a"),
        ("x::y(int) [clone .isra.0]", "x::y"),
        ("<alloc::vec::Vec<T> as core::iter::Iterator>::next", "<alloc::vec::Vec<T> as core::iter::Iterator>::next"),
        ("Model.<locals>.<lambda> (worker/model.py)", "Model.<locals>.<lambda> (worker/model.py)"),
        ("__libc_start_main@@GLIBC_2.34", "__libc_start_main"),
        ("std::exp(float)@GLIBCXX_3.4.9", "std::exp"),
        ("a::b<", "a::b"),
        (">>(::", ">>"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert symbols.short_name(name) == short


def test_a_long_name_is_cut() -> None:
    assert symbols.short_name("x" * 500) == "x" * 119 + "…"


def test_mangled_names_are_made_readable() -> None:
    if shutil.which("c++filt") is None:
        pytest.skip("there is no c++filt")
    assert symbols.demangle(["_ZN2at3sumEi", "main", "_Z"]) == {"_ZN2at3sumEi": "at::sum(int)", "_Z": "_Z"}


def test_without_a_demangler_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert symbols.demangle(["_ZN2at3sumEi"]) == {}


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("py::execute_model:/opt/vllm/v1/worker/model_runner.py", "execute_model (worker/model_runner.py)"),
        ("py::<module>:<string>", "<module> (<string>)"),
        ("py::A.b:/x.py", "A.b (/x.py)"),
        ("pyx::f", None),
    ],
)
def test_names_that_python_gives(symbol: str, name: str | None) -> None:
    assert symbols.python_name(symbol) == name


@pytest.mark.parametrize(
    ("dso", "module", "kind"),
    [
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "libc.so", ModuleKind.LIBRARY),
        ("/v/torch/lib/libtorch_cpu.so", "libtorch_cpu.so", ModuleKind.MATH),
        ("/v/torch.libs/libgomp-a34b3233.so.1.0.0", "libgomp.so", ModuleKind.MATH),
        ("/v/vllm/_C.abi3.so", "_C.abi3.so", ModuleKind.MATH),
        ("/v/vllm/_moe_C.abi3.so", "_moe_C.abi3.so", ModuleKind.MATH),
        ("/usr/bin/python3.11", "python3.11", ModuleKind.PYTHON),
        ("/opt/lib/libpython3.12.so.1.0", "libpython3.12.so", ModuleKind.PYTHON),
        ("/v/uvloop/loop.cpython-311-x86_64-linux-gnu.so", "loop.cpython-311-x86_64-linux-gnu.so", ModuleKind.PYTHON),
        ("/usr/lib/libcuda.so.550.54", "libcuda.so", ModuleKind.DEVICE),
        ("/v/nvidia/nccl/lib/libnccl.so.2", "libnccl.so", ModuleKind.DEVICE),
        ("[kernel.kallsyms]", "kernel", ModuleKind.KERNEL),
        ("/lib/modules/6.1/kernel/net/ipv4.ko.xz", "kernel", ModuleKind.KERNEL),
        ("[vdso]", "vdso", ModuleKind.KERNEL),
        ("/tmp/perf-123.map", "jit", ModuleKind.LIBRARY),
        ("//anon", "", ModuleKind.UNKNOWN),
        ("[unknown]", "", ModuleKind.UNKNOWN),
        ("/memfd:code (deleted)", "memfd:code", ModuleKind.LIBRARY),
        ("/opt/my app", "my_app", ModuleKind.LIBRARY),
    ],
)
def test_modules(dso: str, module: str, kind: ModuleKind) -> None:
    assert module_of(dso) == module
    assert kind_of(module) is kind


def test_the_interpreters_version_is_in_its_name() -> None:
    assert interpreter_of("libpython3.11.so") == interpreter_of("python3.11") == (3, 11)
    assert interpreter_of("libtorch_python.so") is None
    assert interpreter_of("python") is None
