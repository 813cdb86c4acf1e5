"""Clocks: anchors pair them, and a wall clock that was stepped or runs at another rate is found out."""

from __future__ import annotations

import time
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.clock import RATE_FAIL, RATE_WARN, STEP_FAIL_NS, Anchor, ClockCheck, check_clocks

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND


def anchors(
    seconds: int, *, rate: float = 0.0, step_at: int | None = None, step: int = 0, error: int = 0
) -> list[Anchor]:
    """One a second; the wall clock runs `rate` fast and is put forward by `step` ns from second `step_at` on."""
    return [
        Anchor(
            START + n * SECOND + round(n * SECOND * rate) + (step if step_at is not None and n >= step_at else 0),
            n * SECOND,
            error,
        )
        for n in range(seconds)
    ]


def test_an_anchor_lies_between_two_reads_of_each_clock() -> None:
    before = time.time_ns(), time.monotonic_ns()
    anchor = Anchor.now()
    after = time.time_ns(), time.monotonic_ns()
    assert before[0] <= anchor.realtime_ns <= after[0]
    assert before[1] <= anchor.monotonic_ns <= after[1]
    assert 0 <= anchor.error_ns <= after[1] - before[1]


def test_an_anchor_keeps_the_tightest_of_its_tries() -> None:
    monotonic = iter([0, 900, 1000, 1010, 2000, 2500])  # before and after, three times
    wall = iter([5000, 6000, 7000])
    with (
        mock.patch("time.monotonic_ns", lambda: next(monotonic)),
        mock.patch("time.time_ns", lambda: next(wall)),
    ):
        assert Anchor.now(tries=3) == Anchor(realtime_ns=6000, monotonic_ns=1005, error_ns=10)


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62))
def test_conversions_undo_each_other(realtime: int, monotonic: int, instant: int) -> None:
    anchor = Anchor(realtime, monotonic, 100)
    assert anchor.to_monotonic(anchor.to_realtime(instant)) == instant
    assert anchor.to_realtime(anchor.to_monotonic(instant)) == instant
    assert anchor.to_realtime(monotonic) == realtime
    assert anchor.to_realtime(monotonic + 7) == realtime + 7


@pytest.mark.parametrize("count", [0, 1])
def test_one_anchor_says_nothing(count: int) -> None:
    assert check_clocks(anchors(count)) == ClockCheck(rate_error=None, largest_step_ns=0, duration_ns=0)


def test_a_good_clock() -> None:
    assert check_clocks(anchors(60)) == ClockCheck(rate_error=0.0, largest_step_ns=0, duration_ns=59 * SECOND)


def test_anchors_at_the_same_instant_have_no_rate() -> None:
    (one,) = anchors(1)
    assert check_clocks([one, one]) == ClockCheck(rate_error=None, largest_step_ns=0, duration_ns=0)


@pytest.mark.parametrize("rate", [0.0005, -0.0005, 0.002, -0.002, 0.02])
def test_the_rate_error_has_no_sign(rate: float) -> None:
    check = check_clocks(anchors(100, rate=rate))
    assert check.rate_error == pytest.approx(abs(rate))
    assert check.rate_error is not None
    assert (check.rate_error > RATE_WARN, check.rate_error > RATE_FAIL) == (abs(rate) > 0.001, abs(rate) > 0.01)


@pytest.mark.parametrize("step", [STEP_FAIL_NS + 1, -STEP_FAIL_NS - 1, 5 * SECOND, -3 * SECOND])
@pytest.mark.parametrize("at", [1, 30, 59])
def test_a_step_is_found_wherever_it_is(step: int, at: int) -> None:
    assert check_clocks(anchors(60, step_at=at, step=step)).largest_step_ns == abs(step) > STEP_FAIL_NS


def test_a_step_that_is_undone_is_still_found() -> None:
    made = anchors(60, step_at=20, step=SECOND)
    made[21:] = anchors(60)[21:]
    check = check_clocks(made)
    assert (check.largest_step_ns, check.rate_error) == (SECOND, 0.0)


@given(
    st.lists(st.integers(0, 1000), min_size=10, max_size=10), st.lists(st.floats(-0.5, 0.5), min_size=10, max_size=10)
)
def test_reading_errors_are_no_steps(errors: list[int], shares: list[float]) -> None:
    """Each anchor's pairing is off by at most half of its bracket, which its error says."""
    made = [
        Anchor(good.realtime_ns + int(error * share), good.monotonic_ns, error)
        for good, error, share in zip(anchors(10), errors, shares, strict=True)
    ]
    assert check_clocks(made).largest_step_ns <= 1  # of rounding


def test_a_step_is_lessened_by_the_errors_of_its_two_anchors() -> None:
    assert check_clocks(anchors(3, step_at=1, step=SECOND, error=400)).largest_step_ns == SECOND - 400
    assert check_clocks(anchors(3, step_at=1, step=300, error=400)).largest_step_ns == 0


def test_the_clocks_of_this_machine_hold() -> None:
    made = []
    for _ in range(3):
        made.append(Anchor.now())
        time.sleep(0.01)
    check = check_clocks(made)
    assert check.largest_step_ns < STEP_FAIL_NS
    assert check.duration_ns == made[-1].monotonic_ns - made[0].monotonic_ns
