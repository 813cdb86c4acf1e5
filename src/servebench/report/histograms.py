"""histograms.hlog: TTFT, ICL and E2E of the whole run, one interval a second, for any HdrHistogram tool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import RunData
from servebench.analysis.metrics import e2e, icl, ttft
from servebench.record.histogram import Histogram, write_hlog

LENGTH_NS = 1_000_000_000
SAMPLED = {"ttft": ttft, "icl": icl, "e2e": e2e}

Interval = tuple[str, float, float, Histogram]


def write_histograms(path: Path, run: RunData, start_ns: int) -> None:
    """Write the interval log of a run whose load began at `start_ns`; a second without samples has no interval."""
    write_hlog(path, sorted(_intervals(run, start_ns), key=lambda interval: interval[1]))


def _intervals(run: RunData, start: int) -> Iterator[Interval]:
    everyone = np.ones(len(run.requests), np.bool_)
    for tag, sample in SAMPLED.items():
        samples = sample(run, everyone)
        for second, values in _by_second(samples.at - start, samples.values):
            histogram = Histogram()
            histogram.record_many(values)
            yield tag, (start + second * LENGTH_NS) / 1e9, LENGTH_NS / 1e9, histogram


def _by_second(at: NDArray[np.int64], values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    order = np.argsort(at, kind="stable")
    seconds, first = np.unique(at[order] // LENGTH_NS, return_index=True)
    yield from zip(seconds.tolist(), np.split(values[order], first[1:]), strict=True)
