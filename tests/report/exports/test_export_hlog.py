"""The interval log, read by HdrHistogram's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from servebench.record.histogram import DIGITS, HIGHEST_NS, LOWEST_NS

TAGS = ("ttft", "ttfv", "tpot", "itl", "icl", "e2e", "stall")
STEP_MS = 512e-6


def new() -> HdrHistogram:
    return HdrHistogram(LOWEST_NS, HIGHEST_NS, DIGITS)


def totals(path: Path) -> dict[str, HdrHistogram]:
    """All intervals of each tag, added up."""
    found: dict[str, HdrHistogram] = {}
    reader = HistogramLogReader(str(path), new())
    while (interval := reader.get_next_interval_histogram()) is not None:
        found.setdefault(interval.get_tag(), new()).add(interval)
    reader.close()
    return found


@pytest.mark.parametrize("name", ["example", "mixed", "cut"])
def test_the_reader_finds_the_figures_of_the_summary(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = request.getfixturevalue(name)
    made.write("hlog", tmp_path / "out")
    found = totals(tmp_path / "out")
    assert set(found) == set(TAGS)
    for tag, histogram in found.items():
        metric = made.metrics[tag]
        assert histogram.get_total_count() == metric["n"]
        for mark, rank in metric["ranks"].items():
            got = histogram.get_value_at_percentile(100 * rank / metric["n"]) / 1e6
            assert got == pytest.approx(metric[mark], rel=1e-3, abs=STEP_MS), (tag, mark)


def test_the_readers_own_p99_9_is_that_of_the_summary(example: Any, tmp_path: Path) -> None:
    example.write("hlog", tmp_path / "out")
    found = totals(tmp_path / "out")
    for tag in ("ttft", "tpot", "e2e", "stall"):  # of 249: the reader rounds its rank half up, which is ours here
        got = found[tag].get_value_at_percentile(99.9) / 1e6
        assert got == pytest.approx(example.metrics[tag]["p99_9"], rel=1e-3, abs=STEP_MS)


def test_it_says_what_it_is_of(mixed: Any, tmp_path: Path) -> None:
    mixed.write("hlog", tmp_path / "out")
    head = (tmp_path / "out").read_text("ascii").splitlines()
    assert head[0] == "#[Histogram log format version 1.3]"
    assert "SIMULATED" in head[1]
    assert f"verdict {mixed.summary['verdict']['status']}" in head[1]


def test_a_name_outside_ascii_is_written_as_escapes(mixed: Any, tmp_path: Path) -> None:
    named = type(mixed)(mixed.run, mixed.summary | {"name": "größer\n#[StartTime: 0 "})
    named.write("hlog", tmp_path / "out")
    assert "gr\\xf6\\xdfer #[StartTime" in (tmp_path / "out").read_text("ascii").splitlines()[1]
    assert set(totals(tmp_path / "out")) == set(TAGS)


def test_without_an_answer_it_is_a_log_without_intervals(failed: Any, tmp_path: Path) -> None:
    failed.write("hlog", tmp_path / "out")
    assert totals(tmp_path / "out") == {}
