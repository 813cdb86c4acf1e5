"""The cold start as a table of its own: from the launch of the server to the second from which it is steady.

Shape of `cold_start` in summary.json: all that the manifest says (instants `*_ns`, durations `*_s`), and::

    {"reason": str | null,                      # why there are no stages: the server was there before the run
     "stages": [{"name": "listening" | "ready" | "first_request" | "first_token" | "load", "text": str,
                 "at_ms": 17213.4, "took_ms": 17213.4}],  # since the launch; since the stage before
     "log": {fact: value} | null,               # what the engine's log said, if the manifest has it
     "stable": {"reason": str | null, "after_load_start_ms": 2000.0 | null, "after_launch_ms": 21400.2 | null,
                "resolution_ms": 1000.0 | null, "window_median_ms": 61.2 | null, "tolerance": 0.2, "definition": str}}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, Bools, Ints
from servebench.analysis.facts import Facts
from servebench.analysis.rounding import milliseconds
from servebench.analysis.stationarity import Floats, bin_medians

STAGES = {
    "listening": "the port accepts connections",
    "ready": "/health answers",
    "first_request": "a request of one token is sent",
    "first_token": "it is answered",
    "load": "the load begins",
}
TOLERANCE = 0.20
LENGTHS_S = (1, 2, 5, 10, 20)
DEFINITION = (
    "start of the first stretch of the load from which on, to the end of the measured window, the median TTFT of every "
    "stretch is within 20 % of the window's (with several classes: of each over the window's median of its class); a "
    "stretch is the shortest of 1, 2, 5, 10 and 20 s of which those in the second half of the window are so"
)


@dataclass(frozen=True, slots=True)
class Stable:
    """When TTFT became what it was in the measured window; ns.

    Attributes:
        after: the start of the load; None with the reason.
        resolution: length of a stretch.
        median: of the window.
    """

    after: int | None
    resolution: int | None
    median: float | None
    reason: str | None = None


def find_stable(facts: Facts) -> Stable:
    """See `DEFINITION`; by the requests' due times and their TTFT."""
    run, window = facts.run, facts.window
    requests = run.requests
    known = requests.ok & (run.origin != MISSING) & (requests.first_token != MISSING)
    at, ttft = requests.scheduled[known], (requests.first_token - run.origin)[known]
    inside = (at >= window.warmup_end) & (at < window.measured_end)
    if not inside.any():
        return Stable(None, None, None, "no request of the measured window has a first token")
    median = float(np.median(ttft[inside]))
    levels = _levels(ttft, requests.class_id[known], inside)
    at, levels = at[levels > 0], levels[levels > 0]
    for length in LENGTHS_S:
        edges = np.arange(window.start, window.measured_end + 1, length * 1_000_000_000).astype(np.float64)
        steady = _steady(bin_medians(at, levels, edges))
        later = steady[(edges[:-1] >= (window.warmup_end + window.measured_end) / 2)]
        if later.size and bool(later.all()):
            return Stable(_from(steady) * length * 1_000_000_000, length * 1_000_000_000, median)
    return Stable(None, None, median, "TTFT moves by more than 20 % between stretches, or the window is too short")


def _levels(ttft: Ints, classes: Ints, inside: Bools) -> Ints:
    """TTFT in millionths of the window's median of its class; 0 for a class that the window does not hold."""
    levels = np.zeros(ttft.size, np.int64)
    for each in np.unique(classes[inside]):
        mine = classes == each
        levels[mine] = np.round(1e6 * ttft[mine] / np.median(ttft[mine & inside]))
    return levels


def _steady(medians: Floats) -> Bools:
    """Which stretches are within the tolerance; an empty one does not speak against it."""
    steady: Bools = np.isnan(medians) | (np.abs(medians / 1e6 - 1) <= TOLERANCE)
    return steady


def _from(steady: Bools) -> int:
    """First stretch from which all are steady."""
    moved = np.flatnonzero(~steady)
    return int(moved[-1]) + 1 if moved.size else 0


def describe(facts: Facts) -> dict[str, Any]:
    """The `cold_start` section of summary.json."""
    told: dict[str, Any] = dict(facts.run.manifest.get("cold_start") or {})
    log = told.pop("log", None)
    launch = told.get("launch_ns")
    return {
        **told,
        "reason": None if launch is not None else "the server was not started by this run",
        "stages": stages(told, facts.window.start) if launch is not None else [],
        "log": log,
        "stable": _stable(find_stable(facts), facts.window.start, launch),
    }


def stages(told: dict[str, Any], load: int) -> list[dict[str, Any]]:
    """The stages that are known, in order; `load` is the start of the load (CLOCK_REALTIME ns)."""
    instants = {name: told.get(f"{name}_ns") for name in STAGES} | {"load": load}
    launch = before = int(told["launch_ns"])
    found = []
    for name, text in STAGES.items():
        at = instants[name]
        if at is not None:
            took, before = int(at) - before, int(at)
            found.append(
                {"name": name, "text": text, "at_ms": milliseconds(at - launch), "took_ms": milliseconds(took)}
            )
    return found


def _stable(found: Stable, start: int, launch: int | None) -> dict[str, Any]:
    since = None if found.after is None or launch is None else start + found.after - launch
    return {
        "reason": found.reason,
        "after_load_start_ms": milliseconds(found.after),
        "after_launch_ms": milliseconds(since),
        "resolution_ms": milliseconds(found.resolution),
        "window_median_ms": milliseconds(found.median),
        "tolerance": TOLERANCE,
        "definition": DEFINITION,
    }
