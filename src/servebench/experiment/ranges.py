"""Ranges of values as people write them: ``1..64:log8``, ``0.5..0.9:lin5``, ``1..10:2``."""

from __future__ import annotations

import math
import re

from servebench.errors import UsageError

MOST_VALUES = 500
DIGITS = 4  # significant, of a point between the ends: nobody wants to read 10.766857731298
EXAMPLE = "1..64:log8 (8 points, equal ratios), 1..10:lin4 (4 points, equal steps) or 1..10:3 (in steps of 3)"

_NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_END = rf"{_NUMBER}\s*([a-zA-Zµ/]*)"
_RANGE = re.compile(rf"{_END}\s*\.\.\s*{_END}(?:\s*:\s*(\S.*?))?")
_MULTIPLES = {"k": 1_000, "M": 1_000_000}


def is_range(text: str) -> bool:
    """Whether `text` is two numbers with two dots between them."""
    return _RANGE.fullmatch(text.strip()) is not None


def range_values(text: str, whole: bool) -> tuple[str, ...]:
    """The values of a range, ends included where the steps reach them, as texts with the range's unit.

    Args:
        text: as `EXAMPLE` says; both ends in one unit, or only the upper one with it: ``1..8ms:log4``.
        whole: the key takes whole numbers, so points between whole ends are rounded; equal ones are kept once.

    Raises:
        UsageError: no such range, or one with too many values.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"expected a range such as {EXAMPLE}, not {text!r}")
    low, high, unit = _ends(match, text)
    points = _points(low, high, match[5], text)
    if whole and not unit and low == int(low) and high == int(high):
        points = [float(round(point)) for point in points]
    return tuple(dict.fromkeys(f"{_written(point)}{unit}" for point in points))


def _ends(match: re.Match[str], text: str) -> tuple[float, float, str]:
    """Both ends and their unit; k and M, which stand for a factor, are multiplied out."""
    unit = match[4]
    if match[2] not in ("", unit):
        raise UsageError(f"{text!r}: both ends of a range take the same unit, not {match[2]!r} and {unit!r}")
    factor = _MULTIPLES.get(unit, 1)
    low, high = float(match[1]) * factor, float(match[3]) * factor
    if not math.isfinite(high - low):
        raise UsageError(f"{text!r}: the ends of a range must be finite")
    if not low < high:
        raise UsageError(f"{text!r}: a range goes from the lower to the higher value")
    return low, high, "" if unit in _MULTIPLES else unit


def _points(low: float, high: float, spacing: str | None, text: str) -> list[float]:
    grid = re.fullmatch(r"(log|lin)(\d+)", spacing or "")
    if grid:
        return _grid(low, high, grid[1], int(grid[2]), text)
    step = re.fullmatch(_NUMBER, spacing or "")
    if step is None or not float(step[1]) > 0:
        raise UsageError(f"{text!r}: a range needs its points, such as {EXAMPLE}")
    count = math.floor((high - low) / float(step[1]) + 1e-9) + 1
    _check_count(count, text)
    return [_rounded(low + index * float(step[1]), 12) for index in range(count)]


def _grid(low: float, high: float, kind: str, count: int, text: str) -> list[float]:
    if count < 2:
        raise UsageError(f"{text!r}: a range has 2 points at least")
    _check_count(count, text)
    if kind == "log" and low <= 0:
        raise UsageError(f"{text!r}: equal ratios need a lower end above 0; write lin{count} for equal steps")
    shares = [index / (count - 1) for index in range(1, count - 1)]
    between = [low * (high / low) ** share if kind == "log" else low + (high - low) * share for share in shares]
    return [low, *(_rounded(point, DIGITS) for point in between), high]


def _check_count(count: int, text: str) -> None:
    if count > MOST_VALUES:
        raise UsageError(f"{text!r}: {count} values are more than the {MOST_VALUES} that a range may have")


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _written(value: float) -> str:
    """Without an exponent, which the scenario's units do not read everywhere."""
    return str(int(value)) if value == int(value) else f"{value:.12f}".rstrip("0")
