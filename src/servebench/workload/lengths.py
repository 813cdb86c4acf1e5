"""Lengths in tokens, drawn by inverting each law's distribution function at given ranks.

Ranks, not values, are what the seed fixes: the same request keeps its place in the law when a law is changed, and a
Gaussian copula can couple prompt and answer without touching either marginal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.scenario.lengths import Empirical, Fixed, Gamma, Law, Lognormal, Normal, Truncated, Uniform

Floats = NDArray[np.float64]
_STANDARD = NormalDist()


def draw_lengths(law: Law, ranks: Floats) -> NDArray[np.int32]:
    """Lengths in tokens at `ranks`.

    Args:
        law: of the lengths.
        ranks: shape (n,), each strictly between 0 and 1; uniform ranks give the law.

    Returns:
        int32, shape (n,), non-decreasing in the rank, all within [law.lower, law.upper].
    """
    quantile = _QUANTILES[type(law)]
    return quantile(law, ranks).astype(np.int32)


def _fixed(law: Fixed, ranks: Floats) -> Floats:
    return np.full(ranks.shape, float(law.tokens))


def _uniform(law: Uniform, ranks: Floats) -> Floats:
    return law.min + np.floor(ranks * (law.max - law.min + 1))


def _within(law: Truncated, ranks: Floats) -> Floats:
    """Ranks of the untruncated law that round into the bounds.

    This is the law of rounding and drawing again until the length lies inside, without the loop: inside the bounds its
    shape is untouched and no probability gathers at them.
    """
    low, high = law.cdf(law.min - 0.5), law.cdf(law.max + 0.5)
    return low + ranks * (high - low)


def _rounded(law: Truncated, lengths: Floats) -> Floats:
    """Round to whole tokens; the clip only catches the last digit of a distribution function at the very bounds."""
    clipped: Floats = np.clip(np.rint(lengths), law.min, law.max)
    return clipped


def _normal(law: Normal, ranks: Floats) -> Floats:
    return _rounded(law, law.dist.mean + law.dist.stdev * standard_normal(_within(law, ranks)))


def _lognormal(law: Lognormal, ranks: Floats) -> Floats:
    logs = law.log_dist
    return _rounded(law, np.exp(logs.mean + logs.stdev * standard_normal(_within(law, ranks))))


def _gamma(law: Gamma, ranks: Floats) -> Floats:
    from scipy.special import gammaincinv

    shape = law.cv**-2
    units = np.asarray(gammaincinv(shape, _within(law, ranks)), dtype=np.float64)
    return _rounded(law, units * (law.mean / shape))


def _empirical(law: Empirical, ranks: Floats) -> Floats:
    probabilities, tokens = np.array(law.points, dtype=np.float64).T
    lengths: Floats = np.rint(np.interp(ranks, probabilities, tokens))
    return lengths


_QUANTILES: dict[type[Law], Callable[[Any, Floats], Floats]] = {
    Fixed: _fixed,
    Uniform: _uniform,
    Normal: _normal,
    Lognormal: _lognormal,
    Gamma: _gamma,
    Empirical: _empirical,
}


def standard_normal(ranks: Floats) -> Floats:
    """Standard normal quantiles; ranks of 0 and 1, which truncation can round to, give the ends of float64's reach."""
    # The standard library's is compiled and starts at once, where importing scipy takes 0.2 s of every run.
    inside = np.clip(ranks, 1e-300, 1 - 2**-53)
    return np.fromiter(map(_STANDARD.inv_cdf, inside.tolist()), np.float64, len(inside))


def couple_ranks(first: Floats, second: Floats, correlation: float | None) -> Floats:
    """Ranks that replace `second` and have the given rank correlation with `first`.

    A Gaussian copula: normal scores with correlation r = 2·sin(π·ρ/6) have Spearman's ρ (Kruskal 1958). The result is
    uniform like `second`, so the marginal law stays exact.

    Args:
        first, second: independent uniform ranks, shape (n,).
        correlation: Spearman's ρ, −1 to 1; None and 0 return `second` untouched.
    """
    if not correlation:
        return second
    r = 2 * math.sin(math.pi * correlation / 6)
    scores = r * standard_normal(first) + math.sqrt(max(0.0, 1 - r * r)) * standard_normal(second)
    ranks = np.fromiter(map(_STANDARD.cdf, scores.tolist()), np.float64, len(scores))
    return np.clip(ranks, 2**-54, 1 - 2**-53)
