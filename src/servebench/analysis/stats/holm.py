"""Holm's step-down correction: a family of tests with one chance of a false alarm, shared out by weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from servebench.analysis.stats.inputs import Floats, numbers


def holm(p: ArrayLike, weights: ArrayLike | None = None) -> Floats:
    """Adjusted p in the order given: reject where it is at most alpha, and the family's false alarms stay below alpha.

    A test of weight w begins with the share w of alpha; what is rejected leaves its share to the others, in proportion
    to their weights (Holm 1979, section 4). Equal weights give the usual procedure: the smallest of m is multiplied by
    m, the next by m − 1, and so on; never below the one before, never above 1.

    Args:
        p: one a test.
        weights: above 0; only their proportions count. None for equal ones.

    Raises:
        ValueError: NaN, a p outside 0 to 1, a weight that is not above 0, or another number of them.
    """
    given = numbers(p, "p values", least=0)
    shares = np.ones_like(given) if weights is None else numbers(weights, "weights", least=0)
    if ((given < 0) | (given > 1)).any():
        raise ValueError("p values lie between 0 and 1")
    if given.size != shares.size or not (shares > 0).all():
        raise ValueError(f"{given.size} p values take as many weights above 0")
    order = np.argsort(given / shares, kind="stable")
    left = np.cumsum(shares[order][::-1])[::-1]
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * left / shares[order]))
    return adjusted
