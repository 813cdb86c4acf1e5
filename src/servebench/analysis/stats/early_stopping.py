"""MLPerf LoadGen's early stopping, for figures that can be set beside its results.

It answers how many queries are needed before a tail may be believed, *if* queries were independent. Requests of one
server are not: in a queue at 80 % load its 99 % bound holds in fewer than a third of the runs. So these are floors and
parity figures, never a confidence interval of ours.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

from servebench.analysis.quantiles import FLOOR_CONFIDENCE, Quantile, sample_floor
from servebench.analysis.stats.binomial import most_within
from servebench.analysis.stats.inputs import between


def least_queries(over: int, share: float | Fraction, confidence: float = FLOOR_CONFIDENCE) -> int:
    """Fewest queries within the limit that make up for `over` ones beyond it: 459 for none at p99.

    The least h with P[Bin(h + over, 1 − share) ≤ over] < 1 − confidence.

    Raises:
        ValueError: a negative count, or a share or confidence outside 0 to 1.
    """
    if over < 0:
        raise ValueError(f"{over} queries over the limit")
    beyond, chance = between(float(1 - share), "1 - share"), 1 - between(confidence, "confidence")
    from scipy.special import bdtr

    def enough(within: int) -> bool:
        return bool(bdtr(over, over + within, beyond) < chance)

    most = 1
    while not enough(most):
        most *= 2
    return bisect_left(range(most), True, key=enough)


def floor(share: float | Fraction) -> int:
    """Fewest queries at which a quantile means anything: with one beyond the limit, early stopping could still accept.

    11, 64, 130, 662 and 6636 for p50, p90, p95, p99 and p99.9.
    """
    between(float(share), "share")
    return sample_floor(Quantile(f"of {share}", Fraction(share)))


def estimate_rank(n: int, share: float | Fraction, confidence: float = FLOOR_CONFIDENCE) -> int | None:
    """Rank, from the *largest*, of the value that LoadGen takes for the quantile of n: 77 for p99 of 10 000.

    The largest t for which t queries over a limit would still be accepted among n; None when not even one would.
    """
    if n < 1:
        raise ValueError("a quantile needs at least one value")
    beyond, chance = between(float(1 - share), "1 - share"), 1 - between(confidence, "confidence")
    most = most_within(n, beyond, chance)
    return most if most >= 1 else None
