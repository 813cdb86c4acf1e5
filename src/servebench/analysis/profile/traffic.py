"""Whether a capture saw the traffic that it was meant for, by the client's stamps and the names of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, RunData
from servebench.analysis.phases import PHASES, Phases, combine, prefills, weighted
from servebench.analysis.profile.finding import percent
from servebench.analysis.profile.step_names import KINDS
from servebench.analysis.profile.stepping import Steps
from servebench.analysis.rounding import rounded
from servebench.analysis.steps import StepFunction, decoding, in_flight, prefilling

# A window of pure prefill or decode loses its edges: one request's first token may fall into it, not a tenth of it.
LEAST_SHARE = 0.9
MEANT = {"prefill": "prefill_only", "decode": "decode_only"}  # kind of window: phase, and kind of step
UNWANTED = {
    "prefill": (("decode_only", "mixed"), "requests in decode"),
    "decode": (("prefill_only", "mixed"), "requests in prefill"),
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the client had in flight during a window.

    Attributes:
        phases: of the whole run, for what else needs them.
        shares: of the window's time in each of `PHASES`.
        mean, peak: requests in flight.
        requests: how many were in flight at any time of it.
    """

    phases: Phases
    shares: dict[str, float]
    mean: float
    peak: int
    requests: int


def find_traffic(run: RunData, start: int, end: int) -> Traffic:
    """The traffic within [start, end), which must not be empty; ns."""
    requests = run.requests
    last = max(end, _last(run))
    phases = combine(prefilling(requests, last), decoding(requests, last), weighted(*prefills(requests, last)))
    flight: StepFunction = in_flight(requests, last)
    sent = requests.sent != MISSING
    until = np.where(requests.end == MISSING, last, requests.end)
    active = sent & (requests.sent < end) & (until > start)
    spent = phases.time_in(start, end)
    shares = {name: spent[name] / (end - start) for name in PHASES}
    return Traffic(phases, shares, flight.mean(start, end) or 0.0, flight.peak(start, end), int(active.sum()))


def as_meant(kind: str, traffic: Traffic, steps: Steps) -> tuple[bool | None, str | None]:
    """Whether a window of this kind met its traffic, and why not; None for a window that was meant for none."""
    if kind not in (*MEANT, "mixed", "range"):
        return None, "the window was meant for no particular traffic"
    if not traffic.requests:
        return False, "no request was in flight during the window"
    if kind not in MEANT:
        return True, None
    reasons = [reason for reason in (_by_client(kind, traffic), _by_steps(kind, steps)) if reason]
    return not reasons, "; ".join(reasons) or None


def describe(kind: str, traffic: Traffic, steps: Steps) -> dict[str, Any]:
    """The `traffic` section."""
    met, reason = as_meant(kind, traffic, steps)
    return {
        "shares": {name: rounded(share) for name, share in traffic.shares.items()},
        "in_flight": {"mean": rounded(traffic.mean), "max": traffic.peak},
        "requests": traffic.requests,
        "as_meant": met,
        "reason": reason,
    }


def _by_client(kind: str, traffic: Traffic) -> str | None:
    phase = MEANT[kind]
    working = 1 - traffic.shares["idle"]
    share = traffic.shares[phase] / working if working > 0 else 0.0
    if share >= LEAST_SHARE:
        return None
    return (
        f"by the client's stamps {percent(share)} of the time with requests in flight was {phase.replace('_', ' ')}, "
        f"and a {kind} window needs {percent(LEAST_SHARE)}"
    )


def _by_steps(kind: str, steps: Steps) -> str | None:
    kinds, text = UNWANTED[kind]
    number = int(np.isin(steps.kind, [KINDS.index(each) for each in kinds]).sum())
    return f"{number} of {len(steps)} steps had {text}, by their names" if number else None


def _last(run: RunData) -> int:
    requests = run.requests
    columns = (requests.sent, requests.end, requests.last_token)
    return max((int(column.max()) for column in columns if column.size), default=0)
