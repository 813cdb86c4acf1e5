"""Intervals of a quantile by order statistics: two ranks, free of any law, for independent samples only."""

from __future__ import annotations

from fractions import Fraction

from servebench.analysis.stats.binomial import most_within
from servebench.analysis.stats.inputs import between


def order_interval(n: int, share: float | Fraction, confidence: float = 0.95) -> tuple[int, int] | None:
    """Ranks, from 1, of the sorted values between which the quantile lies: (490, 500) for p99 of 500.

    Each end is wrong in at most (1 − confidence)/2 of the cases: the low rank is the largest l with
    P[Bin(n, share) < l], the high one the least u with P[Bin(n, share) ≥ u], at most that. None when there is no such
    rank; p99 has an upper end from n = 368. Requests of one run are correlated, so that for them this is too narrow.

    Raises:
        ValueError: n is not positive, or a share or confidence outside 0 to 1.
    """
    if n < 1:
        raise ValueError("a quantile needs at least one value")
    below, tail = between(float(share), "share"), (1 - between(confidence, "confidence")) / 2
    low = most_within(n, below, tail) + 1
    high = n - most_within(n, float(1 - share), tail)
    return (low, high) if low >= 1 and high <= n else None
