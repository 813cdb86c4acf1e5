"""How well the run was sampled, and what a series says at an instant between two samples.

Shape of `telemetry` in summary.json::

    {"reason": str | null,                      # why nothing was sampled at all
     "cpu_share": 0.004 | null,                 # of one core, all sampling together
     "sources": {"nvml": {"state": "sampled" | "absent" | "lost", "reason": str | null, "asked_hz", "achieved_hz",
                          "samples", ..., all that the manifest says of it,
                          "series": 24,          # series stored
                          "rows": 28800,         # values stored
                          "longest_gap_ms": 51.2 | null}}}   # longest time without any sample in the measured window
"""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.data import Ints, RunData, Series
from servebench.analysis.facts import Facts
from servebench.analysis.rounding import milliseconds, rounded

OURS = "client"  # the workers' own heartbeats, which are no telemetry source of their own


def value_at(series: Series, instant: int) -> float | None:
    """Value of a series at an instant, on the line between its neighbours; None where it has none on one side."""
    if not series.t.size or not series.t[0] <= instant <= series.t[-1]:
        return None
    since = (series.t - instant).astype(np.float64)  # whole instants have more digits than a float
    return float(np.interp(0.0, since, series.value))


def longest_gap(t: Ints, start: int, end: int) -> int | None:
    """Longest time in [start, end] without a sample, ns, from edge to edge; None where no sample bears on it."""
    if not t.size or end <= start:
        return None
    inside = t[(t > start) & (t < end)]
    return int(np.diff(np.concatenate([[start], inside, [end]])).max())


def covers(t: Ints, start: int, end: int) -> bool:
    """Whether there are samples on both sides of [start, end]."""
    return bool(t.size) and int(t[0]) <= start and int(t[-1]) >= end


def told(run: RunData, source: str) -> dict[str, Any]:
    """What the manifest says of a source; empty for nothing."""
    sources: dict[str, Any] = (run.manifest.get("telemetry") or {}).get("sources") or {}
    return dict(sources.get(source) or {})


def absent(run: RunData, source: str, what: str) -> str:
    """Why there is nothing of a source, in the manifest's words if it has any."""
    reason = told(run, source).get("reason")
    return f"{what}: {reason}" if reason else f"{what}: not sampled in this run"


def describe(facts: Facts) -> dict[str, Any]:
    """The `telemetry` section of summary.json."""
    run = facts.run
    stated: dict[str, Any] = run.manifest.get("telemetry") or {}
    stored = {source for source, _, _ in run.telemetry} - {OURS}
    names = sorted(stored | set(stated.get("sources") or {}))
    return {
        "reason": None if names else stated.get("reason") or "no telemetry was asked for",
        "cpu_share": rounded(stated.get("cpu_share")),
        "sources": {name: _source(facts, name) for name in names},
    }


def instants(run: RunData, source: str) -> Ints:
    """When a source was sampled (ns): of each device the instants of its fullest series."""
    fullest: dict[str, Ints] = {}
    for (name, device, _), series in run.telemetry.items():
        if name == source and series.t.size >= fullest.get(device, series.t[:0]).size:
            fullest[device] = series.t
    return np.unique(np.concatenate([np.empty(0, np.int64), *fullest.values()]))


def _source(facts: Facts, source: str) -> dict[str, Any]:
    mine = [series for (name, _, _), series in facts.run.telemetry.items() if name == source]
    t = instants(facts.run, source)
    blank = {"state": "sampled" if t.size else "absent", "reason": None, "samples": int(t.size)}
    return {
        **blank,
        **told(facts.run, source),
        "series": len(mine),
        "rows": sum(s.t.size for s in mine),
        "longest_gap_ms": milliseconds(longest_gap(t, facts.window.warmup_end, facts.window.throughput_end)),
    }
