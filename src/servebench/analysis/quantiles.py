"""Quantiles by nearest rank in integer arithmetic, and how many samples a quantile needs.

The quantile q of n sorted values is the value of rank ceil(q·n), counted from 1. Ranks are computed with integers
because `ceil(99.9 / 100 * 200_000)` in floating point is 199_801, one too many.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FLOOR_CONFIDENCE = 0.99  # MLPerf's: the floor is the least n at which early stopping could accept with one overrun

_NAME = re.compile(r"p(\d{1,2}(?:[._]\d+)?)")


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile as a name and an exact share.

    Attributes:
        name: as in summary.json: ``p99_9``.
        share: the exact rational, 999/1000.
    """

    name: str
    share: Fraction

    @classmethod
    def parse(cls, text: str) -> Quantile:
        """Read ``p95``, ``p99.9`` or ``p99_9``; raises ValueError for anything else, or outside p0 to p100."""
        match = _NAME.fullmatch(text.strip())
        if match is None or Fraction(match[1].replace("_", ".")) <= 0:
            raise ValueError(f'"{text}" is not a quantile such as p95 or p99.9')
        digits = match[1].replace("_", ".")
        return cls("p" + digits.replace(".", "_"), Fraction(digits) / 100)

    @property
    def label(self) -> str:
        """As people write it: ``p99.9``."""
        return self.name.replace("_", ".")


REPORTED = tuple(Quantile.parse(name) for name in ("p50", "p90", "p95", "p99", "p99.9"))


def rank(quantile: Quantile, n: int) -> int:
    """Rank (from 1) of the quantile among `n` sorted values: ceil(q·n); raises ValueError when n is not positive."""
    if n < 1:
        raise ValueError("a quantile needs at least one value")
    return -(-n * quantile.share.numerator // quantile.share.denominator)


def nearest(ordered: NDArray[np.int64], quantile: Quantile) -> int:
    """Quantile of values that are sorted already."""
    return int(ordered[rank(quantile, ordered.size) - 1])


def nearest_weighted(ordered: NDArray[np.int64], cumulative: NDArray[np.int64], quantile: Quantile) -> int:
    """Quantile of sorted values that count `weight` times each; `cumulative` is the running sum of the weights.

    The same as repeating each value as often as its weight says and taking the nearest rank.
    """
    wanted = rank(quantile, int(cumulative[-1]))
    return int(ordered[int(np.searchsorted(cumulative, wanted, side="left"))])


@lru_cache(maxsize=64)
def sample_floor(quantile: Quantile) -> int:
    """Fewest samples under which the quantile means anything: the least n with P[Bin(n, 1−q) ≤ 1] < 1 %.

    MLPerf LoadGen's early stopping rule with one sample beyond the limit: 11, 64, 130, 662 and 6636 for p50, p90, p95,
    p99 and p99.9.
    """
    share = float(quantile.share)
    low, high = 1, 2
    while _at_most_one_over(share, high) >= 1 - FLOOR_CONFIDENCE:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if _at_most_one_over(share, middle) >= 1 - FLOOR_CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _at_most_one_over(share: float, n: int) -> float:
    """P[Bin(n, 1 − share) ≤ 1]."""
    return math.exp(n * math.log(share)) + n * (1 - share) * math.exp((n - 1) * math.log(share))
