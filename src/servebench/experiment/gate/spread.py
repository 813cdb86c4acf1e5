"""How far the runs of one and the same code lie apart, and so from where on a difference is more than that.

A gate must not fail equal code, so its limits come from runs of equal code: those of its baseline. Figures are taken as
logarithms. With base runs b and candidate runs c the estimate is the difference of their medians, and what chance alone
brings it to is t(1 − α; n − 1) · s · √(v(n) + v(m)): s the standard deviation of the n base runs, t Student's quantile
(a prediction interval), v(n) the variance of the median of n normal values in units of theirs. Medians, so that one run
disturbed by something else does not decide; s of the baseline alone, so that a candidate that scatters more does not
widen its own limit. Runs that come in pairs of one plan are differences of pairs, and s is that of the differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LEAST_RUNS = 5  # fewer say too little of their spread: t(0.9998; 3) is 22
MOST_RUNS = 200
POWER = 0.95

ONE_PLAN, PAIRS, APART = "one plan", "pairs", "separate plans"

# Variance of the median of n standard normal values, by the moments of their order statistics, to four digits.
_MEDIAN_VARIANCE = (1.0, 0.5, 0.4487, 0.2982, 0.2868, 0.2147, 0.2104, 0.1682, 0.1661, 0.1383)

Logs = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Runs:
    """A figure of several runs.

    Attributes:
        plans: the hash of each run's plan.
        values: the figure, positive.
    """

    plans: Sequence[str]
    values: Sequence[float]

    def by_plan(self) -> Mapping[str, float]:
        """The median logarithm of each plan's runs."""
        grouped: dict[str, list[float]] = {}
        for plan, value in zip(self.plans, self.values, strict=True):
            grouped.setdefault(plan, []).append(math.log(value))
        return {plan: float(np.median(logs)) for plan, logs in grouped.items()}

    @property
    def logs(self) -> Logs:
        return np.log(np.asarray(self.values, np.float64))


@dataclass(frozen=True, slots=True)
class Shift:
    """How far the candidate's runs lie from the baseline's, on a log scale, and how far chance alone brings them.

    Attributes:
        design: "one plan", "pairs", or "separate plans" (whose spread includes that between plans).
        estimate: log of candidate over base.
        deviation: s; None when too few runs say it.
        runs: from which s is, pairs or base runs.
        base, cand: how many medians' worth of runs stand against each other; `base` is 0 in pairs.
    """

    design: str
    estimate: float
    deviation: float | None
    runs: int
    base: int
    cand: int

    def chance(self, alpha: float) -> float | None:
        """The estimate that equal code exceeds, in one given direction, with probability `alpha`; None if unknown."""
        if self.deviation is None:
            return None
        return student(1 - alpha, self.runs - 1) * self._error()

    def found_from(self, limit: float) -> float | None:
        """The true shift that comes out beyond `limit` in `POWER` of all cases; None if unknown."""
        return None if self.deviation is None else limit + student(POWER, self.runs - 1) * self._error()

    def _error(self) -> float:
        assert self.deviation is not None
        return self.deviation * math.sqrt((median_variance(self.base) if self.base else 0) + median_variance(self.cand))


def shift(base: Runs, cand: Runs) -> Shift:
    """Compare two sets of at least one run each, in the strictest design that they allow."""
    if len({*base.plans, *cand.plans}) == 1:
        return _two_samples(ONE_PLAN, base.logs, cand.logs)
    ours, theirs = base.by_plan(), cand.by_plan()
    common = [plan for plan in ours if plan in theirs]
    if len(common) < LEAST_RUNS:
        return _two_samples(APART, base.logs, cand.logs)
    differences = np.array([theirs[plan] - ours[plan] for plan in common])
    return Shift(PAIRS, float(np.median(differences)), float(differences.std(ddof=1)), len(common), 0, len(common))


def _two_samples(design: str, base: Logs, cand: Logs) -> Shift:
    deviation = float(base.std(ddof=1)) if base.size >= LEAST_RUNS else None
    estimate = float(np.median(cand) - np.median(base))
    return Shift(design, estimate, deviation, base.size, base.size, cand.size)


def median_variance(n: int) -> float:
    """Variance of the median of `n` independent normal values in units of theirs.

    From a table up to ten; beyond, π/(2n + π − 2), which errs by less than 1 % for odd n and upwards for even ones.
    """
    return _MEDIAN_VARIANCE[n - 1] if n <= len(_MEDIAN_VARIANCE) else math.pi / (2 * n + math.pi - 2)


@lru_cache(maxsize=1024)
def student(share: float, freedom: int) -> float:
    """Quantile of Student's law."""
    from scipy.stats import t

    return float(t.ppf(share, freedom))


def runs_that_settle(found: Shift, limit: float, alpha: float) -> int | None:
    """How many runs on each side keep what chance does within `limit`; None when `MOST_RUNS` do not."""
    if found.deviation is None:
        return None
    for n in range(LEAST_RUNS, MOST_RUNS + 1):
        error = found.deviation * math.sqrt(median_variance(n) * (1 if found.design == PAIRS else 2))
        if student(1 - alpha, n - 1) * error <= limit:
            return n
    return None
