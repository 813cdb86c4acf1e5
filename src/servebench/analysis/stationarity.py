"""Was the run steady: where a warm-up ends (MSER-5), and whether the measured window still drifts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BATCH = 5
LARGEST_CUT = 0.5
ROUNDING = 1e-12  # less of a sum of squares than this is what rounding left
LEAST_BINS = 10  # with fewer points a trend cannot be told from chance
CRITICAL_Z = 3.0  # of the Mann-Kendall test after its correction for autocorrelation
LEAST_CHANGE = 0.5  # over the window, relative to the median level: smaller drifts do not change a conclusion
# A stable queue is correlated and needs the correction; a growing backlog is a random walk, whose correlation would
# hide it. With this cap, 60 s windows of M/M/1 and M/M/8 raise a false alarm in at most 2 of 100 runs up to a
# utilisation of 0.9, and overload is found in 8 of 10 runs at 1.1 and in all at 1.2.
MOST_CORRELATION = 0.4


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where a rule says that the warm-up ends.

    Attributes:
        share: of the series to cut away, 0 to 1.
        rejected: the best cut lies beyond half of the run, which means that the run never settled.
    """

    share: float
    rejected: bool


def mser5(values: Floats) -> Truncation:
    """MSER-5 (White, Franklin): cut so many batches of 5 that the standard error of the mean of the rest is least."""
    batches = values.size // BATCH
    if batches < 4:
        return Truncation(0.0, False)
    means = values[: batches * BATCH].reshape(batches, BATCH).mean(axis=1)
    left = np.arange(batches, 0, -1)
    total = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    spread = np.maximum(squares - total**2 / left, 0.0)
    spread[spread < ROUNDING * squares[0]] = 0.0
    error = (spread / left**2)[:-2]  # two or fewer batches have an error by chance
    cut = int(np.argmin(error))
    share = cut * BATCH / values.size
    return Truncation(share, share > LARGEST_CUT)


@dataclass(frozen=True, slots=True)
class Drift:
    """A trend over the measured window.

    Attributes:
        name: of the series.
        change: Theil-Sen slope times the window, relative to the median level; 0.5 is a growth by half of it.
        z: of the Mann-Kendall test, corrected for autocorrelation; None with too few bins.
        bins: how many bins had a value.
    """

    name: str
    change: float | None
    z: float | None
    bins: int

    @property
    def significant(self) -> bool:
        """Whether the trend is both beyond chance and large enough to matter."""
        if self.z is None or self.change is None:
            return False
        return abs(self.z) > CRITICAL_Z and abs(self.change) > LEAST_CHANGE


def drift(name: str, values: Floats) -> Drift:
    """Test one series of bin values (NaN where a bin is empty) for a monotonic trend."""
    where = np.flatnonzero(~np.isnan(values))
    if where.size < LEAST_BINS:
        return Drift(name, None, None, int(where.size))
    y = values[where]
    slope = _theil_sen(where.astype(np.float64), y)
    level = float(np.median(np.abs(y)))
    change = slope * (values.size - 1) / level if level > 0 else None
    return Drift(name, change, _mann_kendall_z(y, slope * where.astype(np.float64)), int(where.size))


def bin_medians(t: NDArray[np.int64], values: NDArray[np.int64], edges: Floats) -> Floats:
    """Median of the values whose instant falls in each bin; NaN for an empty bin."""
    order = np.argsort(t, kind="stable")
    cuts = np.searchsorted(t[order], np.round(edges).astype(np.int64))
    ordered = values[order]
    parts: Sequence[NDArray[np.int64]] = [ordered[a:b] for a, b in pairwise(cuts)]
    return np.array([np.median(part) if part.size else np.nan for part in parts])


def _theil_sen(x: Floats, y: Floats) -> float:
    i, j = np.triu_indices(x.size, k=1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def _mann_kendall_z(y: Floats, trend: Floats) -> float:
    """Mann-Kendall's z; its variance is widened by the lag-1 autocorrelation of what the trend does not explain."""
    n = y.size
    i, j = np.triu_indices(n, k=1)
    score = float(np.sign(y[j] - y[i]).sum())
    _, ties = np.unique(y, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    if variance <= 0:
        return 0.0
    widened = variance * _inflation(y - trend)
    return float(np.sign(score) * max(abs(score) - 1.0, 0.0) / np.sqrt(widened))


def _inflation(residuals: Floats) -> float:
    centred = residuals - residuals.mean()
    power = float((centred**2).sum())
    if power <= ROUNDING * float((residuals**2).sum()):
        return 1.0
    lag1 = float((centred[1:] * centred[:-1]).sum()) / power
    lag1 = min(max(lag1, 0.0), MOST_CORRELATION)
    return (1 + lag1) / (1 - lag1)
