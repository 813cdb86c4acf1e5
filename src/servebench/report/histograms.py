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
    everyone = np.ones(len(run.requests), np.bool_)
    streams = [_intervals(tag, sample(run, everyone), start_ns, length) for tag, sample in SAMPLED.items()]
    write_hlog(path, heapq.merge(*streams, key=lambda interval: interval[1]))


def _intervals(tag: str, samples: Samples, start: int, length: int) -> Iterator[Interval]:
    """The histograms of one metric in the order of time, one alive at a time."""
    for number, values in _parts(samples, start, length * 1_000_000_000):
        histogram = Histogram()
        histogram.record_many(values)
        yield tag, start / 1e9 + number * length, float(length), histogram


def _parts(samples: Samples, start: int, length_ns: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    numbers = ((samples.at - start) // length_ns).astype(np.int32)
    order = np.argsort(numbers, kind="stable")
    seen, first = np.unique(numbers[order], return_index=True)
    ends = [*first[1:].tolist(), order.size]
    for number, begin, end in zip(seen.tolist(), first.tolist(), ends, strict=True):
        yield number, samples.values[order[begin:end]]
