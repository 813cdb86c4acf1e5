"""Statistics on runs, not on requests: what a candidate does to every figure, tested where that was said in advance.

The family is what is tested, its first figure being the primary; all other figures are estimates. See `contrast` for
the tests, `family` for their correction over figures and candidates, and `conclusion` for the verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.experiment.comparison.conclusion import Limits, conclude
from servebench.experiment.comparison.contrast import Contrast, Values, contrast, has_ratio, known, pairs_of
from servebench.experiment.comparison.effect import (
    BETTER,
    ESTIMATE,
    NOT_TESTED,
    PRIMARY,
    SECONDARY,
    UNDECIDED,
    WORSE,
    Effect,
)
from servebench.experiment.comparison.family import Family, correct, runs_wanted
from servebench.experiment.comparison.outlook import MOST_RUNS, outlook
from servebench.experiment.figures import figure

# Figures that are 0 where all is well, so that no ratio can be taken of them: differences, and estimates only.
DIFFERENCES = frozenset({"failed_share", "preemptions", "prefix_hit_share"})

Figures = Mapping[str, Values]  # by name: one value a run
Sides = tuple[Figures, Figures]  # base and candidate


@dataclass(frozen=True, slots=True)
class Rules:
    """How effects are judged.

    Attributes:
        family: names of the figures that are tested, the primary first.
        paired: whether run i of the base and run i of the candidate are a pair of one plan.
        alpha: level of the whole family of tests.
        min_effect: the size that matters, 0.03 for 3 %.
        floors: A/A noise floor by figure, as a ratio such as 1.02.
        outlook: whether power, and how many more runs would settle it, are computed (by resampling, which takes time).
    """

    family: Sequence[str]
    paired: bool
    alpha: float = 0.05
    min_effect: float = 0.03
    floors: Mapping[str, float] | None = None
    outlook: bool = True

    def limits(self, name: str) -> Limits:
        """Against what the figure `name` is held."""
        return Limits(self.alpha, self.min_effect, (self.floors or {}).get(name))

    def role(self, name: str) -> str:
        """What the figure `name` is there for: "primary", "secondary" or "estimate"."""
        if name not in self.family or name in DIFFERENCES:
            return ESTIMATE
        return PRIMARY if name == self.family[0] else SECONDARY


def judge_candidates(sides: Mapping[str, Sides], rules: Rules) -> dict[str, list[Effect]]:
    """Judge several candidates, each with the runs of the base that it is compared with, under one family.

    Args:
        sides: by candidate; in pairs, value i of both sides is of one plan. None where a run has no value.

    Returns:
        An effect for every figure that a run of both sides has, and for all of the family: its figures first, in order.
    """
    found = {name: _measure(*both, rules) for name, both in sides.items()}
    family = _family(found, rules)
    return {name: [_effect((name, each), family, rules) for each in measured] for name, measured in found.items()}


def trade(effects: Iterable[Effect]) -> str | None:
    """One sentence when the candidate is better in something tested and worse in something else; else None."""
    gains = [_change(effect) for effect in effects if effect.verdict == BETTER]
    losses = [_change(effect) for effect in effects if effect.verdict == WORSE]
    return f"A trade: {_list(gains)} for {_list(losses)}." if gains and losses else None


@dataclass(frozen=True, slots=True)
class _Measured:
    """A figure before any verdict: why there is no contrast, where there is none."""

    name: str
    n_base: int
    n_cand: int
    contrast: Contrast | None
    reason: str


def _measure(base: Figures, cand: Figures, rules: Rules) -> list[_Measured]:
    others = [name for name in base if name in cand and name not in rules.family]
    found = [_measured(name, base.get(name, ()), cand.get(name, ()), rules) for name in [*rules.family, *others]]
    return [each for each in found if each.contrast is not None or each.name in rules.family]


def _measured(name: str, base: Values, cand: Values, rules: Rules) -> _Measured:
    ours, theirs = pairs_of(base, cand) if rules.paired else (known(base), known(cand))
    logs = name not in DIFFERENCES
    if not ours.size or not theirs.size:
        return _Measured(name, ours.size, theirs.size, None, _missing(ours.size, theirs.size, rules.paired))
    reason = ""
    if logs and not has_ratio(ours, theirs):
        logs, reason = False, "0 in a run, so that no ratio can be taken"
    return _Measured(name, ours.size, theirs.size, contrast(ours, theirs, paired=rules.paired, logs=logs), reason)


def _missing(base: int, cand: int, paired: bool) -> str:
    if paired:
        return "no pair has it in both runs"
    return "no run has it" if not base and not cand else f"no run of the {'candidate' if base else 'base'} has it"


def _family(found: Mapping[str, list[_Measured]], rules: Rules) -> Family:
    """Correct the tests of all candidates together."""
    tests, roles = {}, {}
    for candidate, measured in found.items():
        for each in measured:
            role = rules.role(each.name)
            if role != ESTIMATE and each.contrast is not None and each.contrast.logs:
                tests[candidate, each.name], roles[candidate, each.name] = each.contrast.test, role
    return correct(tests, roles, rules.alpha)


def _effect(key: tuple[str, _Measured], family: Family, rules: Rules) -> Effect:
    candidate, found = key
    role, each = rules.role(found.name), found.contrast
    p = family.adjusted.get((candidate, found.name))
    verdict, reason = _verdict(found, p, family, rules)
    ahead = None
    if rules.outlook and each is not None and each.logs and role != ESTIMATE:
        least = runs_wanted(role, family.counts, rules.alpha, paired=rules.paired) if p is None else 0
        ahead = outlook(each, rules.limits(found.name), family.levels[role], least, settled=verdict != UNDECIDED)
        if verdict == UNDECIDED and ahead.more_runs is None:
            reason = f"{reason}; more than {MOST_RUNS} {'pairs' if rules.paired else 'runs of each'} would be needed"
    shown = figure(found.name)
    return Effect(
        figure=found.name,
        title=shown.title,
        unit=shown.unit,
        better=shown.better,
        role=role,
        paired=rules.paired,
        n=found.n_base if rules.paired else None,
        n_base=found.n_base,
        n_cand=found.n_cand,
        p=each.test.p if each is not None and p is not None else None,
        p_adjusted=p,
        least_p=each.test.least_p if each is not None and role != ESTIMATE else None,
        verdict=verdict,
        floor=(rules.floors or {}).get(found.name),
        power=ahead.power if ahead else None,
        more_runs=ahead.more_runs if ahead else None,
        reason=reason,
        **_size(each, found.name),
    )


def _size(each: Contrast | None, name: str) -> dict[str, Any]:
    """The attributes that say how large it is; logarithms are undone."""
    if each is None:
        kind = "difference" if name in DIFFERENCES else "ratio"
        return {"kind": kind, **dict.fromkeys(("base", "cand", "ratio", "low", "high", "confidence"))}
    undo = np.exp if each.logs else np.asarray
    low, high = each.interval.low, each.interval.high
    return {
        "kind": "ratio" if each.logs else "difference",
        "base": tidy(np.median(undo(each.base))),
        "cand": tidy(np.median(undo(each.cand))),
        "ratio": tidy(undo(each.estimate)),
        "low": None if low is None else tidy(undo(low)),
        "high": None if high is None else tidy(undo(high)),
        "confidence": None if low is None else each.interval.confidence_reached,
    }


def tidy(value: Any) -> float:
    """Eight significant digits, beyond which it is the rounding of logarithms."""
    return float(f"{float(value):.8g}")


def _verdict(found: _Measured, p: float | None, family: Family, rules: Rules) -> tuple[str, str]:
    if rules.role(found.name) == ESTIMATE:
        return NOT_TESTED, found.reason
    each = found.contrast
    if each is None or not each.logs:
        return UNDECIDED, found.reason
    verdict, reason = conclude(each, p, rules.limits(found.name), figure(found.name).better)
    return verdict, _never(found, family, rules) if p is None and verdict == UNDECIDED else reason


def _never(found: _Measured, family: Family, rules: Rules) -> str:
    """Why so few runs get no p."""
    wanted = runs_wanted(rules.role(found.name), family.counts, rules.alpha, paired=rules.paired)
    have = count(found.n_base, "pair") if rules.paired else f"{found.n_base} and {found.n_cand} runs"
    need = f"{wanted} pairs" if rules.paired else f"{wanted} runs each"
    tests = sum(family.counts.values())
    among = f" shared by {tests} tests" if tests > 1 else ""
    return f"{have} can never reach the level of {rules.alpha:g}{among} ({need} can)"


def count(number: int, noun: str) -> str:
    """``1 pair``, ``2 pairs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _change(effect: Effect) -> str:
    """Such as "inter-token latency, p99 −38.0 %"."""
    assert effect.ratio is not None, "only ratios are tested"
    change = f"{(effect.ratio - 1) * 100:+.1f}".replace("-", "−")
    return f"{effect.title} {change} %"


def _list(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
