"""What may be concluded of one figure, and why, in a phrase.

Something is better or worse when the test finds it at the level *and the point estimate* lies beyond the size that
matters (`min_effect`, or the A/A noise floor where that is larger). That the whole interval lies beyond it is not asked
for: six pairs would then find a true effect of three times the size only. There is no difference when the whole
interval lies within the size that matters, or when what was found is smaller than it. Everything else is undecided,
as are pairs of two kinds: the test is one of their mean, the estimate is their median, and where these do not agree
neither is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from servebench.experiment.comparison.contrast import Contrast
from servebench.experiment.comparison.effect import BETTER, NO_DIFFERENCE, UNDECIDED, WORSE


@dataclass(frozen=True, slots=True)
class Limits:
    """Against what an estimate is held.

    Attributes:
        alpha: level of the test, after Holm.
        min_effect: the size that matters, 0.03 for 3 %.
        floor: A/A noise floor as a ratio such as 1.02; None where it was not measured.
    """

    alpha: float
    min_effect: float
    floor: float | None = None

    @property
    def matters(self) -> float:
        """The size that matters, as a logarithm."""
        return math.log1p(self.min_effect)

    @property
    def noise(self) -> float:
        """The noise floor as a logarithm; 0 where it was not measured."""
        return math.log(self.floor) if self.floor is not None else 0.0


def conclude(found: Contrast, p: float | None, limits: Limits, better: str) -> tuple[str, str]:
    """The verdict of a tested ratio and the reason for it.

    Args:
        found: of logarithms.
        p: after Holm's correction; None when so few runs can never reach the level.
        limits: of the experiment.
        better: "lower" or "higher".
    """
    size, significant = abs(found.estimate), p is not None and p <= limits.alpha
    if significant and found.paired and _uneven(found, limits.matters):
        return UNDECIDED, f"real (p {p:.2g}), but the pairs are of two kinds: their median and mean do not agree"
    if significant and size > max(limits.matters, limits.noise):
        improved = (found.estimate < 0) == (better == "lower")
        return BETTER if improved else WORSE, f"p {p:.2g}, and beyond {_bar(limits)}"
    if _within(found, limits.matters):
        return NO_DIFFERENCE, f"the whole interval lies within the {_percent(limits)} that matter"
    if significant and size <= limits.matters:
        return NO_DIFFERENCE, f"real (p {p:.2g}), but smaller than the {_percent(limits)} that matter"
    if significant:
        return UNDECIDED, f"not further apart than two equal arms may be ({math.expm1(limits.noise) * 100:.2g} %)"
    return UNDECIDED, "" if p is None else f"may be chance (p {p:.2g})"


def _uneven(found: Contrast, size: float) -> bool:
    """Whether median and mean of the pairs are on two sides of 0, or only the mean is beyond the size that matters."""
    mean = float(found.differences.mean())
    return mean * found.estimate < 0 or abs(found.estimate) <= size < abs(mean)


def _within(found: Contrast, size: float) -> bool:
    low, high = found.interval.low, found.interval.high
    return low is not None and high is not None and -size <= low and high <= size


def _bar(limits: Limits) -> str:
    if limits.noise <= limits.matters:
        return f"the {_percent(limits)} that matter"
    return f"the {math.expm1(limits.noise) * 100:.2g} % that two equal arms may be apart"


def _percent(limits: Limits) -> str:
    return f"{limits.min_effect * 100:g} %"
