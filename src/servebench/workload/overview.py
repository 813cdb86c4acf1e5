"""What a plan holds, in figures: for `scenario show` and for whoever compares a run with its plan."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.scenario.schema import Scenario
from servebench.workload.plan import Plan
from servebench.workload.planning import cohort_bounds_ns

QUANTILES = {"p50": Fraction(50, 100), "p95": Fraction(95, 100), "p99": Fraction(99, 100)}


def cohort(scenario: Scenario, plan: Plan) -> NDArray[np.bool_]:
    """Which rows of the plan are measured; in a closed loop, whose rows have no due time, all."""
    if scenario.load.closed:
        return np.ones(len(plan), dtype=np.bool_)
    start, end = cohort_bounds_ns(scenario.load)
    return (plan.scheduled_ns >= start) & (plan.scheduled_ns < end)


def spread(values: NDArray[Any]) -> dict[str, Any]:
    """Count, mean, CV, range and nearest-rank quantiles; all but `n` are None where there are no values."""
    figures: dict[str, Any] = {"n": int(values.size)}
    if not values.size:
        return {**figures, **dict.fromkeys(("mean", "cv", "min", *QUANTILES, "max"))}
    ordered = np.sort(values)
    mean = float(values.mean())
    ranks = {name: -(-q.numerator * values.size // q.denominator) for name, q in QUANTILES.items()}
    figures |= {"mean": mean, "cv": float(values.std()) / mean if mean else None, "min": ordered[0].item()}
    return {**figures, **{name: ordered[rank - 1].item() for name, rank in ranks.items()}, "max": ordered[-1].item()}


def summarise_plan(scenario: Scenario, plan: Plan) -> dict[str, Any]:
    """The plan in JSON-able figures; lengths and gaps are those of the cohort, tokens and seconds."""
    measured = cohort(scenario, plan)
    return {
        "hash": plan.hash,
        "rows": len(plan),
        "seeds": scenario.seeds.model_dump(),
        "phases": None if scenario.load.closed else _phases(scenario, plan),
        "arrivals": None if scenario.load.closed else _arrivals(plan.scheduled_ns[measured]),
        "input_tokens": spread(plan.input_tokens[measured]),
        "output_tokens": spread(plan.output_tokens[measured]),
        "classes": [_class_figures(plan, measured, number) for number in range(len(plan.classes))],
    }


def _phases(scenario: Scenario, plan: Plan) -> dict[str, int]:
    """Requests due in each phase; those of the cool-down are sent only until the cohort has finished."""
    start, end = np.searchsorted(plan.scheduled_ns, cohort_bounds_ns(scenario.load))
    return {"warmup": int(start), "measured": int(end - start), "cooldown": len(plan) - int(end)}


def _arrivals(due_ns: NDArray[np.int64]) -> dict[str, Any]:
    gaps = np.diff(due_ns) / 1e9
    return {"rate": 1 / float(gaps.mean()) if gaps.size and gaps.mean() > 0 else None, "gaps_s": spread(gaps)}


def _class_figures(plan: Plan, measured: NDArray[np.bool_], number: int) -> dict[str, Any]:
    rows = measured & (plan.class_id == number)
    inputs, outputs = plan.input_tokens[rows], plan.output_tokens[rows]
    groups = plan.prefix_group[rows]
    return {
        "name": plan.classes[number],
        "share": float(rows.sum() / measured.sum()) if measured.any() else None,
        "input_tokens": spread(inputs),
        "output_tokens": spread(outputs),
        "rank_correlation": rank_correlation(inputs, outputs),
        "prefix_groups": int(np.unique(groups[groups >= 0]).size),
    }


def rank_correlation(first: NDArray[Any], second: NDArray[Any]) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank; None where either does not vary."""
    if first.size < 2 or (first == first[0]).all() or (second == second[0]).all():
        return None
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[where]
