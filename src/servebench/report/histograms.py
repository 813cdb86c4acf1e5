"""histograms.hlog: TTFT, ICL and E2E of the whole run by interval, for any HdrHistogram tool."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import RunData
from servebench.analysis.metrics import Samples, e2e, icl, ttft
from servebench.record.histogram import Histogram, write_hlog

SAMPLED = {"ttft": ttft, "icl": icl, "e2e": e2e}
LENGTHS_S = (1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)
MOST_INTERVALS = 120  # an interval costs some milliseconds to encode

Interval = tuple[str, float, float, Histogram]


def write_histograms(path: Path, run: RunData, start_ns: int, seconds: float) -> None:
    """Write the interval log of a run; an interval without a sample of a metric has no line for it.

    Args:
        path: the file; replaced.
        run: the run.
        start_ns: when the load began (CLOCK_REALTIME).
        seconds: length of the run; intervals are 1 s, and longer in a run of more than two minutes.
    """
    length = next((n for n in LENGTHS_S if seconds <= n * MOST_INTERVALS), LENGTHS_S[-1])
    streams = [_intervals(tag, run, start_ns, length) for tag in SAMPLED]
    write_hlog(path, heapq.merge(*streams, key=lambda interval: interval[1]))


def _intervals(tag: str, run: RunData, start: int, length: int) -> Iterator[Interval]:
    """The histograms of one metric in the order of time, one alive at a time."""
    values, numbers = _numbered(SAMPLED[tag](run, np.ones(len(run.requests), np.bool_)), start, length * 1_000_000_000)
    for number in range(int(numbers.max(initial=-1)) + 1):
        inside = values[numbers == number]
        if inside.size:
            histogram = Histogram()
            histogram.record_many(inside)
            yield tag, start / 1e9 + number * length, float(length), histogram


def _numbered(samples: Samples, start: int, length_ns: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The values, and the number of the interval of each; what came before the start counts for the first."""
    since = samples.at - start
    np.floor_divide(since, length_ns, out=since)
    return samples.values, np.maximum(since, 0).astype(np.int32)
