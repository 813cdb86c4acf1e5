"""How the requests ended, over the whole run and over the cohort, in numbers that add up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servebench.analysis.data import OUTCOMES, Bools, Ints, RunData
from servebench.analysis.window import Window
from servebench.record.columns import FAILURES, Outcome


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Numbers of requests.

    Attributes:
        planned: that were due while the load lasted.
        by_outcome: of those with a record, by outcome.
        unrecorded: due, but without a record: the worker or the whole client died.
    """

    planned: int
    by_outcome: dict[str, int]
    unrecorded: int

    @property
    def ok(self) -> int:
        """Requests that ended well."""
        return self.by_outcome[Outcome.OK]

    @property
    def failed(self) -> int:
        """Requests with any of the failures (neither ok, nor dropped, nor in flight)."""
        return sum(self.by_outcome[o] for o in FAILURES)

    @property
    def dropped(self) -> int:
        """Requests that were never sent."""
        return self.by_outcome[Outcome.DROPPED]

    @property
    def in_flight(self) -> int:
        """Requests that had not ended at the end of the drain."""
        return self.by_outcome[Outcome.IN_FLIGHT]

    @property
    def sent(self) -> int:
        """Requests that were sent, by their record."""
        return self.planned - self.dropped - self.unrecorded


def count(run: RunData, window: Window, mask: Bools | None = None) -> Outcomes:
    """Outcomes of the whole run, or of the requests under `mask`, which then is that of the cohort."""
    codes = run.requests.outcome if mask is None else run.requests.outcome[mask]
    numbers = np.bincount(codes, minlength=len(OUTCOMES)).tolist()
    by_outcome = {str(outcome): number for outcome, number in zip(OUTCOMES, numbers, strict=True)}
    lost = unrecorded_due(run, window)
    if mask is not None:
        lost = lost[(lost >= window.warmup_end) & (lost < window.measured_end)]
    return Outcomes(int(codes.size) + lost.size, by_outcome, int(lost.size))


def unrecorded_due(run: RunData, window: Window) -> Ints:
    """Due times (CLOCK_REALTIME ns) of the requests that were due while the load lasted but have no record.

    In a closed loop requests have no due time, so what is missing cannot be told from what was not reached; there the
    gaps in the numbers of each worker's requests are counted, as if due at the end of the load.
    """
    recorded = run.requests.index
    if run.plan is None:
        return np.empty(0, np.int64)
    missing = np.setdiff1d(np.arange(len(run.plan)), recorded, assume_unique=True)
    if run.closed:
        return np.full(int((missing < _reached(run)[missing % _workers(run)]).sum()), window.load_end, np.int64)
    due = run.plan.scheduled_ns[missing] + window.start
    limit = window.load_end if run.load.get("requests") is None or run.incomplete else np.iinfo(np.int64).max
    return due[due < limit]


def _workers(run: RunData) -> int:
    """How many workers the plan was dealt out to, each in turn; after a kill, those that have recorded something."""
    return len(run.manifest.get("workers") or ()) or int(run.requests.worker.max(initial=0)) + 1


def _reached(run: RunData) -> Ints:
    """The last request that each worker has recorded, or −1; they do not get through their shards at one pace."""
    reached = np.full(_workers(run), -1, np.int64)
    np.maximum.at(reached, run.requests.worker, run.requests.index)
    return reached
