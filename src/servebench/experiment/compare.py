"""Compare existing runs: two sets of run directories, in pairs of one plan where they come so.

The result has the shape of an A/B's (see `ab`), with kind "compare": `base` is the first set, and there is no order of
the runs, no noise floor and no hypothesis. Runs that must not be compared are refused; forced, a refusal is a doubt.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servebench.errors import ExitCode, UsageError
from servebench.experiment.ab import aspects, comparison, flags
from servebench.experiment.ab.design import BASE, CANDIDATE, check_rules
from servebench.experiment.cell import Outcome
from servebench.experiment.comparison import checks
from servebench.experiment.comparison.comparable import Refusal, comparable
from servebench.experiment.comparison.contrast import CONFIDENCE
from servebench.experiment.comparison.differences import differences
from servebench.experiment.comparison.effects import Rules, judge_candidates
from servebench.experiment.comparison.run_sets import RunSet
from servebench.experiment.comparison.sides import figures_of, plan_hash, verdicts_of
from servebench.experiment.figures import family_of
from servebench.experiment.findings import WARN, Code, code, shorten, verdict

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """How a comparison is judged.

    Attributes:
        primary: the figure to decide by; None takes the first of the scenario's objectives.
        metrics: further figures to test.
        alpha: level of the tests.
        min_effect: the size that matters, 0.03 for 3 %.
        force: compare what must not be compared, and say so.
    """

    primary: str | None = None
    metrics: tuple[str, ...] = ()
    alpha: float = 0.05
    min_effect: float = 0.03
    force: bool = False


def compare(base: RunSet, cand: RunSet, asked: Asked) -> Document:
    """Judge the runs of `cand` against those of `base`.

    Raises:
        UsageError: they must not be compared and are not forced; a run is in both; or a figure, the level or the size
            is none.
    """
    _check_apart(base, cand)
    refusals = comparable(base.runs, cand.runs)
    if refusals and not asked.force:
        reasons = "; ".join(f"{each.text} ({each.next})" for each in refusals)
        raise UsageError(f"{base.given} and {cand.given} cannot be compared: {reasons}; --force compares them anyway")
    family = family_of((base.runs[0].manifest or {}).get("scenario") or {}, asked.primary, asked.metrics)
    check_rules(family, asked.alpha, asked.min_effect)
    pairs = pairs_of_plans(base.runs, cand.runs)
    return _result((base, cand), pairs, Rules(family, bool(pairs), asked.alpha, asked.min_effect), refusals)


def _check_apart(base: RunSet, cand: RunSet) -> None:
    """A run held against itself would be no difference, found with certainty."""
    ours = {run.path.resolve() for run in base.runs}
    if both := [str(run.path) for run in cand.runs if run.path.resolve() in ours]:
        raise UsageError(f"{base.given} and {cand.given} cannot be compared: both hold {shorten(both)}")


def pairs_of_plans(base: Sequence[Outcome], cand: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """The runs in pairs of one plan, by order of time; [] when the sets are no pairs.

    They are when both have every plan equally often, and there is more than one plan: runs of a single plan can as well
    be exchanged with one another, which the test of two sets makes more of.
    """
    ours, theirs = (Counter(plan_hash(run) for run in runs) for runs in (base, cand))
    if ours != theirs or len(ours) < 2 or None in ours:
        return []
    waiting: defaultdict[str | None, list[Outcome]] = defaultdict(list)
    for run in cand:
        waiting[plan_hash(run)].append(run)
    return [(run, waiting[plan_hash(run)].pop(0)) for run in base]


def _result(
    sets: tuple[RunSet, RunSet], pairs: Sequence[tuple[Outcome, Outcome]], rules: Rules, refusals: Sequence[Refusal]
) -> Document:
    names = names_of(*sets)
    base, cand = zip(*pairs, strict=True) if pairs else (sets[0].runs, sets[1].runs)
    used = {names[0]: list(base), names[1]: list(cand)}
    sides = (figures_of(base, rules.family), figures_of(cand, rules.family))
    effects = judge_candidates({names[1]: sides}, rules)
    found = _differences(used, names)
    correctness, side_effects = aspects(used, names[0])
    codes = [
        *(code(each.code, WARN, f"forced: {each.text}", each.next) for each in refusals),
        *checks.lost_cells(sets),
        checks.doubts([*base, *cand]),
        *checks.reach(effects),
        checks.several(found),
        checks.changed(used),
        checks.answers(correctness),
    ]
    return {
        "kind": "compare",
        **flags(used.values()),
        "verdict": _verdict(codes, forced=bool(refusals)),
        "design": _design(sets, rules, len(pairs)),
        "arms": {
            name: _arm(each, used[name], role, rules.family)
            for name, each, role in zip(names, sets, (BASE, CANDIDATE), strict=True)
        },
        "pairs": {
            "planned": len(pairs) or None,
            "used": {names[1]: len(pairs)},
            "lost": [_lost(name, outcome) for name, each in zip(names, sets, strict=True) for outcome in each.lost],
        },
        "comparisons": [comparison(*names, effects[names[1]])],
        "noise_floor": None,
        "differences": found,
        "side_effects": side_effects,
        "correctness": correctness,
    }


def names_of(base: RunSet, cand: RunSet) -> tuple[str, str]:
    """What the sets are called in tables: by their last folders or arms, unless these are the same or many."""
    short = base.short, cand.short
    plain = all("," not in name and len(name) <= 32 for name in short)
    return short if plain and short[0] != short[1] else ("A", "B")


def _verdict(codes: Sequence[Code], forced: bool) -> Document:
    """Nothing that was forced is good enough for a script to go on."""
    found = verdict(codes)
    return found | {"exit_code": int(ExitCode.INVALID)} if forced else found


def _design(sets: tuple[RunSet, RunSet], rules: Rules, pairs: int) -> Document:
    return {
        "name": f"{sets[0].given} against {sets[1].given}",
        "paired": rules.paired,
        "repeats": pairs or None,
        "primary": rules.family[0],
        "family": list(rules.family),
        "alpha": rules.alpha,
        "min_effect": rules.min_effect,
        "confidence": CONFIDENCE,
        "aa": False,
        "hypothesis": None,
        "order_seed": None,
        "order": None,
        "variables": [],
    }


def _arm(each: RunSet, used: Sequence[Outcome], role: str, family: Sequence[str]) -> Document:
    return {
        "role": role,
        "given": each.given,
        "overrides": [],
        "endpoint": None,
        "model": None,
        "runs": len(each.runs) + len(each.lost),
        "used": len(used),
        "verdicts": verdicts_of([*each.runs, *each.lost]),
        "paths": [str(outcome.path) for outcome in each.runs],
        "figures": figures_of(used, family),
    }


def _lost(name: str, outcome: Outcome) -> Document:
    return {"repeat": None, "arm": name, "cell": outcome.cell.name, "reason": outcome.reason}


def _differences(used: dict[str, list[Outcome]], names: tuple[str, str]) -> list[Document]:
    """What differs between the first runs of both sets; what changes within a set is a check of its own.

    A single difference is taken for what the comparison is about.
    """
    base, cand = used[names[0]][0], used[names[1]][0]
    found = differences(base.manifest or {}, cand.manifest or {})
    alone = sum(each.sets for each in found) == 1
    return [each.to_dict(names[1], named=alone and each.sets) for each in found]
