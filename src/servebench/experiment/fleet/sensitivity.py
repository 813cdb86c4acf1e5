"""How the size of a fleet answers to longer or shorter prompts, and to another headroom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from servebench.experiment.fleet.deployment import Deployment
from servebench.experiment.fleet.sizing import Fleet, size

LENGTHS = (0.5, 1.0, 1.5, 2.0)
HEADROOMS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
SAME_ANSWERS = 0.05  # mean answers within 5 % count as the same for a comparison of prompt lengths
SCALED = "scaled by tokens"
MEASURED = "between measured capacities"


def prompt_lengths(fleet: Fleet, others: Sequence[Deployment]) -> list[dict[str, Any]]:
    """The fleet with prompts of `LENGTHS` times the measured mean; empty when the lengths are not known.

    Where capacities of the same engine with other prompt lengths were measured, the seconds of a replica that a request
    costs (1/rate) are interpolated linearly between them; elsewhere the rate falls as the tokens of a request grow.
    """
    own = fleet.deployment
    if own.input_tokens is None or own.output_tokens is None:
        return []
    family = _same_but_prompts(own, others)
    return [_with_prompts(fleet, by, own.input_tokens, own.output_tokens, family) for by in LENGTHS]


def _with_prompts(
    fleet: Fleet, by: float, prompt: float, answer: float, family: Sequence[Deployment]
) -> dict[str, Any]:
    length = prompt * by
    rate, basis = _interpolated(length, family), MEASURED
    if rate is None:
        rate, basis = fleet.sustained * (prompt + answer) / (length + answer), SCALED
    shown = _summary(size(replace(fleet.deployment, sustained=rate), fleet.demand, fleet.policy))
    return {"factor": by, "input_tokens": length, "sustained_per_s": rate, "basis": basis} | shown


def _same_but_prompts(own: Deployment, others: Sequence[Deployment]) -> list[Deployment]:
    """Deployments on the same engine with answers of the same length, each prompt length once, the shortest first."""
    found = {own.input_tokens: own}
    for other in others:
        if _alike(own, other):
            found.setdefault(other.input_tokens, other)
    return sorted(found.values(), key=lambda d: d.input_tokens or 0.0)


def _alike(own: Deployment, other: Deployment) -> bool:
    if not other.sustained or not other.input_tokens or not other.output_tokens or not own.output_tokens:
        return False
    same_engine = other.engine == own.engine and other.asked.get("SLO") == own.asked.get("SLO")
    return same_engine and abs(other.output_tokens / own.output_tokens - 1) <= SAME_ANSWERS


def _interpolated(length: float, family: Sequence[Deployment]) -> float | None:
    """Requests per second at a mean prompt of `length`; None outside of what was measured."""
    lengths = [d.input_tokens or 0.0 for d in family]
    if not lengths[0] <= length <= lengths[-1]:
        return None
    seconds = [1 / (d.sustained or np.inf) for d in family]
    return float(1 / np.interp(length, lengths, seconds))


def headrooms(fleet: Fleet) -> list[dict[str, Any]]:
    """The fleet with other shares of headroom, the chosen one among them."""
    chosen = sorted({*HEADROOMS, fleet.policy.headroom})
    return [
        {"headroom": share} | _summary(size(fleet.deployment, fleet.demand, replace(fleet.policy, headroom=share)))
        for share in chosen
    ]


def _summary(fleet: Fleet) -> dict[str, Any]:
    cost = None if fleet.price is None else fleet.gpus * fleet.price
    return {"replicas": fleet.replicas, "gpus": fleet.gpus, "cost_per_hour": cost}
