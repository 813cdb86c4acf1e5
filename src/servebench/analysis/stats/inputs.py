"""What the statistics take: finite numbers, and enough of them. Whatever else comes in is an error that says so."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def numbers(values: ArrayLike, what: str, least: int = 1) -> Floats:
    """The values as a vector of floats.

    Raises:
        ValueError: not one-dimensional, fewer than `least` values, or one that is NaN or infinite.
    """
    array = _finite(values, what)
    if array.ndim != 1:
        raise ValueError(f"{what}: {array.ndim} dimensions where one is meant")
    if array.size < least:
        raise ValueError(f"{what}: {array.size} values where at least {least} are needed")
    return array


def rows_of(values: ArrayLike, what: str) -> Floats:
    """The same for many vectors at once, (..., n); raises ValueError when they are empty, or a value is not finite."""
    array = _finite(values, what)
    if array.ndim < 1 or array.shape[-1] < 1:
        raise ValueError(f"{what}: no values")
    return array


def between(value: float, what: str, low: float = 0.0, high: float = 1.0) -> float:
    """The value, strictly between the bounds; raises ValueError when it is not."""
    if not low < value < high:
        raise ValueError(f"{what} is {value}, which is not between {low:g} and {high:g}")
    return value


def _finite(values: ArrayLike, what: str) -> Floats:
    array = np.asarray(values, np.float64)
    wrong = int(array.size - np.isfinite(array).sum())
    if wrong:
        raise ValueError(f"{what}: {wrong} of {array.size} values are missing or infinite")
    return array
