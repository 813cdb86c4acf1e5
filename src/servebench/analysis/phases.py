"""What the server had to do at each instant, from the client's own stamps: idle, prefill only, decode only, or both.

Exact step functions of the whole run, not of the cohort: a server knows nothing of cohorts.

Shape of `phases_joined` in summary.json (its `tables` are of `join`); what does not exist is null::

    {"reason": str | null,                      # why there is nothing: no request was sent, or no window
     "window_ms": 60000.0, "changes": 812,      # changes of phase inside the measured window
     "shares": {"idle": 0.1, "prefill_only": 0.1, "decode_only": 0.5, "mixed": 0.3},   # of the window's time; sum 1
     "time_ms": {the same keys},
     "prefill": {"mean": 1.2, "max": 4, "unit": "requests"}, "decode": {...}, "prefill_tokens": {..., "unit": "tokens"},
     "definitions": {phase: text, "prefill_tokens": text},
     "population": str,
     "tables": [...]}                           # see join
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import MISSING, Ints, Requests
from servebench.analysis.facts import Facts
from servebench.analysis.rounding import milliseconds, rounded
from servebench.analysis.steps import StepFunction

PHASES = ("idle", "prefill_only", "decode_only", "mixed")  # a request in prefill counts 1, one in decode 2
DEFINITIONS = {
    "idle": "no request between sent and its last token",
    "prefill_only": "at least one request between sent and its first token, none between first and last token",
    "decode_only": "at least one request between its first and its last token, none before its first",
    "mixed": "both",
    "prefill_tokens": "prompt tokens (by the server's count, else as planned; less those it found in its cache) of the "
    "requests between sent and first token",
}

Codes = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Phases:
    """Step functions of time and the phase that follows from them.

    Attributes:
        prefill, decode: requests between sent and first token, and between first and last token.
        prefill_tokens: prompt tokens of the former.
        t: int64 ns, sorted: the instants at which the phase may change.
        code: index into `PHASES` from t[i] to t[i + 1]; before the first it is idle.
    """

    prefill: StepFunction
    decode: StepFunction
    prefill_tokens: StepFunction
    t: Ints
    code: Codes

    def at(self, instants: Ints) -> Codes:
        """Phase at each instant, as index into `PHASES`."""
        where = np.searchsorted(self.t, instants, side="right")
        return np.concatenate([np.zeros(1, np.int8), self.code])[where]

    def time_in(self, start: int, end: int) -> dict[str, int]:
        """Nanoseconds of [start, end) in each phase; they add up to its length."""
        edges = self._edges(start, end)
        spent = np.bincount(self.at(edges[:-1]), weights=np.diff(edges), minlength=len(PHASES))
        return {name: int(ns) for name, ns in zip(PHASES, spent, strict=True)}

    def changes(self, start: int, end: int) -> int:
        """How often the phase changes inside (start, end)."""
        return int(np.count_nonzero(np.diff(self.at(self._edges(start, end)[:-1]))))

    def _edges(self, start: int, end: int) -> Ints:
        inside = self.t[(self.t > start) & (self.t < end)]
        return np.concatenate([[start], inside, [max(end, start)]]).astype(np.int64)


def find(facts: Facts) -> Phases:
    """The phases of a run."""
    prefill, decode = facts.steps["prefill_concurrency"], facts.steps["decode_concurrency"]
    begin, end, tokens = prefills(facts.run.requests, facts.window.end)
    return combine(prefill, decode, weighted(begin, end, tokens))


def combine(prefill: StepFunction, decode: StepFunction, prefill_tokens: StepFunction) -> Phases:
    """Make the phases of the step functions."""
    t = np.union1d(prefill.t, decode.t)
    code = (level_at(prefill, t) > 0) + 2 * (level_at(decode, t) > 0)
    return Phases(prefill, decode, prefill_tokens, t, code.astype(np.int8))


def prefills(requests: Requests, end: int) -> tuple[Ints, Ints, Ints]:
    """Begin, end (ns) and prompt tokens of the prefill of each request that was sent, in the order of the requests.

    A prefill ends with the first token; of a request that never had one, with the request; of one in flight, at `end`.
    """
    sent = requests.sent != MISSING
    begin = requests.sent[sent]
    first = np.where(requests.first_token != MISSING, requests.first_token, requests.end)[sent]
    return begin, np.maximum(np.where(first == MISSING, end, first), begin), prompt_tokens(requests)[sent]


def prompt_tokens(requests: Requests) -> Ints:
    """Prompt tokens that each request gives the server to compute; see `DEFINITIONS`."""
    whole = np.where(requests.input_tokens != MISSING, requests.input_tokens, requests.input_planned)
    cached = np.where(requests.cached_tokens != MISSING, requests.cached_tokens, 0)
    rest: Ints = np.maximum(whole - cached, 0)
    return rest


def weighted(begin: Ints, end: Ints, weight: Ints) -> StepFunction:
    """Sum of the weights of the intervals [begin, end) that hold each instant."""
    instants, where = np.unique(np.concatenate([begin, end]), return_inverse=True)
    change = np.bincount(where, weights=np.concatenate([weight, -weight]), minlength=instants.size)
    return StepFunction(instants, np.cumsum(change.astype(np.int64)))


def level_at(steps: StepFunction, instants: Ints) -> Ints:
    """Level of a step function at each instant."""
    where = np.searchsorted(steps.t, instants, side="right")
    return np.concatenate([np.zeros(1, np.int64), steps.level])[where]


def describe(facts: Facts, phases: Phases) -> dict[str, Any]:
    """The part of `phases_joined` that needs no telemetry."""
    start, end = facts.window.warmup_end, facts.window.throughput_end
    reason = _missing(phases, start, end)
    spent = phases.time_in(start, end)
    return {
        "reason": reason,
        "window_ms": milliseconds(end - start),
        "changes": None if reason else phases.changes(start, end),
        "shares": None if reason else {name: rounded(ns / (end - start)) for name, ns in spent.items()},
        "time_ms": None if reason else {name: milliseconds(ns) for name, ns in spent.items()},
        "prefill": _level(phases.prefill, start, end, "requests"),
        "decode": _level(phases.decode, start, end, "requests"),
        "prefill_tokens": _level(phases.prefill_tokens, start, end, "tokens"),
        "definitions": DEFINITIONS,
        "population": "all requests of the run, inside the measured window",
    }


def _missing(phases: Phases, start: int, end: int) -> str | None:
    if not phases.t.size:
        return "no request was sent"
    return "the measured window is empty" if end <= start else None


def _level(steps: StepFunction, start: int, end: int, unit: str) -> dict[str, Any]:
    return {"mean": rounded(steps.mean(start, end)), "max": steps.peak(start, end), "unit": unit}
