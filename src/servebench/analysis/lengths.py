"""Prompt and answer lengths: what was planned against what the server counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, Ints
from servebench.analysis.facts import Facts
from servebench.analysis.quantiles import REPORTED, nearest
from servebench.analysis.rounding import rounded


def compare(facts: Facts) -> dict[str, Any]:
    """Of the ok requests of the whole run that have a count, planned and real lengths in tokens."""
    requests = facts.run.requests
    return {
        "input": _compare(requests.input_planned, requests.input_tokens, requests.ok),
        "output": _compare(requests.output_planned, requests.output_tokens, requests.ok),
        "unit": "tokens",
        "population": "ok requests of the whole run with a count",
    }


def _compare(planned: Ints, real: Ints, ok: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
    known = ok & (real != MISSING)
    if not known.any():
        return {"n": 0, "planned": None, "real": None, "equal_share": None, "median_offset": None}
    difference = np.sort((real - planned)[known])
    return {
        "n": int(known.sum()),
        "planned": _describe(planned[known]),
        "real": _describe(real[known]),
        "equal_share": rounded(float(np.mean(difference == 0))),
        "median_offset": nearest(difference, REPORTED[0]),
    }


def _describe(tokens: Ints) -> dict[str, float]:
    ordered = np.sort(tokens)
    quantiles = {q.name: nearest(ordered, q) for q in REPORTED if q.name in ("p50", "p95", "p99")}
    return {"mean": round(float(tokens.mean()), 6), "min": int(ordered[0]), "max": int(ordered[-1]), **quantiles}
