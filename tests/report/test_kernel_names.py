"""Long C++ names lose first what tells the least."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from servebench.report.kernel_names import LEAST, Name, shorten

LONG = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)


@pytest.mark.parametrize(
    ("width", "left"),
    [
        (200, LONG),
        (170, LONG.removeprefix("void ")),
        (120, LONG.removeprefix("void ").partition("(")[0]),
        (95, "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<…>, std::array<…>>"),
        (60, "vectorized_elementwise_kernel<4, at::native::CU…d::array<…>>"),
        (40, "vectorized_elementwise_kernel<4, at…<…>>"),
        (34, "vectorized_elementwise_kernel<…>"),
        (20, "vectorized_e…rnel<…>"),
    ],
)
def test_a_template_of_torch(width: int, left: str) -> None:
    assert shorten(LONG, width) == left


@pytest.mark.parametrize(
    ("name", "width", "left"),
    [
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", 40, "ampere_fp16_s16816gemm_f…_stages_64x4_tn"),
        ("void (anonymous namespace)::reduce(int)", 10, "reduce"),
        ("bool operator<(A, B)", 14, "operator<"),
        ("a  b\n c", 16, "a b c"),
        ("", 16, "(without a name)"),
        ("std::less<int>::run(x) const", 20, "std::less<int>::run"),
        ("clover::ranged<PdV(bool, int, int, double, instance 2)>", 32, "ranged<PdV(bool, int,…stance 2)>"),
        ("clover::ranged<PdV(bool, int, int, double, instance 1)>", 32, "ranged<PdV(bool, int,…stance 1)>"),
    ],
)
def test_other_names(name: str, width: int, left: str) -> None:
    assert shorten(name, width) == left


@given(st.text(), st.integers(LEAST, 200))
def test_it_always_fits_and_says_something(name: str, width: int) -> None:
    short = shorten(name, width)
    assert 0 < len(short) <= width
    assert "\n" not in short


def test_a_cell_takes_the_room_that_there_is_and_reads_no_markup() -> None:
    def drawn(width: int) -> str:
        table = Table(box=None, pad_edge=False, expand=True)
        table.add_column("kernel", ratio=1)
        table.add_column("ms", justify="right", no_wrap=True)
        table.add_row(Name("[red]" + "x" * 60 + "[/]"), "1.5")
        out = io.StringIO()
        Console(file=out, width=width).print(table)
        return out.getvalue().splitlines()[1]

    assert drawn(100).startswith("[red]" + "x" * 60 + "[/]")
    assert "…" in drawn(40)
    assert drawn(40).startswith("[red]x")
    assert drawn(40).rstrip().endswith("1.5")
