"""Figures of many durations: exact quantiles without a full sort, and the units that they are told in."""

from __future__ import annotations

import numpy as np

from servebench.analysis.quantiles import Quantile, rank
from servebench.analysis.rounding import rounded
from servebench.profile.intervals import Ints

P50, P99 = Quantile.parse("p50"), Quantile.parse("p99")


def at_rank(values: Ints, quantile: Quantile) -> int:
    """Quantile by nearest rank of values in any order; there must be one."""
    place = rank(quantile, values.size) - 1
    return int(np.partition(values, place)[place])


def microseconds(nanoseconds: float | None) -> float | None:
    """Microseconds with six decimals."""
    return None if nanoseconds is None else rounded(nanoseconds / 1e3)


def share(part: float, whole: float) -> float | None:
    """Part of a whole; None of nothing."""
    return rounded(part / whole) if whole else None
