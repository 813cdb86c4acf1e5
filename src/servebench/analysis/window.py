"""The phases of a run, its measured window, and the cohort whose latencies are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, Bools, Ints, Requests, RunData
from servebench.analysis.stationarity import Truncation, mser5
from servebench.analysis.steps import in_flight

AUTO_BINS = 200


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

    def cohort(self, requests: Requests) -> Bools:
        """Mask of the requests that were scheduled inside the measured window."""
        return (requests.scheduled >= self.warmup_end) & (requests.scheduled < self.measured_end)

    def holds(self, instants: Ints) -> Bools:
        """Mask of the instants inside the window over which throughput is counted."""
        return (instants >= self.warmup_end) & (instants < self.throughput_end)


def find_window(run: RunData) -> Window:
    """Derive the phases from the manifest, and from what was recorded where the manifest has no instant."""
    phases: dict[str, int | None] = dict(run.manifest.get("phases") or {})
    requests, by_count = run.requests, run.load.get("requests") is not None
    last = _last_event(run)
    start = _first_known(phases.get("start_ns"), _earliest(requests.scheduled), last)
    end = max(_first_known(phases.get("end_ns"), last), start)
    load_end = min(_first_known(phases.get("load_end_ns"), _last_scheduled(requests, start), end), end)
    warmup_end, truncation = _warmup_end(run, phases, start, load_end)
    notes: list[str] = []
    if by_count:
        measured_end = max(_last_scheduled(requests, start) + 1, warmup_end)
        notes.append("bounded by a request count: no cool-down, so the last requests saw a falling load")
    else:
        measured_end = max(_first_known(_reached(run, phases, load_end), load_end + 1), warmup_end)
    window = Window(
        start, warmup_end, measured_end, measured_end, load_end, end, "requests" if by_count else "duration"
    )
    throughput_end = _throughput_end(requests, window)
    if throughput_end != measured_end:
        notes.append("throughput runs to the last end, ramp-down included: most requests ended after the last was due")
    return Window(
        start, warmup_end, measured_end, throughput_end, load_end, end, window.bounded_by, truncation, tuple(notes)
    )


def _reached(run: RunData, phases: dict[str, int | None], load_end: int) -> int | None:
    """The stated end of the measured window; or, when the run was cut short, at most the end of the load."""
    stated = phases.get("measured_end_ns")
    if stated is None or run.manifest.get("status") == "complete":
        return stated
    return min(stated, load_end + 1)


def _warmup_end(run: RunData, phases: dict[str, Any], start: int, load_end: int) -> tuple[int, Truncation | None]:
    """The stated end of the warm-up; or, with `warmup: auto`, the later of the cuts of in-flight and latency."""
    if run.load.get("warmup") != "auto":
        stated = phases.get("warmup_end_ns")
        return (load_end if stated is None and run.load.get("warmup") else _first_known(stated, start)), None
    span = load_end - start
    edges = np.linspace(start, load_end, AUTO_BINS + 1)
    level = mser5(in_flight(run.requests, load_end).bin_means(edges)) if span > 0 else Truncation(0.0, False)
    latency = _latency_truncation(run, start, span)
    cut = max(level, latency, key=lambda t: t.share)
    rejected = level.rejected or latency.rejected
    return (start, Truncation(cut.share, True)) if rejected else (start + round(cut.share * span), cut)


def _latency_truncation(run: RunData, start: int, span: int) -> Truncation:
    """MSER-5 on the latencies in the order of arrival, as a share of the time rather than of the requests."""
    requests = run.requests
    rows = np.flatnonzero(requests.ok & (run.origin != MISSING) & (requests.scheduled >= start))
    rows = rows[np.argsort(requests.scheduled[rows], kind="stable")]
    found = mser5((requests.last_token[rows] - run.origin[rows]) / 1e9)
    if not rows.size or span <= 0:
        return found
    first = rows[min(round(found.share * rows.size), rows.size - 1)]
    share = float(requests.scheduled[first] - start) / span if found.share else 0.0
    return Truncation(share, found.rejected)


def _throughput_end(requests: Requests, window: Window) -> int:
    """Extend the window to the last end when a run by count was so short that most of its cohort ended after it."""
    ends = requests.end[window.cohort(requests) & (requests.end != MISSING)]
    if window.bounded_by == "duration" or not ends.size or np.mean(ends < window.measured_end) >= 0.5:
        return window.measured_end
    return int(ends.max()) + 1


def _last_event(run: RunData) -> int:
    requests = run.requests
    latest = [int(c.max()) for c in (requests.end, requests.sent, requests.scheduled, requests.last_token) if c.size]
    if len(run.chunks):
        latest.append(int(run.chunks.arrival.max()))
    return max(latest, default=0)


def _earliest(instants: Ints) -> int | None:
    known = instants[instants > 0]
    return int(known.min()) if known.size else None


def _last_scheduled(requests: Requests, start: int) -> int:
    return max(start, int(requests.scheduled.max())) if len(requests) else start


def _first_known(*instants: int | None) -> int:
    return next((i for i in instants if i is not None), 0)
