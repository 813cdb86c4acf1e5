"""One figure of one candidate against the base: what was estimated, tested and concluded.

The JSON of an effect (`Effect.to_dict`) has exactly the attributes of `Effect`; reports render that.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

PRIMARY, SECONDARY, ESTIMATE = "primary", "secondary", "estimate"
BETTER, WORSE, NO_DIFFERENCE = "better", "worse", "no difference"
UNDECIDED, NOT_TESTED = "undecided", "not tested"


@dataclass(frozen=True, slots=True)
class Effect:
    """What the candidate does to one figure.

    Attributes:
        figure: name, such as "ttft.p99".
        title: for people.
        unit: of `base` and `cand`, and of `ratio` where `kind` is "difference".
        better: "lower" or "higher".
        kind: "ratio", or "difference" for figures that may be 0, of which no ratio can be taken.
        role: "primary" or "secondary" (tested), or "estimate" (never tested).
        paired: whether runs were compared in pairs of one plan.
        n: pairs, where paired; else None.
        n_base: runs of the base that have the figure.
        n_cand: runs of the candidate that have it.
        base: median over those runs; None without any.
        cand: likewise.
        ratio: candidate over base: the median of the pairs' ratios, or unpaired the ratio of the geometric means.
            Where `kind` is "difference", candidate minus base: the median of the pairs', or unpaired of the means.
        low: end of the interval of `ratio`; None when so few runs can never reach `confidence`.
        high: the other end.
        confidence: what the interval really reaches, such as 0.969 for six pairs; None without one.
        p: two-sided, of the permutation test; None when not tested, or when the design can never reach the level.
        p_adjusted: after Holm's weighted correction over all tested figures and candidates (see `family`); at most the
            level where something was found.
        least_p: the smallest `p` that so many runs can give; None for estimates.
        verdict: "better", "worse", "no difference", "undecided" or "not tested".
        floor: how far apart two equal arms were (A/A), as a ratio such as 1.02; None where it was not measured.
        power: chance that the test of so many runs finds a true effect of the size that matters; None if not computed.
        more_runs: about how many more pairs (runs an arm, unpaired) would settle it; None when settled or unknown.
        reason: why this verdict, in one phrase.
    """

    figure: str
    title: str
    unit: str
    better: str
    kind: str
    role: str
    paired: bool
    n: int | None
    n_base: int
    n_cand: int
    base: float | None
    cand: float | None
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float | None
    p: float | None
    p_adjusted: float | None
    least_p: float | None
    verdict: str
    floor: float | None
    power: float | None
    more_runs: int | None
    reason: str

    @property
    def tested(self) -> bool:
        """Whether the figure was named for testing before anything was measured."""
        return self.role != ESTIMATE

    def to_dict(self) -> dict[str, Any]:
        """The effect as plain JSON-able data."""
        return asdict(self)
