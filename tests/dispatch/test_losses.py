"""What a dead worker took along: each of its requests gets an outcome, and no other request is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servebench.dispatch.conductor import Course
from servebench.dispatch.losses import record_losses
from servebench.record.columns import RequestRecord
from servebench.record.counters import LiveCounters, Slot
from servebench.record.journal import JournalWriter
from servebench.record.rundir import RunDir
from servebench.workload.plan import Plan

MS = 1_000_000
START = 1_796_000_000_000_000_000


def make_plan(due_ms: list[int]) -> Plan:
    rows = len(due_ms)
    zeros = {name: np.zeros(rows, np.int32) for name in ("input_tokens", "output_tokens", "prefix_tokens")}
    return Plan(
        scheduled_ns=np.array([ms * MS if ms >= 0 else -1 for ms in due_ms], np.int64),
        class_id=np.zeros(rows, np.int16),
        content_seed=np.zeros(rows, np.int64),
        prefix_group=np.full(rows, -1, np.int32),
        **zeros,
    )


def record(index: int, worker: int) -> RequestRecord:
    fields: dict[str, Any] = dict.fromkeys(RequestRecord.__struct_fields__)
    fields |= {"index": index, "worker": worker, "class_id": 0, "scheduled_ns": START, "outcome": "ok"}
    fields |= {"input_planned": 1, "output_planned": 1, "chunks": 0, "first_chunk_tokens": 0}
    fields |= {"bytes_received": 0, "coalesced_reads": 0}
    return RequestRecord(**fields)


def lose(
    folder: Path,
    plan: Plan,
    recorded: list[int],
    sent: int,
    dropped: int = 0,
    end_ms: int | None = 1000,
    by_count: bool = False,
    interrupted: bool = False,
) -> dict[int, tuple[str, int]]:
    """Outcome and due time (ms) of the rows that worker 1 of 2 loses, having sent and dropped so many."""
    rundir = RunDir.create(folder)
    for worker in (0, 1):
        journal = JournalWriter(rundir.journal_dir, worker)
        for index in recorded:
            if index % 2 == worker:
                journal.add(record(index, worker))
        journal.close()
    counters = LiveCounters.create(2)
    try:
        dead = counters.worker(1)
        dead.set(Slot.DISPATCHED, sent)
        for _ in range(dropped):
            dead.finish("dropped")
        load_end = None if end_ms is None else START + end_ms * MS
        measured = None if by_count else START + 10**12
        course = Course(START, START, measured, load_end, load_end, interrupted=interrupted)
        record_losses(rundir, plan, counters.snapshot(), [1], course)
    finally:
        counters.unlink()
    rows = rundir.requests().to_pylist()
    lost = [row for row in rows if row["index"] not in recorded]
    assert len(rows) == len(recorded) + len(lost)
    assert all(row["worker"] == 1 and row["error"] for row in lost)
    return {row["index"]: (row["outcome"], (row["scheduled_ns"] - START) // MS) for row in lost}


def test_an_open_loop_by_time(run_path: Path) -> None:
    plan = make_plan(list(range(0, 2000, 100)))  # the dead worker had rows 1, 3, 5, .. due at 100, 300, 500 ms, ..
    lost = lose(run_path, plan, recorded=[0, 1, 2, 4, 6, 8], sent=3)
    assert lost == {
        3: ("in_flight", 300),
        5: ("in_flight", 500),
        7: ("dropped", 700),
        9: ("dropped", 900),
    }


def test_a_run_by_count_owes_all_of_its_requests(run_path: Path) -> None:
    plan = make_plan(list(range(0, 2000, 400)))
    assert lose(run_path, plan, recorded=[0], sent=0, end_ms=100, by_count=True) == {
        1: ("dropped", 400),
        3: ("dropped", 1200),
    }


def test_unless_it_was_interrupted(run_path: Path) -> None:
    plan = make_plan(list(range(0, 2000, 400)))
    lost = lose(run_path, plan, recorded=[0], sent=0, end_ms=500, by_count=True, interrupted=True)
    assert lost == {1: ("dropped", 400)}


@pytest.mark.parametrize("by_count", [True, False])
def test_a_closed_loop(by_count: bool, run_path: Path) -> None:
    lost = lose(run_path, make_plan([-1] * 8), recorded=[0, 1, 2], sent=3, by_count=by_count)
    sent = {3: ("in_flight", 999), 5: ("in_flight", 999)}
    assert lost == (sent | {7: ("dropped", 999)} if by_count else sent)


def test_dropped_requests_are_no_gap_in_what_was_sent(run_path: Path) -> None:
    plan = make_plan(list(range(0, 800, 100)))
    lost = lose(run_path, plan, recorded=[0, 2, 4, 6, 1, 3], sent=1, dropped=2)
    assert lost == {5: ("in_flight", 500), 7: ("dropped", 700)}


def test_nothing_lost_is_nothing_recorded(run_path: Path) -> None:
    assert lose(run_path, make_plan([0, 1, 2, 3]), recorded=[0, 1, 2, 3], sent=2) == {}


def test_chunks_that_were_written_when_their_request_was_not_are_left_out(run_path: Path) -> None:
    rundir = RunDir.create(run_path)
    journal = JournalWriter(rundir.journal_dir, 1)
    journal.add(record(1, 1))
    journal.flush()
    torn = [np.array([3, 3]), np.array([START, START + 1]), np.array([1, 1]), np.array([0, 0]), np.array([9, 9])]
    journal._streams["chunks"].write(torn)  # and here the worker was killed
    counters = LiveCounters.create(2)
    try:
        counters.worker(1).set(Slot.DISPATCHED, 2)
        course = Course(START, START, None, START + MS, START + MS)
        record_losses(rundir, make_plan([0, 0, 0, 0]), counters.snapshot(), [1], course)
    finally:
        counters.unlink()
        journal.close()
    for _ in range(2):  # from the journals, and merged
        rows = rundir.requests().to_pylist()
        assert [(row["index"], row["outcome"], row["chunks"]) for row in rows] == [(1, "ok", 0), (3, "in_flight", 0)]
        assert rundir.chunks().num_rows == 0
        rundir.finalise()
