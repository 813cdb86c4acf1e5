"""The page: its parts, its figures, and that no text of the run can break it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from servebench.report.exports.markdown import plain
from servebench.report.figures import number


def page(made: Any, folder: Path) -> str:
    (file,) = made.write("markdown", folder / "out.md")
    return file.read_text("utf-8")


def cells(line: str) -> list[str]:
    """The cells of a table's row, as Markdown splits them."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables(text: str) -> list[list[list[str]]]:
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    return [[cells(line) for line in block.splitlines()] for block in blocks]


def test_it_has_the_figures(example: Any, tmp_path: Path) -> None:
    text = page(example, tmp_path)
    assert text.startswith("# chat: VALID\n\n**RANDOM WEIGHTS**")
    assert "SIMULATED" not in text
    assert all(f"\n## {part}\n" in text for part in ("Latency", "SLO", "Throughput", "Outcomes", "Environment"))
    latency = {row[0]: row for row in tables(text)[0]}
    assert latency["TTFT"] == ["TTFT", "ms", "23.33", "38.07", "46.34", "61.39†", "64.56†", "25.75", "249"]
    assert latency["ITL"][-1] == number(example.metrics["itl"]["n"])
    assert "202.6 output tokens/s" in text
    assert ["model", "tiny-random"] in tables(text)[2]


@pytest.mark.parametrize("name", ["example", "mixed", "failed", "cut"])
def test_every_row_has_as_many_cells_as_its_head(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for table in tables(page(request.getfixturevalue(name), tmp_path)):
        assert len({len(row) for row in table}) == 1


def test_text_of_the_run_cannot_break_it(mixed: Any, tmp_path: Path) -> None:
    text = page(mixed, tmp_path)
    assert "**SIMULATED**" in text
    assert ["model", 'my\\|model "x" \\<y\\>'] in tables(text)[2]
    assert 'http\\_error: HTTP 500: "a\\|b", \\<b\\>\\*c\\*\\</b\\>' in text
    assert not re.search(r"(?<!\\)<", text)


@pytest.mark.parametrize("name", ["mixed", "failed"])
def test_the_outcomes_add_up(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = request.getfixturevalue(name)
    heads, _, planned, *others = tables(page(made, tmp_path))[1]
    assert heads == ["outcome", "whole run", "cohort"]
    for column in (1, 2):
        assert int(planned[column]) == sum(int(row[column]) for row in others)
    assert int(planned[2]) == made.summary["cohort"]["planned"]


def test_checks_that_failed_are_told_with_their_next_step(failed: Any, tmp_path: Path) -> None:
    text = page(failed, tmp_path)
    assert text.startswith("# ")
    assert ": INVALID\n\nDo not use these figures" in text
    assert "**server.failures** (fail)" in text


def test_a_run_that_was_cut_short_says_so(cut: Any, tmp_path: Path) -> None:
    assert "**INCOMPLETE**" in page(cut, tmp_path)


def test_plain_text_is_shown_as_it_is() -> None:
    assert plain("a_b *c* `d` <e> [f] g|h\n i\\j") == "a\\_b \\*c\\* \\`d\\` \\<e\\> \\[f\\] g\\|h i\\\\j"
    assert plain("a|b", pipes=False) == "a|b"
