"""Power by resampling: how often a true effect would be found, given the spread that runs have shown.

Runs are drawn with replacement from those there are, moved to the effect, and put through the very test that will judge
them. Few runs look less scattered than their law is, so their deviations are stretched by √(n/(n−1)) first. With few
runs the answer is itself uncertain: a guide for the number of repeats, no promise.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from servebench.analysis.stats.inputs import Floats, between, numbers
from servebench.analysis.stats.permutation import (
    least_p_paired,
    least_p_unpaired,
    pairs_that_reach,
    runs_that_reach,
    sign_flip_p,
    two_sample_p,
)

RESAMPLES = 1_000
REARRANGEMENTS = 2**11  # of each resample: p is exact to 11 pairs or 6 + 7 runs, and a power is no finer than 1 %
SEED = 20261130


def power_paired(differences: ArrayLike, effect: float, pairs: int, alpha: float = 0.05, seed: int = SEED) -> float:
    """Share of experiments of so many pairs in which the sign-flip test finds a mean difference of `effect`.

    Arguments:
        differences: of the pairs seen, at least 2, in the unit of `effect` (log ratios, usually).

    Raises:
        ValueError: fewer than 2 differences, NaN, or an alpha that is outside 0 to 1.
    """
    deviations = _deviations(differences, "differences")
    if least_p_paired(pairs) > between(alpha, "alpha"):
        return 0.0
    return _found(sign_flip_p(_drawn(deviations, pairs, _generator(seed)) + effect, REARRANGEMENTS), alpha)


def power_unpaired(
    a: ArrayLike, b: ArrayLike, effect: float, runs: int, alpha: float = 0.05, seed: int = SEED
) -> float:
    """The same for the two-sample test of two arms of so many runs each, whose spreads are those of `a` and `b`."""
    first, second = _deviations(a, "first arm"), _deviations(b, "second arm")
    if least_p_unpaired(runs, runs) > between(alpha, "alpha"):
        return 0.0
    generator = _generator(seed)
    base, moved = _drawn(first, runs, generator), _drawn(second, runs, generator) + effect
    return _found(two_sample_p(base, moved, REARRANGEMENTS), alpha)


def pairs_needed(
    differences: ArrayLike, effect: float, power: float = 0.8, alpha: float = 0.05, most: int = 200, seed: int = SEED
) -> int | None:
    """Fewest pairs in all with which `effect` is found with so much power; None when more than `most` are needed."""
    wanted = between(power, "power")
    return _least(lambda n: power_paired(differences, effect, n, alpha, seed) >= wanted, pairs_that_reach(alpha), most)


def runs_needed(
    a: ArrayLike,
    b: ArrayLike,
    effect: float,
    power: float = 0.8,
    alpha: float = 0.05,
    most: int = 200,
    seed: int = SEED,
) -> int | None:
    """Fewest runs in each of two arms with which `effect` is found; None when more than `most` are needed."""
    wanted = between(power, "power")
    return _least(lambda n: power_unpaired(a, b, effect, n, alpha, seed) >= wanted, runs_that_reach(alpha), most)


def _deviations(values: ArrayLike, what: str) -> Floats:
    runs = numbers(values, what, least=2)
    stretched: Floats = (runs - runs.mean()) * math.sqrt(runs.size / (runs.size - 1))
    return stretched


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def _drawn(deviations: Floats, runs: int, generator: np.random.Generator) -> Floats:
    return deviations[generator.integers(deviations.size, size=(RESAMPLES, runs))]


def _found(p: Floats, alpha: float) -> float:
    return float((p <= alpha).mean())


def _least(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """Power grows with the number of runs, so the least one is found by doubling, since few are cheap, then halving."""
    at = low
    while at <= high and not enough(at):
        low, at = at + 1, high if at < high < 2 * at else 2 * at
    return low + bisect_left(range(low, at), True, key=enough) if at <= high else None
