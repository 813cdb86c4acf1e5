"""Small plots for a terminal, drawn with block characters; plain text, no colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCKS = " ▁▂▃▄▅▆▇█"


def column_plot(values: Sequence[float] | NDArray[Any], height: int = 4) -> list[str]:
    """Draw one column of blocks a value, with a scale at the left.

    Args:
        values: not negative.
        height: in lines; each resolves eight levels.

    Returns:
        `height` lines, the top one first. Any value above 0 shows at least the lowest block.
    """
    top = max((float(value) for value in values), default=0.0)
    levels = [_level(float(value), top, height) for value in values]
    labels = [_short(top) if line == 0 else "0" if line == height - 1 else "" for line in range(height)]
    width = max(map(len, labels))
    return [f"{labels[line]:>{width}} ┤{_row(levels, height - 1 - line)}" for line in range(height)]


def _short(value: float) -> str:
    """Up to three digits and a k or M."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.2g}{unit}" if value < 100 * limit else f"{value / limit:.0f}{unit}"
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _level(value: float, top: float, height: int) -> int:
    eighths = height * 8
    return max(1, round(value / top * eighths)) if value > 0 else 0


def _row(levels: Sequence[int], row: int) -> str:
    return "".join(BLOCKS[min(8, max(0, level - 8 * row))] for level in levels)


def scale_line(indent: int, width: int, marks: Sequence[tuple[float, str]]) -> str:
    """Write labels under a plot.

    Args:
        indent: columns to the left of the plot.
        width: columns of the plot.
        marks: (place from 0 to 1, text); a text that would overlap the one before it is left out.
    """
    line = " " * indent
    for place, text in marks:
        start = indent + min(round(place * width), max(0, width - len(text)))
        if start >= len(line.rstrip()) + (1 if line.strip() else 0):
            line = line.ljust(start)[:start] + text
    return line.rstrip()


def rate_plot(instants_s: NDArray[np.float64], end_s: float, width: int = 60) -> tuple[list[str], float]:
    """Plot events a second over time.

    Returns:
        The lines, and the width of a bin in seconds: the least round one that fits `width` columns.
    """
    bin_s = round_step(end_s / width)
    edges = np.arange(0, math.ceil(end_s / bin_s) + 1) * bin_s
    counts, _ = np.histogram(instants_s, edges)
    return column_plot(counts / bin_s), bin_s


def round_step(least: float) -> float:
    """The least round number (1, 1.5, 2, 2.5, 3, 4, 5 or 7.5 times a power of ten) that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10) if step * power >= least * (1 - 1e-9))


def histogram(values: NDArray[Any], width: int = 60) -> tuple[list[str], list[tuple[float, str]], bool]:
    """Plot how often values of whole numbers occur; over more than a factor of 30 the bins are logarithmic.

    Returns:
        The lines, the marks for `scale_line`, and whether the scale is logarithmic.
    """
    low, high = int(values.min()), int(values.max())
    logarithmic = low > 0 and high / low > 30
    # Edges lie between whole numbers, so that no bin holds more of them than its neighbour by an accident of rounding.
    step = max(1, math.ceil((high - low + 1) / width))
    edges = (
        np.unique(np.floor(np.geomspace(low, high + 1, width + 1))) - 0.5
        if logarithmic
        else np.arange(low, high + step + 1, step) - 0.5
    )
    counts, _ = np.histogram(values, edges)
    bins = len(counts)
    # Whole numbers fall unevenly into logarithmic bins (one here, two there); this levels it.
    sizes = np.diff(np.log(edges)) if logarithmic else np.ones(bins)
    heights = counts / sizes * sizes.mean()
    marks = [(index / bins, f"{math.ceil(edges[index])}") for index in (0, bins // 4, bins // 2, 3 * bins // 4)]
    return column_plot(heights), [*marks, (1.0, f"{high}")], logarithmic
