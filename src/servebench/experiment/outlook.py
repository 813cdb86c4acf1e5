"""What a design could find, and how much more of it would settle what is undecided."""

from __future__ import annotations

from dataclasses import dataclass

from servebench.analysis.stats.permutation import pairs_that_reach, runs_that_reach
from servebench.analysis.stats.power import pairs_needed, power_paired, power_unpaired, runs_needed
from servebench.experiment.conclusion import Limits
from servebench.experiment.contrast import Contrast

LEAST_RUNS = 2  # a spread needs two
MOST_RUNS = 200


@dataclass(frozen=True, slots=True)
class Outlook:
    """By resampling the runs that there are, which is a guide and no promise with few of them.

    Attributes:
        power: chance that the test finds a true effect of the size that matters; None with fewer than two runs.
        more_runs: pairs, or runs an arm, that are missing until an effect as large as the estimate (or as what matters,
            where that is larger) is found in four of five experiments; None when settled, or beyond `MOST_RUNS`.
    """

    power: float | None
    more_runs: int | None


def outlook(found: Contrast, limits: Limits, tests: int, *, settled: bool) -> Outlook:
    """The outlook of a tested figure, at the level of Holm's first step among so many tests."""
    have = min(found.base.size, found.cand.size)
    least = runs_wanted(found.paired, limits.alpha, tests)
    if have < LEAST_RUNS:
        return Outlook(None, None if settled else max(1, least - have))
    size, alpha = max(limits.matters, limits.noise), limits.alpha / tests
    power = _power(found, size, have, alpha)
    wanted = None if settled else _needed(found, max(size, abs(found.estimate)), alpha)
    return Outlook(power, None if wanted is None else max(1, wanted - have))


def runs_wanted(paired: bool, alpha: float, tests: int) -> int:
    """Fewest pairs, or runs an arm, with which a test among so many can reach the level at all."""
    return pairs_that_reach(alpha, tests) if paired else runs_that_reach(alpha, tests)


def _power(found: Contrast, size: float, have: int, alpha: float) -> float:
    if found.paired:
        return power_paired(found.differences, size, have, alpha)
    return power_unpaired(found.base, found.cand, size, have, alpha)


def _needed(found: Contrast, size: float, alpha: float) -> int | None:
    if found.paired:
        return pairs_needed(found.differences, size, alpha=alpha, most=MOST_RUNS)
    return runs_needed(found.base, found.cand, size, alpha=alpha, most=MOST_RUNS)
