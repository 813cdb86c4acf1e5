"""What a worker that died took along: its requests get an outcome all the same, so that the numbers add up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from servebench.dispatch.conductor import Course
from servebench.record.columns import Outcome, RequestRecord
from servebench.record.counters import Slot, Snapshot
from servebench.record.journal import JournalWriter
from servebench.record.merge import ChunkIndex, whole_requests
from servebench.record.rundir import RunDir
from servebench.record.stream import read_table
from servebench.workload.plan import Plan

_DROPPED = Slot.OUTCOME_FIRST + tuple(Outcome).index(Outcome.DROPPED)


def record_losses(rundir: RunDir, plan: Plan, snapshot: Snapshot, dead: Sequence[int], course: Course) -> None:
    """Record the requests of dead workers that have no record: in flight where they had been sent, dropped otherwise.

    A run bounded by a count owes all of its requests, unless it was interrupted; one bounded by time those that were
    due while the load lasted, which in a closed loop are those that were sent.
    """
    recorded = whole_requests(read_table(rundir.journal_dir, "requests"), ChunkIndex.of(rundir.journal_dir))
    indices = recorded["index"].to_numpy()
    journal = JournalWriter(rundir.journal_dir, "parent")
    for worker in dead:
        rows = plan.shard(worker, len(snapshot.states))
        handled = int(snapshot.workers[worker, Slot.DISPATCHED]) + int(snapshot.workers[worker, _DROPPED])
        for position in np.flatnonzero(~np.isin(rows, indices)).tolist():
            row = int(rows[position])
            due = _due(plan, row, course)
            if position < handled:
                text = "was sent, and its worker died before it was recorded"
                journal.add(_lost(plan, row, worker, due, Outcome.IN_FLIGHT, text))
            elif _is_owed(plan, due, course):
                journal.add(_lost(plan, row, worker, due, Outcome.DROPPED, "was not sent: its worker had died"))
    journal.close()


def _is_owed(plan: Plan, due: int, course: Course) -> bool:
    if course.measured_end_ns is None and not course.interrupted:
        return True
    closed = int(plan.scheduled_ns[0]) < 0
    return not closed and course.load_end_ns is not None and due < course.load_end_ns


def _due(plan: Plan, row: int, course: Course) -> int:
    """Due time; in a closed loop, which has none, the last instant at which it could have been sent."""
    offset = int(plan.scheduled_ns[row])
    if offset < 0:
        return (course.load_end_ns or course.start_ns or 0) - 1
    return (course.start_ns or 0) + offset


def _lost(plan: Plan, row: int, worker: int, due: int, outcome: Outcome, text: str) -> RequestRecord:
    return RequestRecord(
        index=row,
        worker=worker,
        class_id=int(plan.class_id[row]),
        scheduled_ns=due,
        outcome=outcome.value,
        input_planned=int(plan.input_tokens[row]),
        output_planned=int(plan.output_tokens[row]),
        error=text,
    )
