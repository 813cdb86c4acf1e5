"""The ring of a telemetry server: bounded, numbered, and honest about what it no longer has."""

from __future__ import annotations

import math
import threading

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from servebench.telemetry.remote_messages import Batch
from servebench.telemetry.remote_ring import Ring


def fill(ring: Ring, start: int, count: int, width: int = 3) -> None:
    for number in range(start, start + count):
        ring.add("nvml", number, [(f"gpu-{gpu}", "power_w", float(number)) for gpu in range(width)])


def times(batch: Batch) -> list[int]:
    return [sweep.t_ns for sweep in batch.sweeps]


def test_an_empty_ring_answers() -> None:
    batch = Ring("boot").since(0)
    assert (batch.next, batch.lost, batch.more, batch.series, batch.sweeps) == (0, 0, False, [], [])


def test_a_sweep_without_readings_is_none() -> None:
    ring = Ring("boot")
    ring.add("nvml", 1, [])
    assert ring.since(0).next == 0


def test_values_series_and_times() -> None:
    ring = Ring("boot")
    ring.add("nvml", 100, [("gpu-0", "a", 1.5), ("gpu-1", "a", None, 103)], shift_ns=1_000)
    ring.add("host", 101, [("host", "b", math.inf)])
    batch = ring.since(0)
    assert [(each.source, each.device, each.name) for each in batch.series] == [
        ("nvml", "gpu-0", "a"),
        ("nvml", "gpu-1", "a"),
        ("host", "host", "b"),
    ]
    first, second = batch.sweeps
    assert (first.t_ns, first.values, first.later_ns) == (1_100, [1.5, None], [0, 3])
    assert (second.t_ns, second.values, second.later_ns) == (101, [None], [])


def test_only_series_of_the_answer_are_in_it() -> None:
    ring = Ring("boot")
    fill(ring, 0, 1)
    ring.add("host", 1, [("host", "b", 2.0)])
    assert [each.source for each in ring.since(1).series] == ["host"]


@given(
    capacity=st.integers(1, 60),
    width=st.integers(1, 5),
    limit=st.integers(1, 30),
    rounds=st.lists(st.integers(0, 12), max_size=12),
)
def test_what_is_pulled_and_what_is_lost_is_all(capacity: int, width: int, limit: int, rounds: list[int]) -> None:
    ring, taken, asked, lost, made = Ring("boot", capacity), list[int](), 0, 0, 0
    for count in rounds:
        fill(ring, made, count, width)
        made += count
        batch = ring.since(asked, limit=limit)
        lost += batch.lost
        taken += times(batch)
        asked = batch.next
    while True:
        batch = ring.since(asked, limit=limit)
        lost, taken, asked = lost + batch.lost, taken + times(batch), batch.next
        if not batch.more:
            break
    assert taken == sorted(set(taken))
    assert len(taken) + lost == made == asked
    if capacity >= made * width:
        assert lost == 0


def test_a_ring_is_no_larger_than_it_is_told() -> None:
    ring = Ring("boot", capacity=10)
    fill(ring, 0, 100, width=3)
    assert times(ring.since(0)) == [97, 98, 99]
    assert ring.since(0).lost == 97


def test_a_sweep_larger_than_the_ring_is_kept_until_the_next() -> None:
    ring = Ring("boot", capacity=2)
    fill(ring, 0, 2, width=5)
    assert times(ring.since(0)) == [1]


def test_what_was_read_before_is_left_out_on_request() -> None:
    ring = Ring("boot")
    fill(ring, 0, 10)
    batch = ring.since(0, after_ns=7)
    assert (times(batch), batch.next, batch.lost) == ([7, 8, 9], 10, 0)
    assert (times(ring.since(0, after_ns=99)), ring.since(0, after_ns=99).next) == ([], 10)


def test_numbers_from_the_future_are_the_end() -> None:
    ring = Ring("boot")
    fill(ring, 0, 3)
    assert (ring.since(1_000).next, ring.since(1_000).lost) == (3, 0)


def test_an_answer_is_what_its_reader_expects() -> None:
    ring = Ring("boot")
    fill(ring, 0, 3)
    ring.add("host", 9, [("host", "x", None, 7)])
    batch = ring.since(0)
    assert msgspec.json.decode(msgspec.json.encode(batch), type=Batch) == batch


def test_threads_may_add_while_others_ask() -> None:
    ring = Ring("boot")
    threads = [threading.Thread(target=fill, args=(ring, 0, 300)) for _ in range(3)]
    for thread in threads:
        thread.start()
    asked, count = 0, 0
    while count < 900:
        batch = ring.since(asked)
        asked, count = batch.next, count + len(batch.sweeps)
    for thread in threads:
        thread.join()
    assert (asked, ring.since(asked).sweeps) == (900, [])
