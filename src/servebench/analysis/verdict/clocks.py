"""`time.*`: whether the clock that all stamps share can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from servebench.analysis.facts import Facts
from servebench.analysis.sampling import longest_gap
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured
from servebench.clock import RATE_FAIL, RATE_WARN, STEP_FAIL_NS, Anchor, ClockCheck, check_clocks

LONGEST_GAP_S = 3.0  # heartbeats are written once a second
LEAST_GAP_S, GAP_PERIODS = 1.0, 3  # a source may be silent for the longer of these


def check(facts: Facts) -> list[Code]:
    """All codes of the family; none for a run that never came to its first request."""
    if not len(facts.run.requests):
        return []
    stored = (facts.run.manifest.get("clocks") or {}).get("anchors") or []
    found = check_clocks([Anchor(a["realtime_ns"], a["monotonic_ns"], a["error_ns"]) for a in stored])
    codes = [rate(found), step(found, len(stored)), heartbeats(facts)]
    sources = (facts.run.manifest.get("telemetry") or {}).get("sources") or {}
    if any(source.get("state") in ("sampled", "lost") for source in sources.values()):
        codes.append(telemetry_gap(facts, sources))
    return codes


def rate(found: ClockCheck) -> Code:
    """The rate of the wall clock against the monotonic one."""
    if found.rate_error is None:
        why = "fewer than two clock anchors are stored, so the clocks cannot be compared"
        return unmeasured("time.rate", "%", why, level=Level.WARN, step="durations rest on an unchecked wall clock")
    error = 100 * found.rate_error
    text = f"the wall clock ran {error:.4f} % off the monotonic clock"
    step = "the wall clock is being slewed: let NTP settle, then run again"
    return above("time.rate", error, "%", text, step, warn=100 * RATE_WARN, fail=100 * RATE_FAIL)


def step(found: ClockCheck, anchors: int) -> Code:
    """The largest step of the wall clock."""
    if anchors < 2:
        return unmeasured("time.step", "ms", "fewer than two clock anchors are stored")
    jumped = found.largest_step_ns / 1e6
    text = f"the wall clock stepped by at most {jumped:.3f} ms between two of {anchors} anchors"
    todo = "stamps before and after the step cannot be compared: stop what sets the clock, then run again"
    return above("time.step", jumped, "ms", text, todo, fail=STEP_FAIL_NS / 1e6)


def heartbeats(facts: Facts) -> Code:
    """The longest silence of any worker, which writes a sample a second."""
    series = facts.run.workers("loop_lag_ms")
    if not series:
        why = "no worker left any heartbeat"
        step = "the client's health is unknown: do not trust close calls"
        return unmeasured("time.heartbeats", "s", why, level=Level.WARN, step=step)
    longest, worker = max((float(np.diff(s.t).max(initial=0)) / 1e9, d) for d, s in series.items())
    text = f"the longest gap between two heartbeats of a worker was {longest:.1f} s ({worker})"
    step = "the client was stopped or starved meanwhile: run again on a machine that is free"
    return above("time.heartbeats", longest, "s", text, step, warn=LONGEST_GAP_S)


def telemetry_gap(facts: Facts, sources: Mapping[str, Any]) -> Code:
    """The longest silence inside the measured window of any source that was sampled, against its own period."""
    step = "what happened meanwhile is not known: see telemetry in the report for the reason, then run again"
    lost = [name for name, source in sources.items() if source.get("state") == "lost"]
    if lost:
        why = f"{', '.join(lost)}: {sources[lost[0]].get('reason')}"
        return unmeasured("time.telemetry_gap", "s", why, level=Level.WARN, step=step)
    silences = {name: _silence(facts, name) for name, source in sources.items() if source.get("state") == "sampled"}
    limits = {name: max(LEAST_GAP_S, GAP_PERIODS / (sources[name].get("asked_hz") or GAP_PERIODS)) for name in silences}
    worst = max(silences, key=lambda name: silences[name] / limits[name])
    text = f"the longest silence of a source was {silences[worst]:.2f} s ({worst})"
    if failures := sources[worst].get("failures"):
        text += f"; {sum(failures.values())} of its samples failed, mostly: {max(failures, key=failures.get)}"
    return above("time.telemetry_gap", silences[worst], "s", text, step, warn=limits[worst])


def _silence(facts: Facts, source: str) -> float:
    """Longest time in the window without a value, s; that a server does not answer is no value of it."""
    window = facts.window
    known = [s.t for (name, _, series), s in facts.run.telemetry.items() if name == source and series != "up"]
    t = np.unique(np.concatenate(known)) if known else np.empty(0, np.int64)
    gap = longest_gap(t, window.warmup_end, window.throughput_end)
    return (window.throughput_end - window.warmup_end if gap is None else gap) / 1e9
