"""The steps of a window as a table: one row for each kind; times in ms."""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.profile.step_names import KINDS
from servebench.analysis.profile.stepping import Steps
from servebench.analysis.quantiles import Quantile, nearest
from servebench.analysis.rounding import milliseconds, rounded
from servebench.profile.intervals import Ints
from servebench.profile.timeline import NONE

P50, P95 = Quantile.parse("p50"), Quantile.parse("p95")


def describe(steps: Steps) -> dict[str, Any]:
    """The `steps` section.

    Shape::

        {"found_by": "names" | "pattern" | "none", "reason": str | null,
         "n": steps of all worker processes, "processes": how many of these, "truncated": cut by the window's edges,
         "work_by": "launch" | "time" | null,    # how device time was given to steps; see `Steps`
         "kinds": [{"kind", "n",
                    "mean", "p50", "p95", "max",            # duration: of the annotation on the host
                    "period": {"n", "mean", "p50", "p95", "max"},    # to the next step's start
                    "busy_p50", "idle_p50",                 # devices at work for the step; the rest of its period
                    "context_tokens_mean", "generation_requests_mean"}]}
    """
    return {
        "found_by": steps.found_by,
        "reason": steps.reason,
        "n": len(steps),
        "processes": int(np.unique(steps.process).size),
        "truncated": steps.truncated,
        "work_by": steps.work_by,
        "kinds": [_kind(kind, steps.of(steps.kind == k)) for k, kind in enumerate(KINDS) if (steps.kind == k).any()],
    }


def _kind(kind: str, steps: Steps) -> dict[str, Any]:
    duration = _spread(steps.duration)
    n = duration.pop("n")
    return {
        "kind": kind,
        "n": n,
        **duration,
        "period": _spread(steps.period),
        "busy_p50": _spread(steps.busy)["p50"],
        "idle_p50": _spread(steps.idle)["p50"],
        "context_tokens_mean": _mean(steps.context_tokens),
        "generation_requests_mean": _mean(steps.generation_requests),
    }


def _spread(values: Ints) -> dict[str, Any]:
    known = np.sort(values[values != NONE])
    if not known.size:
        return {"n": 0, "mean": None, "p50": None, "p95": None, "max": None}
    return {
        "n": int(known.size),
        "mean": milliseconds(float(known.mean())),
        "p50": milliseconds(nearest(known, P50)),
        "p95": milliseconds(nearest(known, P95)),
        "max": milliseconds(int(known[-1])),
    }


def _mean(values: Ints) -> float | None:
    known = values[values != NONE]
    return rounded(float(known.mean())) if known.size else None
