"""The module that a stack frame lies in: its short name, and what kind of work is done there."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

KERNEL = "kernel"
PYTHON = "python"  # functions of Python itself, named by the interpreter
JIT = "jit"  # code that a process made and named for perf
UNKNOWN = ""

_KERNEL = re.compile(r"\[(kernel|guest\.kernel)\.|\.ko(\.(gz|xz|zst))?$|\[bpf")
_JIT = re.compile(r"^perf-\d+\.map$|^jitted-\d+-\d+\.so$")
_VERSION = re.compile(r"(\.so)[.\d]*$")  # libc.so.6 and libc.so are one
_BUILD = re.compile(r"-[0-9a-f]{7,}(\.so)")  # auditwheel's libgomp-a34b3233.so.1.0.0


class ModuleKind(Enum):
    """What a module is for; the value is how people are told."""

    PYTHON = "Python"  # its interpreter and extensions
    MATH = "native maths"  # torch, BLAS, OpenMP, vLLM's own kernels
    DEVICE = "accelerator's runtime"  # CUDA, NCCL, ROCm, ...
    LIBRARY = "other native code"  # the C library among it
    KERNEL = "kernel"
    UNKNOWN = "unknown"


_VLLM_KERNELS = re.compile(r"^_\w*C(\w*)?(\.abi3|\.cpython-[\w-]+)?\.so$")  # vLLM's _C, _moe_C, _C_AVX2, ...
# The first that matches decides: an extension of Python by its name, unless it is known to be a library of kernels.
_KINDS = (
    (ModuleKind.MATH, _VLLM_KERNELS),
    (ModuleKind.KERNEL, re.compile(r"^kernel$|^vdso$|^vsyscall$")),
    (
        ModuleKind.DEVICE,
        re.compile(r"cuda|cupti|cudnn|cublas|nvrtc|nccl|nvidia|libnv|hip|rocm|rccl|hsa|level_zero|libtpu"),
    ),
    (ModuleKind.PYTHON, re.compile(r"^python(\d[\d.]*)?$|^libpython|\.cpython-|\.abi3\.so$|^py::")),
    (
        ModuleKind.MATH,
        re.compile(r"torch|libc10|libmkl|mkldnn|dnnl|blas|libgomp|libi?omp|xla|jax|numpy|fbgemm|triton"),
    ),
)


_INTERPRETER = re.compile(r"^(?:lib)?python(\d)\.(\d+)(?:\.so)?$")


def interpreter_of(module: str) -> tuple[int, int] | None:
    """Return the version of the Python whose interpreter this module is, by its short name; None if it is none."""
    match = _INTERPRETER.match(module)
    return None if match is None else (int(match[1]), int(match[2]))


def module_of(dso: str) -> str:
    """Return the short name of what perf calls a frame's DSO: a path, `[kernel.kallsyms]`, `[unknown]`, ...

    Versions and build hashes go, so that one library has one name on every machine.
    """
    dso = dso.removesuffix(" (deleted)")
    if dso in ("[unknown]", "", "inlined") or dso.startswith("//anon"):
        return UNKNOWN
    if _KERNEL.search(dso):
        return KERNEL
    name = dso.rpartition("/")[2]
    if _JIT.match(name) or dso.startswith("[JIT]"):
        return JIT
    return _BUILD.sub(r"\1", _VERSION.sub(r"\1", name)).strip("[]").replace(" ", "_")


@lru_cache(maxsize=4096)
def kind_of(module: str) -> ModuleKind:
    """Return what kind of work is done in a module, by its short name."""
    if module == UNKNOWN:
        return ModuleKind.UNKNOWN
    return next((kind for kind, pattern in _KINDS if pattern.search(module)), ModuleKind.LIBRARY)
