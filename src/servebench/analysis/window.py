"""The phases of a run, its measured window, and the cohort whose latencies are reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, Bools, Ints, Requests, RunData
from servebench.analysis.stationarity import Truncation, mser5
from servebench.analysis.steps import in_flight

AUTO_BINS = 200
BY_COUNT = "bounded by a request count: no cool-down, so the last requests saw a falling load"
RAMP_DOWN = "throughput runs to the last end, ramp-down included: most requests ended after the last one was due"
DERIVED = "the phases were never stored; they are derived from the scenario and the requests"


@dataclass(frozen=True, slots=True)
class Window:
    """The instants that divide a run; CLOCK_REALTIME ns.

    Attributes:
        start: the load begins; warm-up begins.
        warmup_end: the measured window begins.
        measured_end: the cohort ends; it holds the requests with warmup_end ≤ scheduled < measured_end.
        throughput_end: end of the window over which events are counted; later than `measured_end` only when a run
            bounded by a request count was too short to hold most of its own ends.
        load_end: the last request was sent.
        end: everything has ended.
        bounded_by: ``duration`` or ``requests``.
        truncation: what `warmup: auto` found; None where the warm-up was given.
        notes: what the reader must know of the window.
    """

    start: int
    warmup_end: int
    measured_end: int
    throughput_end: int
    load_end: int
    end: int
    bounded_by: str
    truncation: Truncation | None = None
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Length of the window over which throughput is counted."""
        return (self.throughput_end - self.warmup_end) / 1e9

    @property
    def cohort_seconds(self) -> float:
        """Length of the window in which the cohort was scheduled."""
        return (self.measured_end - self.warmup_end) / 1e9

    def cohort(self, run: RunData) -> Bools:
        """Mask of the requests that were scheduled inside the measured window."""
        due = due_times(run, self.start)
        return (due >= self.warmup_end) & (due < self.measured_end)

    def holds(self, instants: Ints) -> Bools:
        """Mask of the instants inside the window over which throughput is counted."""
        return (instants >= self.warmup_end) & (instants < self.throughput_end)


def due_times(run: RunData, start: int) -> Ints:
    """When each request was due, `start` being the zero of the plan.

    In an open loop this is the plan's offset: `scheduled` is the same instant by each worker's own reading of the two
    clocks, whose error of some ns would put a request that is due exactly at a border now inside and now outside.
    """
    if run.closed or run.plan is None:
        return run.requests.scheduled
    return start + run.plan.scheduled_ns[run.requests.index]


def find_window(run: RunData) -> Window:
    """Derive the phases from the manifest, and from scenario and requests where it was never told (after a kill)."""
    phases: Mapping[str, int | None] = run.manifest.get("phases") or {}
    requests, by_count = run.requests, run.load.get("requests") is not None
    start = _start(run, phases)
    end = max(_known(phases.get("end_ns"), _last_event(run)), start)
    load_end = min(_known(phases.get("load_end_ns"), _last_scheduled(requests, start)), end)
    warmup_end, truncation = _warmup_end(run, phases, start, load_end)
    measured_end = max(_measured_end(run, phases, start, load_end, by_count), warmup_end)
    throughput_end = _throughput_end(requests, warmup_end, measured_end) if by_count else measured_end
    notes = ((BY_COUNT, by_count), (RAMP_DOWN, throughput_end > measured_end), (DERIVED, not phases))
    return Window(
        start=start,
        warmup_end=warmup_end,
        measured_end=measured_end,
        throughput_end=throughput_end,
        load_end=load_end,
        end=end,
        bounded_by="requests" if by_count else "duration",
        truncation=truncation,
        notes=tuple(note for note, applies in notes if applies),
    )


def _start(run: RunData, phases: Mapping[str, int | None]) -> int:
    """The zero of the plan: in an open loop exactly, from any request; in a closed one the first free slot.

    A worker's reading of the clocks may put its first slot some ns before the stated start.
    """
    requests, stated = run.requests, phases.get("start_ns")
    if not len(requests):
        return _known(stated, 0)
    if run.closed or run.plan is None:
        first = int(requests.scheduled.min())
        return min(first, _known(stated, first))
    if stated is not None:
        return stated
    return int(np.median(requests.scheduled - run.plan.scheduled_ns[requests.index]))


def _warmup_end(
    run: RunData, phases: Mapping[str, int | None], start: int, load_end: int
) -> tuple[int, Truncation | None]:
    """The stated end of the warm-up; or, with `warmup: auto`, the later of the cuts of in-flight and latency."""
    stated: Any = run.load.get("warmup") or 0.0
    if stated != "auto":
        return (_known(phases.get("warmup_end_ns"), start + round(stated * 1e9)) if stated else start), None
    found = (_level_truncation(run, start, load_end), _latency_truncation(run, start, load_end))
    cut = max(found, key=lambda t: t.share)
    if any(t.rejected for t in found):
        return start, Truncation(cut.share, True)
    return start + round(cut.share * (load_end - start)), cut


def _level_truncation(run: RunData, start: int, load_end: int) -> Truncation:
    """MSER-5 on the requests in flight, time-weighted over equal bins."""
    if load_end <= start:
        return Truncation(0.0, False)
    return mser5(in_flight(run.requests, load_end).bin_means(np.linspace(start, load_end, AUTO_BINS + 1)))


def _latency_truncation(run: RunData, start: int, load_end: int) -> Truncation:
    """MSER-5 on the latencies in the order of arrival, as a share of the time rather than of the requests."""
    requests = run.requests
    rows = np.flatnonzero(requests.ok & (run.origin != MISSING) & (requests.scheduled >= start))
    rows = rows[np.argsort(requests.scheduled[rows], kind="stable")]
    found = mser5((requests.last_token[rows] - run.origin[rows]) / 1e9)
    if not found.share or load_end <= start:
        return found
    first = rows[min(round(found.share * rows.size), rows.size - 1)]
    return Truncation(float(requests.scheduled[first] - start) / (load_end - start), found.rejected)


def _measured_end(run: RunData, phases: Mapping[str, int | None], start: int, load_end: int, by_count: bool) -> int:
    """The stated end of the measured window, but not later than the load when the run was cut short."""
    if by_count:
        return _last_scheduled(run.requests, start) + 1
    stated: Any = run.load.get("warmup") or 0.0
    length = float(run.load.get("duration") or 0.0) + (0.0 if stated == "auto" else stated)
    planned = _known(phases.get("measured_end_ns"), start + round(length * 1e9))
    return planned if run.manifest.get("status") == "complete" else min(planned, load_end + 1)


def _throughput_end(requests: Requests, warmup_end: int, measured_end: int) -> int:
    """Extend the window of a run by count to its last end when most of its cohort ended after the last was due."""
    cohort = (requests.scheduled >= warmup_end) & (requests.scheduled < measured_end)
    ends = requests.end[cohort & (requests.end != MISSING)]
    if not ends.size or float(np.mean(ends < measured_end)) >= 0.5:
        return measured_end
    return int(ends.max()) + 1


def _last_event(run: RunData) -> int:
    requests = run.requests
    columns = (requests.end, requests.sent, requests.scheduled, requests.last_token, run.chunks.arrival)
    return max((int(column.max()) for column in columns if column.size), default=0)


def _last_scheduled(requests: Requests, start: int) -> int:
    return max(start, int(requests.scheduled.max())) if len(requests) else start


def _known(stated: int | None, otherwise: int) -> int:
    return otherwise if stated is None else stated
