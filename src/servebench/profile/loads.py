"""The load of a window: an isolating one for prefill and decode, the scenario's own for the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.profile.tool import Bounds
from servebench.profile.windows import Window

if TYPE_CHECKING:
    from servebench.scenario.schema import Scenario
    from servebench.workload.plan import Plan

PATIENCE_S = 900.0  # of a request: the server stands still while a profiler stores what it has
ARMING_S = 2.0  # what a window may take until it is armed
SETTLED_S = 1.0  # into the measured window
AHEAD_S = 0.4  # a profiler takes up to a quarter of a second to begin
LONG = 2.0
COMPANY_S = 1.0  # answers of requests that came so shortly before are still being written
SEARCHED_S = 60.0
LEAST_DECODING = 4
MOST_DECODING = 256
SPARE = 16  # tokens of the context that a prompt's template may take beyond its count


@dataclass(frozen=True, slots=True)
class Seen:
    """What the scenario's own run has shown, to shape the windows' loads by.

    Attributes:
        decoding: mean number of requests that decode at a time; None without any.
        itl_s: median gap between tokens, s; None without any.
        max_model_len: the server's context, tokens; None where it does not say.
    """

    decoding: float | None = None
    itl_s: float | None = None
    max_model_len: int | None = None


def decoding_requests(asked: int | None, seen: Seen) -> int:
    """How many requests decode at a time in a decode window."""
    if asked is not None:
        return asked
    return max(LEAST_DECODING, min(math.ceil(seen.decoding or 0.0), MOST_DECODING))


def begin_s(window: Window, scenario: Scenario, plan: Plan) -> float:
    """When a window of the scenario's own load begins, s after the load began.

    A mixed one begins just before a long prompt is due, so that it shows what this does to the others: one of the
    plan's longest twentieth, where these are at least twice as long as half of all, and of these the one before which
    most requests are due within a second, in the first minute. A closed loop has no due times, and other loads have no
    such prompts: there it begins as soon as the load has settled.
    """
    if window.begin_s is not None:
        return window.begin_s
    settled = scenario.load.warmup_s + SETTLED_S
    long, usual = np.quantile(plan.input_tokens, [0.95, 0.5], method="inverted_cdf")
    if scenario.load.closed is not None or long < LONG * usual:
        return settled
    due = plan.scheduled_ns / 1e9
    last = min(scenario.load.warmup_s + (scenario.load.duration or math.inf), settled + SEARCHED_S)
    documents = due[(plan.input_tokens >= long) & (due >= settled + AHEAD_S) & (due < last)]
    if not documents.size:
        return settled
    company = np.searchsorted(due, documents) - np.searchsorted(due, documents - COMPANY_S)
    return float(documents[np.argmax(company)]) - AHEAD_S


def load_of(window: Window, scenario: Scenario, plan: Plan, bounds: Bounds, concurrency: int, seen: Seen) -> Scenario:
    """The scenario whose load the window captures.

    Args:
        plan: of the scenario, whose lengths the isolating loads take: the 95th percentile of the prompts for prefill,
            the 10th for decode.
        concurrency: requests that decode at a time.
        seen: gives the length of a decode window's answers: twice what the window needs at the speed seen.
    """
    from servebench.scenario.schema import Scenario

    document = scenario.resolved()
    document["slo"] = {}
    for limit in ("idle_timeout", "timeout"):
        document["endpoint"][limit] = max(PATIENCE_S, document["endpoint"][limit])
    if window.kind == "prefill":
        _shape(document, _quantile(plan, 0.95, seen, 1), 1, 2)
        document["load"] |= {"duration": ARMING_S + bounds.seconds + 1.0}
    elif window.kind == "decode":
        prompt = _quantile(plan, 0.10, seen, 1)
        _shape(document, prompt, _answer(prompt, bounds, seen), concurrency)
        document["load"] |= {"requests": concurrency}
    return Scenario.from_resolved(document)


def _shape(document: dict[str, Any], prompt: int, answer: int, concurrency: int) -> None:
    """A closed loop of equal requests: with two of them the next prompt waits when one is done."""
    document["workload"] = {"input_tokens": prompt, "output_tokens": answer}
    document["load"] = {"closed": {"concurrency": concurrency, "think": 0.0}, "warmup": 0.0, "drain": PATIENCE_S}


def _quantile(plan: Plan, share: float, seen: Seen, answer: int) -> int:
    length = int(np.quantile(plan.input_tokens, share, method="inverted_cdf"))
    room = None if seen.max_model_len is None else seen.max_model_len - answer - SPARE
    return max(1, length if room is None else min(length, room))


def _answer(prompt: int, bounds: Bounds, seen: Seen) -> int:
    """Tokens that outlast the window, were decoding twice as fast as in the scenario's run."""
    itl = seen.itl_s or 0.02
    needed = 2.0 * (ARMING_S + bounds.seconds) / itl
    if bounds.steps is not None:
        needed = min(needed, 2.0 * ARMING_S / itl + 2.0 * bounds.steps)
    room = math.inf if seen.max_model_len is None else seen.max_model_len - prompt - SPARE
    return max(2, int(min(needed, room)))
