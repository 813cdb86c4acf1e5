"""histograms.hlog: TTFT, ITL and E2E of the whole run, one interval a second, for any HdrHistogram tool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from servebench.record.histogram import Histogram
    from servebench.record.rundir import RunDir

LENGTH_NS = 1_000_000_000
TAGS = ("ttft", "icl", "e2e")


def write_histograms(run: RunDir, summary: dict[str, Any]) -> None:
    """Write the interval log of `run`; a second without a sample of a metric has no interval for it."""
    from servebench.record.histogram import write_hlog

    write_hlog(run.histogram_path, sorted(_intervals(run, summary["phases"]["start_ns"]), key=lambda row: row[1]))


def _intervals(run: RunDir, start: int) -> Iterator[tuple[str, float, float, Histogram]]:
    import numpy as np

    from servebench.analysis import metrics
    from servebench.analysis.data import load

    data = load(run)
    everyone = np.ones(len(data.requests), np.bool_)
    for tag in TAGS:
        samples = getattr(metrics, tag)(data, everyone)
        for second, values in _by_second(samples.at - start, samples.values):
            yield tag, (start + second * LENGTH_NS) / 1e9, LENGTH_NS / 1e9, _histogram(values)


def _by_second(at: NDArray[np.int64], values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    import numpy as np

    order = np.argsort(at, kind="stable")
    seconds, first = np.unique(at[order] // LENGTH_NS, return_index=True)
    for second, part in zip(seconds.tolist(), np.split(values[order], first[1:]), strict=True):
        yield second, part


def _histogram(values: NDArray[np.int64]) -> Histogram:
    from servebench.record.histogram import Histogram

    histogram = Histogram()
    histogram.record_many(values)
    return histogram
