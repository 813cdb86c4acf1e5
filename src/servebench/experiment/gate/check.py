"""One check of a gate: a figure of the candidate's runs against the baseline's, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

from servebench.experiment.comparison.effects import DIFFERENCES
from servebench.experiment.figures import Figure
from servebench.experiment.gate.limits import Limit
from servebench.experiment.gate.spread import Runs, Shift, runs_that_settle, shift

PASS, FAIL, UNDECIDED, NOT_JUDGED = "pass", "fail", "undecided", "not judged"
GIVEN, NOISE, STATED, COUNTED = "given", "noise", "stated", "counted"  # where a limit is from
LEAST_EFFECT = 0.03
FALLBACK = 0.10
FAILED = "failed_share"

Values = Sequence[tuple[str, float | None]]  # plan's hash and figure of each run


@dataclass(frozen=True, slots=True)
class Check:
    """What was held against what. Changes and their limits are signed shares of the baseline's figure.

    Attributes:
        name: as it is listed: the figure with its limit.
        figure, unit, better: which figure, and which way is better.
        source: of the limit: "given" by the user, "noise" of the baseline, "stated" for want of runs that say it, or
            "counted" (failed requests).
        limit: of the change; of the value itself when `absolute`; None where chance alone decides ("counted").
        absolute: whether the limit is one of the value.
        base, cand: median over the runs; for counts and shares their mean.
        change: of the candidate's against the baseline's figure; None where the limit is absolute.
        noise: the change for the worse that equal code stays within; None when too few runs say it.
        found_from: the true change that this check finds in 95 % of all cases; None likewise.
        design: "one plan", "pairs", "separate plans"; empty where no plans matter.
        base_runs, cand_runs: that have the figure.
        status: "pass", "fail", "undecided" or "not judged".
        text: the finding in a sentence.
    """

    name: str
    figure: str
    unit: str
    better: str
    source: str
    limit: float | None
    absolute: bool = False
    base: float | None = None
    cand: float | None = None
    change: float | None = None
    noise: float | None = None
    found_from: float | None = None
    design: str = ""
    base_runs: int = 0
    cand_runs: int = 0
    status: str = NOT_JUDGED
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(found: Figure, given: Limit | None, base: Values, cand: Values, alpha: float) -> Check:
    """Judge one figure.

    Args:
        found: the figure.
        given: the user's limit; None takes the baseline's noise, but not less than `LEAST_EFFECT`.
        base, cand: of every run.
        alpha: how often equal code may fail this check.
    """
    ours, theirs = _known(base), _known(cand)
    blank = _blank(found, given, ours, theirs)
    if not theirs or (not ours and not blank.absolute):
        side = "candidate" if not theirs else "baseline"
        return replace(blank, text=f"no run of the {side} has {found.name}")
    if blank.absolute:
        return _absolute(blank)
    if min(value for _, value in (*ours, *theirs)) <= 0:
        return replace(blank, text=f"{found.name} is 0 in some runs, so there is no ratio of it")
    return _relative(blank, shift(_runs(ours), _runs(theirs)), alpha)


def _known(values: Values) -> list[tuple[str, float]]:
    return [(plan, value) for plan, value in values if value is not None]


def _runs(values: Sequence[tuple[str, float]]) -> Runs:
    return Runs([plan for plan, _ in values], [value for _, value in values])


def _blank(
    found: Figure, given: Limit | None, base: Sequence[tuple[str, float]], cand: Sequence[tuple[str, float]]
) -> Check:
    """The check before it is judged: what is known without it."""
    centre = fmean if found.name in DIFFERENCES else median
    return Check(
        name=given.text if given else found.name,
        figure=found.name,
        unit=found.unit,
        better=found.better,
        source=GIVEN if given else NOISE,
        limit=given.bound if given else _signed(found.better, LEAST_EFFECT),
        absolute=given is not None and not given.relative,
        base=centre(value for _, value in base) if base else None,
        cand=centre(value for _, value in cand) if cand else None,
        base_runs=len(base),
        cand_runs=len(cand),
    )


def _signed(better: str, size: float) -> float:
    """A change for the worse of this size."""
    return size if better == "lower" else -size


def _absolute(blank: Check) -> Check:
    """A limit of the value is a promise, not a comparison: the middle run keeps it or does not."""
    assert blank.cand is not None
    assert blank.limit is not None
    beyond = blank.cand > blank.limit if blank.better == "lower" else blank.cand < blank.limit
    word = "beyond" if beyond else "within"
    return replace(blank, status=FAIL if beyond else PASS, text=f"{word} the limit")


def _relative(blank: Check, found: Shift, alpha: float) -> Check:
    """Hold the change against its limit, and where that is given, against what chance alone does."""
    sign = 1 if blank.better == "lower" else -1
    worse, chance = sign * found.estimate, found.chance(alpha)
    limit, source = _limit(blank, sign, chance)
    seen = found.found_from(limit if chance is None else max(limit, chance))
    judged = replace(
        blank,
        source=source,
        limit=_share(sign * limit),
        change=_share(found.estimate),
        noise=None if chance is None else _share(sign * chance),
        found_from=None if seen is None else _share(sign * seen),
        design=found.design,
    )
    if worse <= limit:
        return replace(judged, status=PASS, text=_within(worse, chance))
    if chance is not None and worse <= chance:
        return replace(judged, status=UNDECIDED, text=_undecided(found, limit, alpha))
    unknown = "" if chance is not None else "; too few baseline runs to say what chance alone does"
    return replace(judged, status=FAIL, text=f"worse by more than the limit{unknown}")


def _limit(blank: Check, sign: int, chance: float | None) -> tuple[float, str]:
    """The limit of a change for the worse, as a positive logarithm, and where it is from."""
    if blank.source == GIVEN:
        assert blank.limit is not None
        return sign * math.log1p(blank.limit), GIVEN
    if chance is None:
        return abs(math.log1p(_signed(blank.better, FALLBACK))), STATED
    return max(chance, abs(math.log1p(_signed(blank.better, LEAST_EFFECT)))), NOISE


def _share(log: float) -> float:
    return math.expm1(log)


def _within(worse: float, chance: float | None) -> str:
    if chance is not None and worse < -max(chance, LEAST_EFFECT):
        return "better than the baseline, beyond its noise: a new baseline would guard that"
    return "within the limit"


def _undecided(found: Shift, limit: float, alpha: float) -> str:
    more = runs_that_settle(found, limit, alpha)
    wanted = f"{more} runs on each side would settle it" if more else "the limit is too fine for this noise"
    return f"beyond the limit, but equal code comes this far by chance; {wanted}"


def failures(base: Mapping[str, int], cand: Mapping[str, int], alpha: float) -> Check:
    """Whether more of the candidate's requests failed than chance explains, by Fisher's exact test of the counts.

    Args:
        base, cand: "planned" and "ok" requests of all runs' cohorts together.
        alpha: how often equal code may fail this check.
    """
    blank = Check(FAILED, FAILED, "", "lower", COUNTED, None)
    if not base["planned"] or not cand["planned"]:
        return replace(blank, text="no requests were due")
    lost = {side: counts["planned"] - counts["ok"] for side, counts in (("base", base), ("cand", cand))}
    p = _more_by_chance(lost["base"], base["planned"], lost["cand"], cand["planned"])
    here = f"{lost['cand']} of {cand['planned']:,} requests failed"
    return replace(
        blank,
        base=lost["base"] / base["planned"],
        cand=lost["cand"] / cand["planned"],
        status=FAIL if p < alpha else PASS,
        text=f"{here}, {lost['base']} of {base['planned']:,} in the baseline",
    )


def _more_by_chance(lost: int, planned: int, lost_there: int, planned_there: int) -> float:
    """P that at least `lost_there` of all the failures fall on the second side (Fisher, one-sided)."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(lost_there - 1, planned + planned_there, lost + lost_there, planned_there))
