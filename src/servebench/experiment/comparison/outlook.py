"""What a design could find, and how much more of it would settle what is undecided."""

from __future__ import annotations

import math
from dataclasses import dataclass

from servebench.analysis.stats.power import pairs_needed, power_paired, power_unpaired, runs_needed
from servebench.experiment.comparison.conclusion import Limits
from servebench.experiment.comparison.contrast import Contrast

LEAST_RUNS = 2  # a spread needs two
MOST_RUNS = 200


@dataclass(frozen=True, slots=True)
class Outlook:
    """By resampling the runs that there are, which is a guide and no promise with few of them.

    Attributes:
        power: chance that the test finds a true effect of the size that matters; None with fewer than two runs.
        more_runs: pairs, or runs an arm, that are missing until an effect as large as the estimate (or as what matters,
            where that is larger) is found in four of five experiments, and the noise floor is below it; None when
            settled, or beyond `MOST_RUNS`.
    """

    power: float | None
    more_runs: int | None


def outlook(found: Contrast, limits: Limits, level: float, least: int, *, settled: bool) -> Outlook:
    """The outlook of a tested figure.

    Args:
        found: of logarithms.
        limits: of the experiment.
        level: of this test within its family.
        least: pairs, or runs an arm, that it takes until it can be decided at all; 0 where there are enough.
        settled: whether there is nothing left to settle.
    """
    have = int(min(found.base.size, found.cand.size))
    power = None if have < LEAST_RUNS else _power(found, limits.matters, have, level)
    if settled:
        return Outlook(power, None)
    if have < least:
        return Outlook(power, least - have)
    size = max(limits.matters, abs(found.estimate))
    wanted = _needed(found, size, level)
    if wanted is not None and limits.noise > size:
        wanted = max(wanted, math.ceil(have * (limits.noise / size) ** 2))  # the floor falls with the root of the pairs
    return Outlook(power, max(1, wanted - have) if wanted is not None and wanted <= MOST_RUNS else None)


def _power(found: Contrast, size: float, have: int, alpha: float) -> float:
    if found.paired:
        return power_paired(found.differences, size, have, alpha)
    return power_unpaired(found.base, found.cand, size, have, alpha)


def _needed(found: Contrast, size: float, alpha: float) -> int | None:
    if found.paired:
        return pairs_needed(found.differences, size, alpha=alpha, most=MOST_RUNS)
    return runs_needed(found.base, found.cand, size, alpha=alpha, most=MOST_RUNS)
