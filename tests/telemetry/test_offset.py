"""The offset of two clocks: never off by more than it states, whatever the way there and back does."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.telemetry.offset import MAX_DRIFT, Exchange, OffsetPoint, OffsetTrack

MS = 1_000_000
START = 1_790_000_000_000_000_000


def exchange(sent: int, offset: int, there: int, serving: int, back: int) -> Exchange:
    received = sent + there + offset
    return Exchange(sent, received, received + serving, sent + there + serving + back)


def point(at: int, offset: int, error: int) -> OffsetPoint:
    return OffsetPoint(at, offset, error, 1)


def test_equal_ways_give_the_exact_offset() -> None:
    one = exchange(START, 250 * MS, 3 * MS, 7 * MS, 3 * MS)
    assert (one.offset_ns, one.delay_ns) == (250 * MS, 6 * MS)


def test_the_way_of_least_delay_is_kept() -> None:
    rounds = [
        exchange(START + i, 250 * MS, there * MS, 0, back * MS) for i, (there, back) in enumerate([(9, 1), (2, 1)])
    ]
    best = OffsetPoint.of(rounds)
    assert best == OffsetPoint(START + 1 + 3 * MS // 2, 250 * MS + MS // 2, 3 * MS // 2, 2)


@given(
    offset=st.integers(-(10**12), 10**12),
    ways=st.lists(st.tuples(*[st.integers(0, 50 * MS)] * 3), min_size=1, max_size=20),
)
def test_the_error_bounds_what_unequal_ways_do(offset: int, ways: list[tuple[int, int, int]]) -> None:
    measured = OffsetPoint.of(exchange(START + i * 100 * MS, offset, *each) for i, each in enumerate(ways))
    assert abs(measured.offset_ns - offset) <= measured.error_ns


def test_a_clock_that_jitters_widens_the_error() -> None:
    rng = random.Random(1)
    rounds = []
    for number in range(16):
        sent = START + number * MS
        received, replied = (sent + 250 * MS + rng.randrange(-5 * MS, 5 * MS) for _ in range(2))
        rounds.append(Exchange(sent, received, replied, sent + MS // 5))
    measured = OffsetPoint.of(rounds)
    assert measured.error_ns > MS
    assert abs(measured.offset_ns - 250 * MS) <= measured.error_ns < 10 * MS


def test_a_server_time_that_does_not_fit_is_not_taken_off() -> None:
    assert Exchange(0, 5 * MS, 4 * MS, 2 * MS).delay_ns == 2 * MS
    assert Exchange(0, 5 * MS, 9 * MS, 2 * MS).delay_ns == 2 * MS


def test_no_exchange_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        OffsetPoint.of([])


def test_between_measurements_the_offset_is_interpolated() -> None:
    track = OffsetTrack()
    second = 1_000 * MS
    assert track.add(point(START, 250 * MS, MS))
    assert track.add(point(START + 10 * second, 251 * MS, MS))
    ours = START + np.array([-5, 0, 5, 10, 20]) * second
    offsets = np.array([250 * MS, 250 * MS, 250 * MS + MS // 2, 251 * MS, 251 * MS])
    assert track.to_ours(ours + offsets).tolist() == ours.tolist()


def test_the_error_has_what_the_offset_moved() -> None:
    track = OffsetTrack()
    track.add(point(START, 250 * MS, MS))
    track.add(point(START + 60_000 * MS, 252 * MS, 2 * MS))
    assert track.error_ns == 4 * MS
    facts = track.facts()
    assert (facts["offset_ms"], facts["error_ms"], facts["moved_ms"]) == (252, 4, 2)
    assert (facts["measured"], facts["used"], facts["reason"]) == (2, 2, None)


def test_a_worse_measurement_is_not_used_until_the_good_one_has_aged() -> None:
    track = OffsetTrack()
    track.add(point(START, 250 * MS, MS // 10))
    assert not track.add(point(START + 1_000 * MS, 251 * MS, 2 * MS))
    assert track.facts()["used"] == 1
    aged = int(2 * MS / MAX_DRIFT)
    assert track.error_ns == MS // 10 + int(1_000 * MS * MAX_DRIFT)
    assert track.add(point(START + aged, 251 * MS, 2 * MS))


def test_a_worse_measurement_that_contradicts_the_last_is_a_step_and_used() -> None:
    track = OffsetTrack()
    track.add(point(START, 0, MS // 10))
    assert track.add(point(START + 1_000 * MS, 80 * MS, 2 * MS))
    assert track.facts()["largest_change_ms"] == 80
    assert track.error_ns is not None and track.error_ns >= 80 * MS


def test_a_server_clock_that_is_set_back_does_not_mix_the_times() -> None:
    track = OffsetTrack()
    second = 1_000 * MS
    track.add(point(START, 100 * second, MS))
    track.add(point(START + second, 0, MS))
    assert track.to_ours(np.array([START + 2 * second])).tolist() == [START + 2 * second]


def test_after_a_restart_nothing_is_interpolated_from_before() -> None:
    track = OffsetTrack()
    second = 1_000 * MS
    track.add(point(START, 0, MS))
    track.restart()
    assert track.to_ours(np.array([START])).tolist() == [START]
    assert track.add(point(START + 2 * second, 500 * MS, 9 * MS))
    assert track.to_ours(np.array([START + second])).tolist() == [START + second - 500 * MS]
    assert track.error_ns == 9 * MS


def test_a_long_run_takes_no_more_memory_and_forgets_no_error() -> None:
    track = OffsetTrack()
    track.add(point(START, 0, 7 * MS))
    for number in range(1, 500):
        track.add(point(START + number * 1_000 * MS, number * 1_000, MS))
    facts = track.facts()
    assert (facts["used"], facts["moved_ms"]) == (500, 0.499)
    assert track.error_ns == 7 * MS + 1_000
    assert track.to_ours(np.array([START + 499_000 * MS + 499_000])).tolist() == [START + 499_000 * MS]


def test_without_a_measurement_there_is_a_reason_and_no_number() -> None:
    track = OffsetTrack()
    assert (track.error_ns, bool(track)) == (None, False)
    assert track.facts()["offset_ms"] is None
    assert "not measured" in track.facts()["reason"]
    with pytest.raises(ValueError, match="not measured"):
        track.to_ours(np.array([START]))
