"""How far apart two sets of runs are in one figure: an estimate, its interval and its permutation test.

Ratios are worked on as logarithms, so that "twice" and "half" are equally far. A figure that may be 0 is compared by
difference. In pairs (runs of one plan) the estimate is the median of the pairs' ratios, the test the exact sign-flip
test of the pairs' mean logarithm and the interval that test's inversion (Hartigan's subset means); without pairs the
estimate is the ratio of the geometric means and test and interval those of two samples of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.stats.interval import Interval
from servebench.analysis.stats.permutation import (
    Test,
    sign_flip,
    sign_flip_interval,
    two_sample,
    two_sample_interval,
)

CONFIDENCE = 0.95

Runs = NDArray[np.float64]  # one value a run, NaN where the run has none
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Contrast:
    """Base and candidate in one figure.

    Attributes:
        paired: whether run i of the one belongs to run i of the other.
        logs: whether `base`, `cand`, the estimate and the interval are logarithms.
        base: of the runs that count, at least one; in pairs as many as `cand`.
        cand: likewise.
        estimate: candidate minus base.
        interval: of the estimate; its ends are None when so few runs never reach `CONFIDENCE`.
        test: of no difference; its `least_p` is the smallest p that so many runs can give.
    """

    paired: bool
    logs: bool
    base: Runs
    cand: Runs
    estimate: float
    interval: Interval
    test: Test

    @property
    def differences(self) -> Runs:
        """Candidate minus base of every pair."""
        return self.cand - self.base


def pairs_of(base: Values, cand: Values) -> tuple[Runs, Runs]:
    """The pairs of which both runs have a value."""
    both = np.array(
        [(b, c) for b, c in zip(base, cand, strict=True) if b is not None and c is not None], np.float64
    ).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def known(values: Values) -> Runs:
    """The values of the runs that have one."""
    return np.array([value for value in values if value is not None], np.float64)


def has_ratio(*sides: Runs) -> bool:
    """Whether every value is above 0, as a ratio needs."""
    return all(bool((side > 0).all()) for side in sides)


def contrast(base: Runs, cand: Runs, *, paired: bool, logs: bool) -> Contrast | None:
    """Compare runs that all have the figure; None when a side has no run."""
    if not base.size or not cand.size:
        return None
    if logs:
        base, cand = np.log(base), np.log(cand)
    return _in_pairs(base, cand, logs) if paired else _apart(base, cand, logs)


def _in_pairs(base: Runs, cand: Runs, logs: bool) -> Contrast:
    differences = cand - base
    estimate = float(np.median(differences))
    interval = sign_flip_interval(differences, CONFIDENCE)
    return Contrast(True, logs, base, cand, estimate, _around(interval, estimate), sign_flip(differences))


def _apart(base: Runs, cand: Runs, logs: bool) -> Contrast:
    estimate = float(cand.mean() - base.mean())
    interval = two_sample_interval(base, cand, CONFIDENCE)
    return Contrast(False, logs, base, cand, estimate, interval, two_sample(base, cand))


def _around(interval: Interval, estimate: float) -> Interval:
    """Widen an interval that was made for the mean until it holds the median, which skewed pairs may put outside."""
    if interval.low is None or interval.high is None:
        return interval
    return Interval(min(interval.low, estimate), max(interval.high, estimate), interval.confidence_reached)
