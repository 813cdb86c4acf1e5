"""The noise floor: how far apart two arms are found to be that are the same (A/A)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from servebench.experiment.comparison.contrast import has_ratio, pairs_of
from servebench.experiment.comparison.effects import DIFFERENCES, Figures, tidy

RESAMPLES = 4000
SEED = 20261130
SHARE = 0.95


def noise_floors(base: Figures, again: Figures) -> dict[str, float]:
    """The floor of each figure as a ratio such as 1.02, from pairs of base and the base again.

    It is what an estimate, the median of as many pairs, stays below in 95 of 100 experiments whose arms are the same
    and whose pairs scatter as the A/A pairs do: those are drawn again and again, with replacement, and each is as
    likely the other way about. Since few pairs tell little of that scatter, about 91 of 100 stay below the floor of six
    pairs (simulated). Figures that may be 0, or that no pair has, have no floor.
    """
    found = {}
    for name in base:
        ours, theirs = pairs_of(base[name], again.get(name, [None] * len(base[name])))
        if name not in DIFFERENCES and ours.size and has_ratio(ours, theirs):
            found[name] = tidy(math.exp(_floor(np.log(theirs) - np.log(ours))))
    return found


def _floor(differences: NDArray[np.float64]) -> float:
    random = np.random.Generator(np.random.PCG64(SEED))  # the same each time, so that a report can be computed again
    shape = (RESAMPLES, differences.size)
    drawn = random.choice(differences, shape) * random.choice([-1.0, 1.0], shape)
    return float(np.quantile(np.abs(np.median(drawn, axis=1)), SHARE))
