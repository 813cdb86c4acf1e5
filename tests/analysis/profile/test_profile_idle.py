"""Gaps of a device and their causes, by hand."""

from typing import Any

import numpy as np
import pytest

from device_timelines import PROCESS, Drawn
from servebench.analysis.phases import Phases, combine, weighted
from servebench.analysis.profile.devices import describe_devices, gaps_with_causes
from servebench.analysis.profile.idle import CAUSES
from servebench.analysis.steps import StepFunction
from servebench.profile.timeline import Kind, Timeline

US = 1_000
KERNEL_A = (0, 100)
FIRST = "a"


def base() -> Drawn:
    """A device that works until 100, launched in time."""
    return Drawn().kernel(FIRST, *KERNEL_A, (-50, -40))


def found(drawn: Drawn, start: int = 0, end: int = 1000, phases: Phases | None = None) -> list[tuple[int, int, str]]:
    return listed(drawn.timeline(), start, end, phases)


def listed(timeline: Timeline, start: int, end: int, phases: Phases | None = None) -> list[tuple[int, int, str]]:
    gaps = gaps_with_causes(timeline, 0, start, end, phases)
    return [(int(s), int(e), CAUSES[cause]) for s, e, cause in zip(*gaps.spans, gaps.cause, strict=True)]


def requests(*spans: tuple[int, int]) -> Phases:
    """The client had requests in flight within the spans."""
    begin, end = (np.array([each[at] for each in spans], np.int64) for at in (0, 1))
    nothing = np.zeros(0, np.int64)
    none = StepFunction.of_intervals(nothing, nothing)
    return combine(none, StepFunction.of_intervals(begin, end), weighted(nothing, nothing, nothing))


def test_launched_after_the_device_ran_dry() -> None:
    assert found(base().kernel("b", 150, 1000, (130, 140))) == [(100, 150, "host_late")]


def test_launched_before() -> None:
    assert found(base().kernel("b", 150, 1000, (99, 105))) == [(100, 150, "dependency")]


def test_launched_at_the_very_instant_is_late() -> None:
    assert found(base().kernel("b", 150, 1000, (100, 105))) == [(100, 150, "host_late")]


def test_a_kernel_that_begins_before_its_call_is_late_or_the_clocks_are_apart() -> None:
    assert found(base().kernel("b", 150, 1000, (155, 160))) == [(100, 150, "host_late")]


@pytest.mark.parametrize("last", [90, 110])
def test_the_gap_begins_where_the_last_of_all_streams_ends(last: int) -> None:
    drawn = base().kernel("side", 10, last, (-20, -10), stream=8).kernel("b", 150, 1000, (105, 108))
    cause = "host_late" if last == 90 else "dependency"
    assert found(drawn) == [(max(last, 100), 150, cause)]


def test_without_a_call_the_cause_is_not_known() -> None:
    assert found(base().kernel("b", 150, 1000)) == [(100, 150, "unknown")]
    assert found(base().kernel("b", 150, 1000, correlation=77)) == [(100, 150, "unknown")]


def test_a_call_of_another_process_is_not_the_launch() -> None:
    drawn = base().kernel("b", 150, 1000, correlation=77).call("cudaLaunchKernel", 130, 140, process=9, correlation=77)
    assert found(drawn) == [(100, 150, "unknown")]


class TestCopies:
    def test_a_gap_that_begins_at_a_copy(self) -> None:
        drawn = base().row(Kind.COPY_DTOH, "copy", 100, 110, (-30, -25)).kernel("b", 150, 1000, (105, 106))
        assert found(drawn) == [(110, 150, "copy_or_sync")]

    def test_a_gap_that_ends_at_a_copy(self) -> None:
        drawn = base().row(Kind.COPY_HTOD, "copy", 150, 1000, (50, 60))
        assert found(drawn) == [(100, 150, "copy_or_sync")]

    def test_a_copy_that_nobody_is_known_to_have_launched(self) -> None:
        assert found(base().row(Kind.COPY_HTOD, "copy", 150, 1000)) == [(100, 150, "copy_or_sync")]

    def test_a_copy_that_was_launched_late_is_the_hosts_fault(self) -> None:
        assert found(base().row(Kind.COPY_HTOD, "copy", 150, 1000, (120, 130))) == [(100, 150, "host_late")]

    @pytest.mark.parametrize("start", [0, 105])
    def test_of_several_that_end_together_the_one_that_began_last_counts(self, start: int) -> None:
        drawn = base().row(Kind.COPY_DTOH, "copy", 50, 100, (-30, -25)).kernel("b", 150, 1000, (90, 95))
        assert found(drawn, start) == [(max(start, 100), 150, "copy_or_sync")]
        drawn = base().row(Kind.COPY_DTOH, "copy", -10, 100, (-30, -25)).kernel("b", 150, 1000, (90, 95))
        assert found(drawn, start) == [(max(start, 100), 150, "dependency")]

    def test_a_fill_is_no_copy(self) -> None:
        assert found(base().row(Kind.FILL, "fill", 150, 1000, (50, 60))) == [(100, 150, "dependency")]


