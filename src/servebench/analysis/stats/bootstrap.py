"""Bootstrap intervals over runs, and over the blocks of time of one run.

What is drawn is what may be called independent: whole runs, or blocks that are long against the correlation of a queue.
Few of them make a plain percentile interval too short; its tails are therefore widened so that the interval of a mean
has the length of Student's (the expanded percentile interval, Hesterberg 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from servebench.analysis.stats.inputs import Floats, between, numbers
from servebench.analysis.stats.interval import Interval

Statistic = Callable[..., Floats]  # takes an array and `axis=-1`, as np.mean and np.median do

RESAMPLES = 10_000
LEAST = 5  # with fewer runs or blocks, resamples repeat each other too often to show a tail
BLOCKS = 20
SEED = 20261130
CHUNK = 2**21  # values held at once


def over_runs(
    values: ArrayLike,
    statistic: Statistic = np.mean,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Interval of a statistic of one value per run; no ends with fewer than `LEAST` runs.

    Raises:
        ValueError: no values, NaN, or a confidence outside 0 to 1.
    """
    return _interval(numbers(values, "values")[:, None], statistic, confidence, resamples, seed)


def over_blocks(
    series: ArrayLike,
    statistic: Statistic = np.mean,
    confidence: float = 0.95,
    blocks: int = BLOCKS,
    resamples: int = 2_000,
    seed: int = SEED,
) -> Interval:
    """Interval of a statistic of a correlated series in order of time, by drawing so many blocks of equal length.

    What does not fill a block is left out at the beginning. The interval speaks for this run only. No ends with fewer
    than `LEAST` blocks, or fewer values than blocks.

    Raises:
        ValueError: no values, NaN, or a confidence outside 0 to 1.
    """
    values = numbers(series, "series")
    length = values.size // blocks
    cut = values[values.size - length * blocks :].reshape(blocks if length else 0, length)
    return _interval(cut, statistic, confidence, resamples, seed)


def block_counts(blocks: int, resamples: int, seed: int = SEED) -> Floats:
    """How often each block is in each resample: (resamples, blocks), for statistics of sums over blocks."""
    offset = np.arange(resamples)[:, None] * blocks
    counts = np.bincount((_draws(blocks, resamples, seed) + offset).ravel(), minlength=resamples * blocks)
    return counts.reshape(resamples, blocks).astype(np.float64)


def _draws(blocks: int, resamples: int, seed: int) -> NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64(seed)).integers(blocks, size=(resamples, blocks))


def _interval(cut: Floats, statistic: Statistic, confidence: float, resamples: int, seed: int) -> Interval:
    """`cut` has one row per run or block."""
    share = between(confidence, "confidence")
    if len(cut) < LEAST:
        return Interval(None, None, 0.0)
    draws = _draws(len(cut), resamples, seed)
    step = max(1, CHUNK // cut.size)
    parts = [draws[start : start + step] for start in range(0, resamples, step)]
    found = np.concatenate([statistic(cut[part].reshape(len(part), -1), axis=-1) for part in parts])
    tail = _widened_tail(len(cut), share)
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(float(low), float(high), share)


def _widened_tail(n: int, share: float) -> float:
    """Φ(−t·√(n/(n−1))): the tail at which a bootstrap, whose spread is too small, ends where Student's does."""
    from scipy.special import ndtr, stdtrit

    return float(ndtr(-math.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 + share) / 2)))
