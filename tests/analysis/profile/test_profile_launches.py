"""Launch latency, by hand."""

from typing import Any

import numpy as np
import pytest

from device_timelines import PROCESS, Drawn
from servebench.analysis.profile.devices import describe_devices, survey
from servebench.analysis.profile.launches import find_calls
from servebench.profile import intervals
from servebench.profile.timeline import NONE, Kind

END = 1_000_000


def launches(drawn: Drawn) -> dict[str, Any] | None:
    (device,) = describe_devices(drawn.timeline(), 0, END, None)
    section: dict[str, Any] | None = device["launches"]
    return section


def test_from_the_start_of_the_call_to_the_start_on_the_device() -> None:
    drawn = Drawn().kernel("a", 8_000, 9_000, (1_000, 3_000)).kernel("b", 9_000, 9_500, (3_000, 5_000))
    drawn.row(Kind.COPY_DTOH, "copy", 30_000, 31_000, (10_000, 12_000))
    assert launches(drawn) == {"n": 3, "p50_us": 7, "p99_us": 20, "min_us": 4, "negative": 0}


def test_a_start_before_the_call_has_returned_is_normal() -> None:
    drawn = Drawn().kernel("a", 8_000, 9_000, (1_000, 25_000)).kernel("b", 30_000, 31_000, (26_000, 27_000))
    assert launches(drawn) == {"n": 2, "p50_us": 4, "p99_us": 7, "min_us": -17, "negative": 1}
    assert survey(drawn.timeline(), 0, END, None)[1] == []


def test_a_start_before_the_call_shows_that_clocks_disagree() -> None:
    drawn = Drawn().kernel("a", 8_000, 9_000, (9_500, 25_000)).kernel("b", 30_000, 31_000, (26_000, 27_000))
    (note,) = survey(drawn.timeline(), 0, END, None)[1]
    assert note.startswith("device 0: 1 of 2 launches begin on the device before the call that launched them, by up to")
    assert "1.5 us" in note


def test_of_a_replayed_graph_only_the_first_kernel_was_waited_for() -> None:
    drawn = Drawn().call("cudaGraphLaunch", 0, 2_000, correlation=1)
    for at in range(5_000, 50_000, 5_000):
        drawn.kernel("node", at, at + 4_000, correlation=1, graph=1)
    assert launches(drawn) == {"n": 1, "p50_us": 5, "p99_us": 5, "min_us": 3, "negative": 0}


def test_without_calls_there_is_nothing_to_tell() -> None:
    assert launches(Drawn().kernel("a", 0, 10, correlation=3).kernel("b", 20, 30)) is None


def test_calls_of_every_process_begin_at_correlation_one() -> None:
    drawn = Drawn().kernel("a", 100_000, 110_000, (90_000, 91_000), correlation=1)
    drawn.kernel("b", 200_000, 210_000, (150_000, 151_000), correlation=1, process=9)
    assert launches(drawn) == {"n": 2, "p50_us": 10, "p99_us": 50, "min_us": 9, "negative": 0}


def test_rows_without_a_correlation_are_not_joined_to_calls_without_one() -> None:
    drawn = Drawn().call("cudaMalloc", 0, 10).kernel("a", 100, 200)
    timeline = drawn.timeline()
    assert find_calls(timeline, np.flatnonzero(timeline.on_device)).tolist() == [NONE]


def test_ranges_and_operators_are_no_calls() -> None:
    drawn = Drawn().call("aten::mm", 0, 10, Kind.OPERATOR, correlation=1).kernel("a", 100, 200, correlation=1)
    assert launches(drawn) is None


def test_of_several_calls_the_earliest_counts() -> None:
    drawn = Drawn().call("cuLaunchKernel", 20, 30, correlation=5).call("cudaLaunchKernel", 10, 40, correlation=5)
    assert launches(drawn.kernel("a", 1_010, 2_000, correlation=5)) == pytest.approx(
        {"n": 1, "p50_us": 1, "p99_us": 1, "min_us": 0.97, "negative": 0}
    )


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_many_rows_are_joined_in_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servebench.analysis.profile.launches.BLOCK", block)
    random = np.random.default_rng(3)
    drawn = Drawn()
    wanted: dict[int, int] = {}
    for process in (PROCESS, 9):
        for number, correlation in enumerate(random.permutation(40).tolist()):
            at = 1_000 * number + process
            drawn.call("cudaLaunchKernel", at, at + 5, correlation=correlation, process=process)
            if correlation % 3:
                start = 50_000 + 100 * number + process % 2
                drawn.kernel("k", start, start + 1, correlation=correlation, process=process)
                wanted[start] = at
    timeline = drawn.timeline()
    rows = np.flatnonzero(timeline.on_device)
    calls = find_calls(timeline, rows)
    assert dict(zip(timeline.start[rows].tolist(), timeline.start[calls].tolist(), strict=True)) == wanted
    assert intervals.BLOCK == 1 << 20
