"""The live counters: shared between processes, cheap to write, close enough to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servebench.record.columns import Outcome
from servebench.record.counters import (
    EDGES_NS,
    LIVE_METRICS,
    Command,
    LiveCounters,
    Slot,
    State,
    bucket_quantile,
    live_counters,
)


@pytest.fixture
def counters(tmp_path: Path) -> LiveCounters:
    return LiveCounters.create(3, tmp_path)


def test_all_is_zero_at_first(counters: LiveCounters) -> None:
    snapshot = counters.snapshot()
    assert not snapshot.workers.any()
    assert not snapshot.histograms.any()
    assert snapshot.states == [State.STARTING] * 3
    assert snapshot.command is Command.WAIT
    assert snapshot.start_monotonic_ns is None


def test_each_slot_is_its_own(counters: LiveCounters) -> None:
    for number in range(3):
        worker = counters.worker(number)
        for slot in list(Slot)[: Slot.OUTCOME_FIRST]:
            worker.set(slot, 100 * number + slot)
        worker.set(Slot.STATE, number)
    table = counters.snapshot().workers
    assert table[:, Slot.PID : Slot.OUTCOME_FIRST].tolist() == [
        [100 * number + slot for slot in range(Slot.PID, Slot.OUTCOME_FIRST)] for number in range(3)
    ]


def test_counts_are_summed_and_peaks_are_not(counters: LiveCounters) -> None:
    for number in range(3):
        worker = counters.worker(number)
        worker.add(Slot.TOKENS, 10)
        worker.add(Slot.TOKENS)
        worker.lag(Slot.LOOP_LAG_US, Slot.LOOP_LAG_MAX_US, 50 * number)
        worker.lag(Slot.LOOP_LAG_US, Slot.LOOP_LAG_MAX_US, 7)
    snapshot = counters.snapshot()
    assert snapshot.total(Slot.TOKENS) == 33
    assert snapshot.peak(Slot.LOOP_LAG_US) == 7
    assert snapshot.peak(Slot.LOOP_LAG_MAX_US) == 100


def test_every_outcome_has_a_count_and_they_add_up(counters: LiveCounters) -> None:
    for times, outcome in enumerate(Outcome):
        for _ in range(times):
            counters.worker(times % 3).finish(outcome)
    counters.worker(0).finish("ok")
    snapshot = counters.snapshot()
    expected = {outcome: times for times, outcome in enumerate(Outcome)} | {Outcome.OK: 1}
    assert snapshot.outcomes == expected
    assert snapshot.total(Slot.FINISHED) == sum(expected.values())


def test_an_unknown_outcome_is_refused(counters: LiveCounters) -> None:
    with pytest.raises(KeyError):
        counters.worker(0).finish("vanished")


def test_the_parents_orders_reach_a_worker_that_opened_the_file(counters: LiveCounters) -> None:
    worker = LiveCounters.open(counters.path).worker(2)
    assert (worker.command, worker.start_monotonic_ns, worker.load_stop) == (Command.WAIT, 0, False)
    counters.start_at(123)
    assert (worker.command, worker.start_monotonic_ns) == (Command.RUN, 123)
    counters.stop_load()
    assert worker.load_stop
    worker.state(State.RUNNING)
    snapshot = counters.snapshot()
    assert snapshot.states == [State.STARTING, State.STARTING, State.RUNNING]
    assert 0 < snapshot.workers[2, Slot.HEARTBEAT_NS] <= snapshot.monotonic_ns
    assert snapshot.start_monotonic_ns == 123


def test_a_weaker_order_never_undoes_a_stronger_one(counters: LiveCounters) -> None:
    counters.command(Command.STOP)
    counters.command(Command.DRAIN)
    counters.start_at(1)
    assert counters.snapshot().command is Command.STOP


def test_another_process_writes_the_same_memory(counters: LiveCounters) -> None:
    code = (
        "import sys, pathlib; from servebench.record.counters import *\n"
        "worker = LiveCounters.open(pathlib.Path(sys.argv[1])).worker(1)\n"
        "worker.add(Slot.BYTES, 5_000_000_000); worker.finish('reset'); worker.observe_one('ttft', 1_000_000)\n"
    )
    subprocess.run([sys.executable, "-c", code, counters.path], check=True, timeout=60)
    snapshot = counters.snapshot()
    assert snapshot.total(Slot.BYTES) == 5_000_000_000
    assert snapshot.outcomes[Outcome.RESET] == 1
    assert snapshot.histogram("ttft").sum() == 1


def test_the_memory_outlives_its_file(counters: LiveCounters) -> None:
    worker = LiveCounters.open(counters.path).worker(0)
    counters.unlink()
    counters.unlink()
    assert not counters.path.exists()
    worker.add(Slot.TOKENS, 4)
    assert counters.snapshot().total(Slot.TOKENS) == 4


def test_the_file_is_gone_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), live_counters(1) as counters:
        assert counters.path.exists()
        raise KeyboardInterrupt
    assert not counters.path.exists()


@pytest.mark.parametrize("content", [bytes(80), b"x" * 8000])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="does not hold the counters"):
        LiveCounters.open(file)


def test_the_edges_span_10_us_to_1_h_in_steps_of_5_percent() -> None:
    assert (EDGES_NS[0], EDGES_NS[-1]) == (10_000, 3_600_000_000_000)
    assert (EDGES_NS[1:] / EDGES_NS[:-1]).max() < 1.051


@given(st.lists(st.integers(10_000, 3_599_999_999_999), min_size=1), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_a_live_quantile_is_within_a_bucket_of_the_nearest_rank(values: list[int], per_mille: int) -> None:
    with live_counters(1) as counters:
        counters.worker(0).observe("itl", np.array(values, np.int64))
        got = bucket_quantile(counters.snapshot().histogram("itl"), per_mille, 1000)
    exact = sorted(values)[max(1, -(-per_mille * len(values) // 1000)) - 1]
    assert got is not None
    assert exact / 1.052 <= got <= exact * 1.052


@pytest.mark.parametrize(("value", "expected"), [(-4, 10_000), (0, 10_000), (2**62, 3_600_000_000_000)])
def test_values_out_of_range_count_at_the_edge(counters: LiveCounters, value: int, expected: int) -> None:
    counters.worker(0).observe_one("e2e", value)
    counters.worker(0).observe("e2e", np.array([value]))
    counts = counters.snapshot().histogram("e2e")
    assert counts.sum() == 2
    assert bucket_quantile(counts, 1, 2) == expected


def test_one_and_many_agree_and_weights_count(counters: LiveCounters) -> None:
    values = np.array([1_000_000, 2_000_000, 50_000_000])
    for value in values.tolist():
        counters.worker(0).observe_one("ttft", value)
    counters.worker(1).observe("itl", values)
    counters.worker(2).observe("e2e", values, np.array([1, 5, 2]))
    snapshot = counters.snapshot()
    assert snapshot.histogram("ttft").tolist() == snapshot.histogram("itl").tolist()
    assert snapshot.histogram("e2e").sum() == 8
    assert bucket_quantile(snapshot.histogram("e2e"), 1, 2) == pytest.approx(2_000_000, rel=0.05)


def test_no_data_has_no_quantile(counters: LiveCounters) -> None:
    snapshot = counters.snapshot()
    assert [bucket_quantile(snapshot.histogram(metric), 99, 100) for metric in LIVE_METRICS] == [None] * 3
