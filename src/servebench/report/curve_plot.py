"""Curves for a terminal: a few points a series, joined by dots, on a scale that is linear or logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from servebench.report.plots import round_step, scale_line

MARKERS = "●○◆◇▲△"
JOINT = "·"
WIDE = 15.0  # highest over lowest value from which a scale is logarithmic

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """Where values lie between 0 and 1.

    Attributes:
        low, high: its ends.
        logarithmic: whether equal ratios are equally far apart; `low` is above 0 then.
    """

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.high <= self.low:
            return 0.5
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        """What lies at a place."""
        if self.logarithmic:
            return self.low * math.exp(place * math.log(self.high / self.low))
        return self.low + (self.high - self.low) * place


def height_scale(values: Sequence[float]) -> Scale:
    """The scale of the upright axis: from 0, or logarithmic where values are far apart, with round ends."""
    low, high = min(values), max(values)
    if low > 0 and high / low > WIDE:
        return Scale(_round_below(low), round_step(high), True)
    return Scale(0.0, round_step(high))


def width_scale(values: Sequence[float]) -> Scale:
    """The scale of the level axis, from the first to the last value; logarithmic from a ratio of 8 on."""
    low, high = min(values), max(values)
    return Scale(low, high, low > 0 and high / low >= 8)


def curve_plot(series: Sequence[Points], width: int = 40, height: int = 9) -> list[str]:
    """Draw up to six series, the first one on top, each with its own of `MARKERS`.

    Args:
        series: points (x, y) in the order in which they are joined, y not negative; at least one point in all.
        width, height: of the field, in columns and lines.

    Returns:
        `height` lines with the values of y at their left, then one with those of x.
    """
    places = [point for points in series for point in points]
    across, up = width_scale([x for x, _ in places]), height_scale([y for _, y in places])
    field = [[" "] * width for _ in range(height)]
    for number, points in reversed(list(enumerate(series))):
        cells = [(round(across.place(x) * (width - 1)), round(up.place(y) * (height - 1))) for x, y in points]
        for start, end in pairwise(cells):
            _join(field, start, end)
        for column, row in cells:
            field[row][column] = MARKERS[number]
    labels = {height - 1: up.high, height // 2: up.value(height // 2 / (height - 1)), 0: up.low}
    texts = [short(labels[row]) if row in labels else "" for row in range(height)]
    left = max(map(len, texts))
    lines = [f"{texts[row]:>{left}} ┤{''.join(field[row]).rstrip()}" for row in reversed(range(height))]
    marks = [(round(across.place(x) * (width - 1)) / width, short(x)) for x in sorted({x for x, _ in places})]
    return [*lines, scale_line(left + 2, width, _spread(marks, width))]


def _spread(marks: Sequence[tuple[float, str]], width: int) -> list[tuple[float, str]]:
    """The marks without those that would push away the last one, which says how far the axis goes."""
    last = marks[-1]
    room = width - len(last[1]) - 1
    return [mark for mark in marks[:-1] if round(mark[0] * width) + len(mark[1]) <= room] + [last]


def _join(field: list[list[str]], start: tuple[int, int], end: tuple[int, int]) -> None:
    """Dots from one place to the next, where nothing is yet."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for step in range(1, steps):
        column, row = (round(a + (b - a) * step / steps) for a, b in zip(start, end, strict=True))
        if field[row][column] == " ":
            field[row][column] = JOINT


def _round_below(value: float) -> float:
    """The greatest of 1, 2 and 5 times a power of ten that is not above `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(step * power for step in (1, 2, 5) if step * power <= value * (1 + 1e-9))


def short(value: float) -> str:
    """Up to three digits and a k or M: ``0.25``, ``12.5``, ``8.2k``."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