class TestWaits:
    def test_a_host_that_was_held_for_most_of_the_gap(self) -> None:
        drawn = base().call("cudaStreamSynchronize", 50, 140, Kind.SYNC).kernel("b", 150, 1000, (141, 142))
        assert found(drawn) == [(100, 150, "copy_or_sync")]

    def test_a_host_that_was_held_for_half_of_it_and_then_did_something_else(self) -> None:
        drawn = base().call("cudaStreamSynchronize", 50, 125, Kind.SYNC).kernel("b", 150, 1000, (141, 142))
        assert found(drawn) == [(100, 150, "host_late")]
        (device,) = describe_devices(drawn.timeline(), 0, 1000, None)
        assert "in 1 of them the host was still in a call that waits" in device["idle"]["causes"][0]["text"]

    def test_several_waits_add_up_but_not_where_they_overlap(self) -> None:
        def drawn(second: int) -> Drawn:
            made = base().kernel("b", 150, 1000, (145, 146)).call("cudaEventSynchronize", 100, 115, Kind.SYNC)
            return made.call("cudaEventSynchronize", second, second + 15, Kind.SYNC, thread=1)

        assert found(drawn(120)) == [(100, 150, "copy_or_sync")]
        assert found(drawn(105)) == [(100, 150, "host_late")]

    def test_a_call_that_copies_holds_the_host_too(self) -> None:
        drawn = base().call("cudaMemcpy_v3020", 50, 140).kernel("b", 150, 1000, (141, 142))
        assert found(drawn) == [(100, 150, "copy_or_sync")]

    def test_what_another_process_waits_for_is_no_matter(self) -> None:
        drawn = base().call("cudaStreamSynchronize", 50, 140, Kind.SYNC, process=9).kernel("b", 150, 1000, (141, 142))
        assert found(drawn) == [(100, 150, "host_late")]

    def test_a_wait_for_what_was_launched_already_is_no_cause(self) -> None:
        drawn = base().kernel("b", 150, 1000, (20, 30)).call("cudaStreamSynchronize", 40, 1010, Kind.SYNC)
        assert found(drawn) == [(100, 150, "dependency")]

    def test_a_wait_explains_a_gap_whose_launch_is_not_known(self) -> None:
        drawn = base().kernel("b", 150, 1000).call("cudaStreamSynchronize", 40, 1010, Kind.SYNC)
        assert found(drawn) == [(100, 150, "copy_or_sync")]


class TestRequests:
    def test_no_request_for_most_of_the_gap_wins_over_all(self) -> None:
        drawn = base().kernel("b", 200, 300, (160, 170)).row(Kind.COPY_HTOD, "copy", 400, 1000, (20, 30))
        assert found(drawn, phases=requests((0, 149), (349, 1000))) == [
            (100, 200, "no_request"),
            (300, 400, "copy_or_sync"),
        ]

    def test_half_of_the_gap_is_not_most(self) -> None:
        drawn = base().kernel("b", 200, 1000, (160, 170))
        assert found(drawn, phases=requests((0, 150), (200, 1000))) == [(100, 200, "host_late")]

    def test_before_the_first_and_after_the_last_request_there_was_none(self) -> None:
        drawn = Drawn().kernel("a", 100, 200, (80, 90)).kernel("b", 800, 900, (780, 790))
        assert found(drawn, phases=requests((95, 600), (790, 850))) == [
            (0, 100, "no_request"),
            (200, 800, "host_late"),
            (900, 1000, "no_request"),
        ]

    def test_without_a_run_the_cause_is_not_listed(self) -> None:
        (device,) = describe_devices(base().timeline(), 0, 1000, None)
        assert [row["cause"] for row in device["idle"]["causes"]] == [each for each in CAUSES if each != "no_request"]
        (device,) = describe_devices(base().timeline(), 0, 1000, requests((0, 1000)))
        assert [row["cause"] for row in device["idle"]["causes"]] == list(CAUSES)


class TestEdges:
    def test_the_first_gap_began_when_the_row_before_the_window_ended(self) -> None:
        drawn = base().kernel("b", 300, 400, (150, 160)).kernel("c", 0, 999, device=1)
        assert found(drawn, 200, 400) == [(200, 300, "host_late")]
        drawn = base().kernel("b", 300, 400, (90, 95))
        assert found(drawn, 200, 400) == [(200, 300, "dependency")]

    def test_with_nothing_before_the_window_is_where_it_began(self) -> None:
        drawn = Drawn().kernel("b", 300, 400, (150, 160))
        assert found(drawn, 200, 400) == [(200, 300, "dependency")]
        assert found(drawn, 100, 400) == [(100, 300, "host_late")]

    def test_the_last_gap_ends_at_the_row_after_the_window(self) -> None:
        assert found(base().kernel("b", 300, 400, (250, 260)), 0, 200) == [(100, 200, "host_late")]
        assert found(base().row(Kind.COPY_HTOD, "b", 300, 400, (50, 60)), 0, 200) == [(100, 200, "copy_or_sync")]

    def test_after_the_last_row_of_the_capture_the_cause_is_not_known(self) -> None:
        assert found(base(), 0, 200) == [(100, 200, "unknown")]

    def test_a_window_without_any_row(self) -> None:
        drawn = base().kernel("b", 900, 1000, (850, 860))
        assert found(drawn, 200, 800) == [(200, 800, "host_late")]
        (device,) = describe_devices(drawn.timeline(), 200, 800, None)
        (longest,) = device["idle"]["longest"]
        assert longest == {"start_ms": 0, "ms": 0.0006, "cause": "host_late", "before": "a", "after": "b"}


