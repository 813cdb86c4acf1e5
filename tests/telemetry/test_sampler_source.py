"""The loop that samples one source: its rate, and everything that a source can do to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from servebench.errors import UsageError
from servebench.telemetry.source import Reading, SampleFailed, SourceAbsent, SourceLoop, Tally

Rows = list[tuple[str, int, Sequence[Reading]]]


class Scripted:
    """A source whose samples are what a function makes of their number."""

    name = "scripted"

    def __init__(self, make: Callable[[int], Sequence[Reading]], hz: float = 50.0) -> None:
        self.hz = hz
        self.taken = 0
        self.closed = False
        self._make = make

    def open(self) -> None:
        pass

    def sample(self) -> Sequence[Reading]:
        self.taken += 1
        return self._make(self.taken)

    def facts(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def close(self) -> None:
        self.closed = True


def one(number: int) -> list[Reading]:
    return [("d", "x", float(number))]


def follow(source: Any, seconds: float, rows: Rows | None = None) -> dict[str, Any]:
    taken: Rows = [] if rows is None else rows
    loop = SourceLoop("scripted", lambda: source, lambda *row: taken.append(row))
    loop.start()
    assert loop.baselined.wait(5)
    time.sleep(seconds)
    loop.stop()
    assert loop.join(5)
    return loop.report()


def test_baseline_and_final_sample_frame_the_rest_and_stamps_are_of_the_reading() -> None:
    rows: Rows = []
    before = time.time_ns()
    report = follow(Scripted(one), 0.2, rows)
    stamps = [t for _, t, _ in rows]
    assert [readings[0][2] for _, _, readings in rows] == [float(n + 1) for n in range(len(rows))]
    assert before <= stamps[0] < stamps[-1] <= time.time_ns()
    assert stamps == sorted(stamps)
    assert report["samples"] == len(rows) == report["taken"] >= 3
    assert report["state"] == "sampled"
    assert report["cpu_s"] > 0


def test_the_rate_is_that_of_absolute_deadlines_however_long_a_sample_takes() -> None:
    def slow(number: int) -> list[Reading]:
        time.sleep(0.004 if number % 2 else 0.001)
        return one(number)

    rows: Rows = []
    report = follow(Scripted(slow, hz=100), 1.0, rows)
    first, last = rows[0][1], rows[-2][1]  # the one after is the final sample, which is not on the beat
    # Each beat was either used or, on a busy machine, passed over; none was put off by what a sample took.
    assert report["samples"] - 2 + report["missed_beats"] == pytest.approx((last - first) / 1e7, abs=4)
    assert report["asked_hz"] == 100


def test_deadlines_that_pass_during_a_long_sample_are_left_out_and_counted() -> None:
    def stuck_once(number: int) -> list[Reading]:
        if number == 2:
            time.sleep(0.3)
        return one(number)

    report = follow(Scripted(stuck_once, hz=50), 0.6)
    assert report["missed_beats"] >= 13
    assert report["longest_gap_s"] >= 0.3
    assert report["samples"] + report["missed_beats"] < 50


def test_a_failing_sample_leaves_nulls_and_a_counted_reason_and_the_source_goes_on() -> None:
    def failing(number: int) -> list[Reading]:
        if number in (3, 4):
            raise SampleFailed("out of order")
        if number == 5:
            raise ZeroDivisionError("division by zero")
        return [("d", "x", 1.0), ("e", "y", 2.0)]

    rows: Rows = []
    report = follow(Scripted(failing), 0.4, rows)
    assert [list(readings) for _, _, readings in rows[2:5]] == [[("d", "x", None), ("e", "y", None)]] * 3
    assert report["failures"] == {"out of order": 2, "ZeroDivisionError: division by zero": 1}
    assert report["samples"] == len(rows) - 3
    assert report["longest_gap_s"] > 3.5 / 50


def test_what_is_known_of_a_failed_sample_is_kept_beside_the_nulls() -> None:
    def down(number: int) -> list[Reading]:
        if number > 1:
            error = SampleFailed("gone")
            error.readings = [("d", "up", 0.0)]
            raise error
        return [("d", "up", 1.0), ("d", "x", 5.0)]

    rows: Rows = []
    follow(Scripted(down), 0.1, rows)
    assert list(rows[-1][2]) == [("d", "up", 0.0), ("d", "x", None)]


def test_a_source_that_never_answers_is_absent_with_its_commonest_reason() -> None:
    def never(number: int) -> list[Reading]:
        raise SampleFailed("connection refused" if number > 1 else "warming up")

    report = follow(Scripted(never), 0.2)
    assert (report["state"], report["reason"]) == ("absent", "connection refused")
    assert report["achieved_hz"] is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SourceAbsent("no driver here"), "no driver here"),
        (UsageError("a bad URL"), "a bad URL"),
        (ImportError("No module named 'x'"), "ImportError: No module named 'x'"),
        (PermissionError(13, "Permission denied", "/secret/place"), "PermissionError: Permission denied"),
    ],
)
@pytest.mark.parametrize("where", ["make", "open"])
def test_a_source_that_cannot_be_had_is_absent_with_the_reason(where: str, error: Exception, reason: str) -> None:
    class Failing(Scripted):
        def open(self) -> None:
            raise error

    def make() -> Any:
        if where == "make":
            raise error
        return Failing(one)

    loop = SourceLoop("scripted", make, lambda *row: None)
    loop.start()
    assert loop.baselined.wait(5)
    loop.stop()
    assert loop.join(5)
    report = loop.report()
    assert (report["state"], report["reason"], report["samples"]) == ("absent", reason, 0)


def test_a_source_that_hangs_holds_up_no_other_and_says_so() -> None:
    release = threading.Event()

    def hanging(number: int) -> list[Reading]:
        if number == 2:
            release.wait(20)
        return one(number)

    stuck, free = Scripted(hanging), Scripted(one)
    loops = [SourceLoop(name, lambda s=s: s, lambda *row: None) for name, s in (("stuck", stuck), ("free", free))]
    for loop in loops:
        loop.start()
        assert loop.baselined.wait(5)
    time.sleep(0.4)
    for loop in loops:
        loop.stop()
    ended = [loop.join(0.3) for loop in loops]
    reports = [loop.report() for loop in loops]
    release.set()
    assert ended == [False, True]
    assert [report["hung"] for report in reports] == [True, False]
    assert reports[0]["samples"] == 1
    assert reports[0]["longest_gap_s"] > 0.4
    assert reports[1]["samples"] > 10
    assert free.closed


def test_the_final_sample_may_be_a_more_patient_one() -> None:
    class Patient(Scripted):
        def final_sample(self) -> list[Reading]:
            return [("d", "x", -1.0)]

    rows: Rows = []
    follow(Patient(one), 0.1, rows)
    assert [readings[0][2] for _, _, readings in rows].count(-1.0) == 1
    assert rows[-1][2][0][2] == -1.0


def test_facts_and_an_end_that_fail_cost_no_sample() -> None:
    class Sulking(Scripted):
        def facts(self) -> dict[str, Any]:
            raise RuntimeError("no facts")

        def close(self) -> None:
            raise RuntimeError("no end")

    report = follow(Sulking(one), 0.1)
    assert report["state"] == "sampled"
    assert set(report["failures"]) == {"its facts: RuntimeError: no facts", "at its end: RuntimeError: no end"}


def test_figures_of_a_tally() -> None:
    tally = Tally()
    assert tally.figures(5.0)["longest_gap_s"] is None
    tally.begin(10.0)
    assert tally.figures(12.0)["longest_gap_s"] == 2.0
    for now in (10.5, 11.0, 12.5, 13.0):
        tally.success(now)
    tally.success(13.1, on_beat=False)
    figures = tally.figures(13.2)
    assert figures["achieved_hz"] == pytest.approx(3 / 2.5)
    assert figures["longest_gap_s"] == 1.5
    assert tally.figures(20.0)["longest_gap_s"] == pytest.approx(6.9)
