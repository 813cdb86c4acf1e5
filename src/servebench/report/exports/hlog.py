"""An HDR interval log of the cohort, so that any HdrHistogram tool finds the figures of the report.

The run directory's own histograms.hlog has the whole run, warm-up included, and fewer metrics.
Readers that round a percentile's rank half up may name a neighbour of the value of rank ceil(q·n) that the report has.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from servebench.analysis.data import Bools, Ints, RunData
from servebench.analysis.metrics import Metric, Samples, define
from servebench.analysis.window import Window, find_window
from servebench.record.histogram import Histogram, write_hlog
from servebench.record.rundir import RunDir
from servebench.report.exports import OURS
from servebench.report.exports.marks import title
from servebench.report.histograms import LENGTHS_S, MOST_INTERVALS
from servebench.report.summary_io import read

TAGS = ("ttft", "ttfv", "tpot", "itl", "icl", "e2e", "stall")

Interval = tuple[str, float, float, Histogram]


class HlogExporter:
    """One log; each metric is a tag, and the histograms of a tag add up to the metric's samples in summary.json."""

    name = "hlog"
    help = OURS[name]

    def write(self, run: RunDir, summary: dict[str, Any], out: Path) -> list[Path]:
        """See `Exporter.write`."""
        data = read(run)
        window, metrics = find_window(data), define(data)
        cohort, length = window.cohort(data), _length(window)
        streams = [_intervals(metrics[tag], data, cohort, window.start, length) for tag in TAGS]
        write_hlog(out, heapq.merge(*streams, key=lambda interval: interval[1]))
        _comment(out, f"servebench: {title(summary)}; {summary['definitions']['cohort']}; values in ns")
        return [out]


def _length(window: Window) -> int:
    """Seconds of an interval: 1, or more in a run that would have too many of them."""
    seconds = (window.end - window.start) / 1e9
    return next((n for n in LENGTHS_S if seconds <= n * MOST_INTERVALS), LENGTHS_S[-1])


def _intervals(metric: Metric, run: RunData, cohort: Bools, start: int, length: int) -> Iterator[Interval]:
    """The histograms of one metric in the order of time; what came before the start counts for the first."""
    samples = metric.sample(run, cohort)
    numbers = np.maximum((samples.at - start) // (length * 1_000_000_000), 0)
    order = np.argsort(numbers, kind="stable")
    firsts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    for number, rows in zip(numbers[order][firsts].tolist(), np.split(order, firsts[1:]), strict=False):
        yield metric.name, start / 1e9 + number * length, float(length), _histogram(samples, rows)


def _histogram(samples: Samples, rows: Ints) -> Histogram:
    """The samples of these rows, each as often as it counts."""
    values = samples.values[rows]
    histogram = Histogram()
    histogram.record_many(values if samples.weights is None else np.repeat(values, samples.weights[rows]))
    return histogram


def _comment(path: Path, text: str) -> None:
    """Put a comment below the line that says what the file is; the format is ASCII."""
    first, rest = path.read_text("ascii").split("\n", 1)
    plain = text.replace("·", "-").encode("ascii", "backslashreplace").decode("ascii")
    path.write_text(f"{first}\n#[{plain}]\n{rest}", "ascii")


exporter = HlogExporter()