class TestTables:
    def drawn(self) -> Drawn:
        """Gaps of 9.999 us, 10 us, 150 us, 2 ms, 20 ms and 200 ms, launched late; and 1 us, launched in time."""
        drawn, now = Drawn().kernel("first", 0, 100, (-9, -8)), 100
        for number, gap in enumerate((9_999, 10_000, 150_000, 2_000_000, 20_000_000, 200_000_000)):
            drawn.kernel(f"k{number}", now + gap, now + gap + 100, (now, now + 5))
            now += gap + 100
        return drawn.kernel("end", now + 1_000, now + 2_000, (now - 5, now - 3))

    def section(self) -> dict[str, Any]:
        timeline = self.drawn().timeline()
        (device,) = describe_devices(timeline, 0, int(timeline.end.max()), None)
        idle: dict[str, Any] = device["idle"]
        return idle

    def test_classes_of_size(self) -> None:
        rows = [(row["from_us"], row["to_us"], row["n"], row["ms"]) for row in self.section()["sizes"]]
        assert rows == [
            (0, 10, 2, 0.010999),
            (10, 100, 1, 0.01),
            (100, 1_000, 1, 0.15),
            (1_000, 10_000, 1, 2),
            (10_000, 100_000, 1, 20),
            (100_000, None, 1, 200),
        ]

    def test_causes_and_what_they_mean(self) -> None:
        late, depends, *others = self.section()["causes"]
        assert (late["cause"], late["n"], late["ms"]) == ("host_late", 6, 222.169999)
        assert late["text"] == "the call that launched the next work began only after the device had run dry"
        assert (depends["cause"], depends["n"], depends["ms"]) == ("dependency", 1, 0.001)
        assert (depends["short_n"], depends["short_ms"]) == (1, 0.001)
        assert "what a device takes from one kernel to the next anyway" in depends["text"]
        assert [(row["n"], row["ms"]) for row in others] == [(0, 0)] * 2

    def test_the_longest(self) -> None:
        longest = self.section()["longest"]
        assert [row["ms"] for row in longest] == [200, 20, 2, 0.15, 0.01, 0.009999, 0.001]
        assert longest[0] == {
            "start_ms": 22.170599,
            "ms": 200,
            "cause": "host_late",
            "before": "k4",
            "after": "k5",
        }

    def test_no_more_than_ten_of_them(self) -> None:
        drawn = Drawn()
        for number in range(30):
            drawn.kernel("k", number * 1000, number * 1000 + 500 + 10 * number)
        (device,) = describe_devices(drawn.timeline(), 0, 30_000, None)
        assert [row["ms"] for row in device["idle"]["longest"]] == [(500 - 10 * k) / 1e6 for k in range(10)]


def test_what_stands_before_and_after_by_name() -> None:
    drawn = base().kernel("inner", 20, 30, (-30, -20), stream=8).kernel("b", 150, 200, (99, 105))
    timeline = drawn.timeline()
    gaps = gaps_with_causes(timeline, 0, -10, 300)
    names = [None, *timeline.names]
    assert [names[at + 1] for at in gaps.before] == [None, "a", "b"]
    assert [names[at + 1] for at in gaps.after] == ["a", "b", None]


def test_held_marks_the_gaps_that_began_while_the_host_waited() -> None:
    drawn = base().kernel("b", 150, 200, (140, 145)).kernel("c", 300, 400, (290, 295))
    drawn.call("cudaStreamSynchronize", 50, 110, Kind.SYNC).call("cudaStreamSynchronize", 201, 220, Kind.SYNC)
    assert gaps_with_causes(drawn.timeline(), 0, 0, 400).held.tolist() == [True, False]


def test_rows_of_several_processes_have_each_their_own_waits() -> None:
    drawn = base().kernel("b", 150, 200, (140, 145), process=9).kernel("c", 300, 1000, (290, 295))
    drawn.call("cudaStreamSynchronize", 50, 140, Kind.SYNC, process=PROCESS)
    drawn.call("cudaStreamSynchronize", 199, 290, Kind.SYNC, process=PROCESS)
    assert found(drawn) == [(100, 150, "host_late"), (200, 300, "copy_or_sync")]
