"""`load.*`: whether the server got the load that the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, Bools, Ints
from servebench.analysis.facts import Facts
from servebench.analysis.verdict import lengths
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured

DROPPED_FAIL = 0.05
RATE_WARN, RATE_FAIL = 0.02, 0.10
GAPS_WARN, GAPS_FAIL = 0.05, 0.25
CONCURRENCY_SHARE = 0.95
WAITED_SHARE = 0.05
WAIT_NS = 1_000_000  # a slot that comes free within a millisecond is no wait


def check(facts: Facts) -> list[Code]:
    """All codes of the family that apply to the run's kind of load."""
    shape: tuple[Callable[[Facts], Code], ...] = (concurrency, exhausted) if facts.run.closed else (rate, gaps)
    capped = (slots,) if not facts.run.closed and _capped(facts) else ()
    return [each(facts) for each in (dropped, *shape, *capped, lengths.inputs, lengths.outputs)]


def dropped(facts: Facts) -> Code:
    """Share of the planned requests that were never sent, or of which nothing is recorded."""
    numbers = facts.whole
    if not numbers.planned:
        return unmeasured("load.dropped", "%", "nothing was planned")
    lost = numbers.dropped + numbers.unrecorded
    text = f"{numbers.sent} of {numbers.planned} planned requests were sent"
    wanted = (_cap(facts) or {}).get("policy") == "drop"
    step = "the load was lighter than planned: raise load.max_in_flight" if wanted else "see client.* for the cause"
    fail = None if wanted else 100 * DROPPED_FAIL
    return above("load.dropped", 100 * lost / numbers.planned, "%", text, step, warn=0.0, fail=fail)


def rate(facts: Facts) -> Code:
    """Achieved rate: requests dispatched in the measured window against those due in it, by time."""
    planned = facts.offered.planned
    if not planned or facts.window.cohort_seconds <= 0:
        return unmeasured("load.rate", "%", "no request was due in the measured window")
    dispatched = facts.run.requests.dispatched
    got = int(((dispatched >= facts.window.warmup_end) & (dispatched < facts.window.measured_end + WAIT_NS)).sum())
    off = 100 * abs(got - planned) / planned
    seconds = facts.window.cohort_seconds
    text = f"achieved {got / seconds:.3g} requests/s of {planned / seconds:.3g} planned"
    slack = 200 / planned  # one request either side of the window's edges
    step = "the client or its slots did not keep up: see client.dispatch_late and load.max_in_flight"
    return above(
        "load.rate", off, "%", text, step, warn=max(100 * RATE_WARN, slack), fail=max(100 * RATE_FAIL, 2 * slack)
    )


def gaps(facts: Facts) -> Code:
    """How far the law of the gaps between sends is from the planned one: Wasserstein distance over the mean gap."""
    requests = facts.run.requests
    sent = facts.cohort & (requests.dispatched != MISSING)
    if int(sent.sum()) < 10:
        return unmeasured("load.gaps", "%", "too few requests to compare gaps")
    planned, got = np.diff(np.sort(requests.scheduled[sent])), np.diff(np.sort(requests.dispatched[sent]))
    mean = float(planned.mean())
    if mean <= 0:
        return unmeasured("load.gaps", "%", "all requests were due at once")
    distance = 100 * float(np.abs(np.sort(planned) - np.sort(got)).mean()) / mean
    text = f"gaps between sends are {distance:.2g} % of the mean gap away from the plan's law"
    step = "bursts were smeared out or made: see client.dispatch_late and load.max_in_flight"
    return above("load.gaps", distance, "%", text, step, warn=100 * GAPS_WARN, fail=100 * GAPS_FAIL)


def concurrency(facts: Facts) -> Code:
    """A closed loop's mean concurrency in the measured window against the asked one."""
    closed: dict[str, Any] = dict(facts.run.load["closed"])
    asked = min(int(closed["concurrency"]), max(facts.whole.planned, 1))
    window = facts.window
    got = facts.steps["concurrency"].mean(window.warmup_end, window.measured_end)
    if got is None or window.cohort_seconds < 0.1:
        return unmeasured("load.concurrency", "requests", "all requests started at once")
    text = f"{got:.1f} requests were in flight on average, of {asked} asked"
    if closed.get("think"):
        return Code("load.concurrency", Level.OK, got, None, "requests", f"{text}, think time included")
    limit = CONCURRENCY_SHARE * asked
    if got >= limit:
        return Code("load.concurrency", Level.OK, got, limit, "requests", text)
    step = "slots stood empty: a server that refuses makes them pause, else use more --workers"
    return Code("load.concurrency", Level.WARN, got, limit, "requests", text, step)


def exhausted(facts: Facts) -> Code:
    """Whether a closed loop bounded by time ran out of planned requests before its measured window was over."""
    run, window = facts.run, facts.window
    if run.plan is None or window.bounded_by == "requests" or run.incomplete:
        return Code("load.plan_exhausted", Level.OK, 0, 0, "s", "the load ended as planned")
    used, started = len(run.requests) >= len(run.plan), run.requests.dispatched
    last = int(started.max()) if started.size else window.start
    short = max(window.measured_end - last, 0) / 1e9 if used else 0.0
    text = (
        f"the plan of {len(run.plan)} requests ran out {short:.1f} s before the end" if short else "the plan sufficed"
    )
    step = "the end of the window had no load: give a shorter duration"
    return above("load.plan_exhausted", short, "s", text, step, warn=0.0, fail=0.1 * window.cohort_seconds)


def slots(facts: Facts) -> Code:
    """Share of the requests that waited for a slot under `max_in_flight` or the throttle."""
    requests = facts.run.requests
    sent: Bools = facts.cohort & (requests.dispatched != MISSING)
    if not sent.any():
        return unmeasured("load.max_in_flight", "%", "no request was sent")
    wait: Ints = np.where(requests.slot == MISSING, 0, requests.slot - requests.scheduled)[sent]
    share = 100 * float(np.mean(wait > WAIT_NS))
    text = f"{share:.1f} % of the requests waited for a slot, at most {max(int(wait.max()), 0) / 1e6:.0f} ms"
    step = "the load was no longer open: latencies from `scheduled` hold the wait; raise the cap or lower the rate"
    return above("load.max_in_flight", share, "%", text, step, warn=100 * WAITED_SHARE)


def _cap(facts: Facts) -> dict[str, Any] | None:
    cap = facts.run.load.get("max_in_flight")
    return dict(cap) if cap else None


def _capped(facts: Facts) -> bool:
    return _cap(facts) is not None or facts.run.load.get("throttle") is not None
