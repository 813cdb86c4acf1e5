"""`time.*`: whether the clock that all stamps share can be trusted."""

from __future__ import annotations

import numpy as np

from servebench.analysis.facts import Facts
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured
from servebench.clock import RATE_FAIL, RATE_WARN, STEP_FAIL_NS, Anchor, ClockCheck, check_clocks

LONGEST_GAP_S = 3.0  # heartbeats are written once a second


def check(facts: Facts) -> list[Code]:
    """All codes of the family; none for a run that never came to its first request."""
    if not len(facts.run.requests):
        return []
    stored = (facts.run.manifest.get("clocks") or {}).get("anchors") or []
    found = check_clocks([Anchor(a["realtime_ns"], a["monotonic_ns"], a["error_ns"]) for a in stored])
    return [rate(found), step(found, len(stored)), heartbeats(facts)]


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
