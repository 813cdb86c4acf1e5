"""The noise floor: how far apart two arms are that are the same (A/A)."""

from __future__ import annotations

import math

import numpy as np

from servebench.experiment.comparison.contrast import Contrast, contrast, has_ratio, pairs_of
from servebench.experiment.comparison.effects import DIFFERENCES, Figures, tidy


def noise_floors(base: Figures, again: Figures) -> dict[str, float]:
    """The floor of each figure as a ratio such as 1.02, from pairs of base and the base again.

    It is the far end of the interval of the A/A ratio, by the very test and interval that judge the candidates: the
    largest difference between equal arms that the pairs are compatible with, a drift from one place in the order to the
    next included. With fewer than six pairs, which have no interval, it is the largest difference of a pair; of six it
    is that as well. Figures that may be 0, or that no pair has, have no floor.
    """
    found = {}
    for name in base:
        ours, theirs = pairs_of(base[name], again.get(name, [None] * len(base[name])))
        if name not in DIFFERENCES and ours.size and has_ratio(ours, theirs):
            each = contrast(ours, theirs, paired=True, logs=True)
            assert each is not None, "there is a pair"
            found[name] = tidy(math.exp(_far_end(each)))
    return found


def _far_end(found: Contrast) -> float:
    low, high = found.interval.low, found.interval.high
    if low is None or high is None:
        return float(np.abs(found.differences).max())
    return max(abs(low), abs(high))
