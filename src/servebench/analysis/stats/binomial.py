"""The one fact about binomial counts that ranks and floors need."""

from __future__ import annotations

from bisect import bisect_right


def most_within(n: int, share: float, chance: float) -> int:
    """Largest k with P[Bin(n, share) ≤ k] ≤ chance; −1 when even no success at all is likelier than that."""
    from scipy.special import bdtr

    return bisect_right(range(n), chance, key=lambda k: float(bdtr(k, n, share))) - 1
