"""Holm's step-down correction: a family of tests with one chance of a false alarm."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from servebench.analysis.stats.inputs import Floats, numbers


def holm(p: ArrayLike) -> Floats:
    """Adjusted p in the order given: reject where it is at most alpha, and the family's false alarms stay below alpha.

    The smallest of m is multiplied by m, the next by m − 1, and so on; never below the one before, never above 1.

    Raises:
        ValueError: NaN, or a p outside 0 to 1.
    """
    given = numbers(p, "p values", least=0)
    if ((given < 0) | (given > 1)).any():
        raise ValueError("p values lie between 0 and 1")
    order = np.argsort(given, kind="stable")
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * np.arange(given.size, 0, -1)))
    return adjusted
