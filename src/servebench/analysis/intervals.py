"""Intervals of quantiles within one run, by a block bootstrap that is cheap enough to be always printed.

Requests of one run are correlated, so whole blocks of time are drawn, not requests; and even so the interval speaks for
this run only, since the unit of replication is the run. Resampling counts instead of values keeps it cheap: each block
becomes a histogram over value bins that are fine in the tail, and a resample is a sum of histograms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.metrics import Samples
from servebench.analysis.quantiles import Quantile
from servebench.analysis.stats.bootstrap import BLOCKS, block_counts

RESAMPLES = 500
BINS = 1000
LEAST_SAMPLES = 100
MOST_SAMPLES = 100_000  # beyond, every k-th is taken; a quantile of so many varies by its blocks, not by its samples
CONFIDENCE = 0.95


def within_run(samples: Samples, quantiles: Sequence[Quantile]) -> dict[str, tuple[int, int]] | None:
    """95 % interval of each quantile, by name, in ns; None with fewer than `LEAST_SAMPLES` samples."""
    if samples.values.size < LEAST_SAMPLES:
        return None
    step = -(-samples.values.size // MOST_SAMPLES)
    values, at = samples.values[::step], samples.at[::step]
    weights = None if samples.weights is None else samples.weights[::step]
    edges = _edges(np.sort(values))
    counts = _block_counts(_blocks(at), np.searchsorted(edges, values), edges.size, weights)
    # The seed is fixed so that a recomputed report has the same bytes.
    drawn = block_counts(BLOCKS, RESAMPLES) @ counts
    cumulative = np.cumsum(drawn, axis=1)
    return {q.name: _interval(cumulative, edges, float(q.share)) for q in quantiles}


def _blocks(at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the block of each sample: `BLOCKS` of equally many samples each, consecutive in time."""
    blocks = np.empty(at.size, np.int64)
    blocks[np.argsort(at, kind="stable")] = np.arange(at.size) * BLOCKS // at.size
    return blocks


def _edges(ordered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Upper edges of the value bins: half of them evenly over the ranks, half ever finer towards the largest."""
    n = ordered.size
    even = np.linspace(0, n - 1, min(n, BINS // 2))
    tail = n - 1 - np.geomspace(1, n, min(n, BINS // 2)) + 1
    ranks = np.unique(np.clip(np.round(np.concatenate([even, tail, [n - 1]])), 0, n - 1).astype(np.int64))
    return np.unique(ordered[ranks])


def _block_counts(
    blocks: NDArray[np.int64], bins: NDArray[np.int64], width: int, weights: NDArray[np.int32] | None
) -> NDArray[np.float64]:
    flat = np.bincount(blocks * width + bins, weights=weights, minlength=BLOCKS * width)
    return flat.reshape(BLOCKS, width).astype(np.float64)


def _interval(cumulative: NDArray[np.float64], edges: NDArray[np.int64], share: float) -> tuple[int, int]:
    wanted = np.ceil(share * cumulative[:, -1])
    found = np.sort((cumulative < wanted[:, None]).sum(axis=1))
    low = int((1 - CONFIDENCE) / 2 * found.size)
    return int(edges[found[low]]), int(edges[found[-1 - low]])
