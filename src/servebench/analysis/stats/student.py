"""Student's interval of a mean, for run values that a normal law describes well enough."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from servebench.analysis.stats.inputs import between, numbers
from servebench.analysis.stats.interval import Interval


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """mean ± t·s/√n over runs; no ends for a single run, which says nothing about spread.

    Raises:
        ValueError: no values, NaN, or a confidence outside 0 to 1.
    """
    runs = numbers(values, "values")
    share = between(confidence, "confidence")
    if runs.size < 2:
        return Interval(None, None, 0.0)
    from scipy.special import stdtrit

    half = float(stdtrit(runs.size - 1, (1 + share) / 2)) * float(runs.std(ddof=1)) / math.sqrt(runs.size)
    centre = float(runs.mean())
    return Interval(centre - half, centre + half, share)
