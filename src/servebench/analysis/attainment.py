"""How much of what was offered kept to one objective, and how much that share is worth within a run.

A share of a run's requests is not a binomial figure: requests that are neighbours in time wait in the same queue, so
late ones come in clusters. What experiments need to judge a share over several runs is kept beside it: its standard
error by blocks of time, and how many independent requests (or tokens) the tail of the metric is worth.

The latter speaks even when nothing was late. It asks a nearer limit, the run's own quantile that `NEARER` times as many
exceed as may exceed the objective's: a series crosses it in every run, and what comes in clusters there comes in
clusters further out. The level below it, which wanders on a noisy machine, does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import MISSING, Bools, Ints, RunData
from servebench.analysis.metrics import Samples
from servebench.analysis.quantiles import Quantile
from servebench.analysis.slo import Objective, request_values
from servebench.analysis.stats.samples import effective_size

POOLED = ("itl", "icl")
BLOCKS = 20
NEARER = 5
MOST_SERIES = 65_536  # of longer series every k-th value is taken: they are worth fewer independent ones than that


@dataclass(frozen=True, slots=True)
class Attained:
    """What kept to the limit of an objective.

    Attributes:
        within: requests of the cohort that ended well and kept to the limit; of a pooled metric, tokens or gaps.
        of: requests that were offered; of a pooled metric, all tokens or gaps of the cohort.
        error: standard error of within / of by `BLOCKS` blocks of time; None where a block would hold nothing.
        effective: independent samples that the metric's tail is worth; None without samples.
    """

    within: int
    of: int
    error: float | None
    effective: float | None

    @property
    def share(self) -> float | None:
        """`within` / `of`; None when nothing was offered."""
        return self.within / self.of if self.of else None


def attained(run: RunData, cohort: Bools, objective: Objective, samples: Samples) -> Attained:
    """What kept to `objective`, whose metric has these samples in the cohort.

    A request that failed misses every objective. One in which the metric does not occur cannot miss it. A metric that
    is pooled over tokens or gaps is asked of these, as its quantile is; what failed requests never sent is not there.
    """
    order = np.argsort(samples.at, kind="stable")
    series = samples.values[order[:: -(-max(order.size, 1) // MOST_SERIES)]]
    if objective.metric in POOLED:
        within = (samples.values < objective.limit_ns)[order]
        return kept(within, series, objective.quantile, None if samples.weights is None else samples.weights[order])
    value = request_values(run, objective)
    good = run.requests.ok & ((value == MISSING) | (value < objective.limit_ns))
    return kept(good[cohort][np.argsort(run.requests.scheduled[cohort], kind="stable")], series, objective.quantile)


def kept(within: Bools, series: Ints, quantile: Quantile, weights: NDArray[np.int32] | None = None) -> Attained:
    """Count what kept to a limit.

    Args:
        within: of everything that was offered, in the order of time.
        series: the metric's values in the order of time; longer than `MOST_SERIES` they are only slower to look at.
        quantile: of the objective.
        weights: how often each of `within` counts; None for once.
    """
    good = within.astype(np.int64) if weights is None else within * weights
    of = within.size if weights is None else int(weights.sum(dtype=np.int64))
    return Attained(int(good.sum(dtype=np.int64)), of, _block_error(good, weights), _effective(series, quantile))


def _block_error(good: NDArray[np.integer], weights: NDArray[np.int32] | None) -> float | None:
    """Standard error of a ratio of sums over blocks (Cochran 1977, 6.3): that of the residuals good − share·of."""
    if good.size < BLOCKS:
        return None
    starts = np.arange(BLOCKS) * good.size // BLOCKS
    kept = np.add.reduceat(good, starts, dtype=np.int64)
    of = np.add.reduceat(np.ones(good.size, np.int8) if weights is None else weights, starts, dtype=np.int64)
    left = kept - kept.sum() / of.sum() * of
    return float(np.sqrt(BLOCKS / (BLOCKS - 1) * (left**2).sum()) / of.sum())


def _effective(series: Ints, quantile: Quantile) -> float | None:
    """Effective size of whether each value of a series in order of time is beyond the nearer limit."""
    if not series.size:
        return None
    share = max(1 - NEARER * (1 - float(quantile.share)), 0.5)
    place = min(int(share * series.size), series.size - 1)
    nearer = np.partition(series, place)[place]
    beyond = series > nearer
    return effective_size(beyond if beyond.any() else series >= nearer)
