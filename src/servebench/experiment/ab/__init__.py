"""A/B: does a change help? Arms measured in interleaved pairs of one plan, judged on runs.

The result (`judge`; `compare` gives the same shape, with kind "compare")::

    {"kind": "ab",
     "simulated": bool, "random_weights": bool,
     "verdict": {"status": "VALID|SUSPECT|INVALID", "exit_code": 0|3,
                 "codes": [{"code": "pairs.lost", "level": "ok|warn|fail", "text": .., "next": ..}]},    # worst first
     "design": {"name", "paired": bool, "repeats", "primary", "family": [..], "alpha", "min_effect", "confidence",
                "aa": bool, "hypothesis": str|null, "order_seed": int|null, "order": [[arm, ..] a repeat]|null,
                "variables": [keys that the arms set differently]},
     "arms": {NAME: {"role": "base|candidate|again", "overrides": [..], "endpoint", "model", "runs": n, "used": n,
                     "verdicts": {"VALID": n, ..}, "paths": [relative or as given],
                     "figures": {FIGURE: [value or null, a used run]}}},
     "pairs": {"planned": n, "used": {CANDIDATE: n},
               "lost": [{"repeat": n|null, "arm", "cell", "reason"}]},
     "comparisons": [{"base": NAME, "cand": NAME, "effects": [Effect.to_dict(), tested ones first, the primary at
                      the head], "trade": str|null}],
     "noise_floor": null | {"arm": "base-again", "effects": [Effect.to_dict() of base-again against base],
                            "floors": {FIGURE: 1.02}},
     "differences": [{"arm": CANDIDATE or "base-again", "key", "base", "cand",
                      "kind": "set|software|machine|observed", "named": bool}],
     "side_effects": ..., "correctness": ...}     # as their own modules describe them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from servebench.experiment.ab.design import AGAIN, Design, cells, check_plans, orders, question, read, repeats_wanted
from servebench.experiment.ab.schedule import Schedule
from servebench.experiment.comparison import checks
from servebench.experiment.comparison.contrast import CONFIDENCE
from servebench.experiment.comparison.effect import Effect
from servebench.experiment.comparison.effects import Rules, Sides, judge_candidates, trade
from servebench.experiment.comparison.noise import noise_floors
from servebench.experiment.comparison.sides import figures_of, verdicts_of
from servebench.experiment.findings import verdict

if TYPE_CHECKING:
    from servebench.experiment.cell import Outcome
    from servebench.experiment.directory import ExperimentDir

__all__ = ["AGAIN", "Design", "cells", "check_plans", "judge", "orders", "question", "repeats_wanted"]

Document = dict[str, Any]


def judge(directory: ExperimentDir) -> Document:
    """Compute the result from the stored cells alone, finished or not; the same each time."""
    design = read(directory.document["question"])
    schedule = Schedule.of(design, directory.outcomes())
    noise = _noise(schedule) if design.aa else None
    rules = Rules(design.family, True, design.alpha, design.min_effect, noise["floors"] if noise else None)
    sides = {arm.name: _sides(schedule, arm.name) for arm in design.candidates}
    effects = judge_candidates(sides, rules)
    found = schedule.differences()
    correctness, side_effects = aspects(schedule.used, design.base.name)
    codes = checks.of_ab(schedule, effects, noise, found, correctness)
    return {
        "kind": "ab",
        **flags(schedule.used.values()),
        "verdict": verdict(codes),
        "design": _design(directory, design),
        "arms": {arm.name: _arm(schedule, directory, arm.name) for arm in design.running},
        "pairs": {
            "planned": design.repeats,
            "used": {name: len(schedule.pairs(name)) for name in sides},
            "lost": schedule.lost,
        },
        "comparisons": [comparison(design.base.name, name, each) for name, each in effects.items()],
        "noise_floor": noise,
        "differences": found,
        "side_effects": side_effects,
        "correctness": correctness,
    }


def comparison(base: str, cand: str, effects: Sequence[Effect]) -> Document:
    """What a candidate does to the base."""
    return {"base": base, "cand": cand, "effects": [each.to_dict() for each in effects], "trade": trade(effects)}


def flags(arms: Any) -> Document:
    """Whether any of the runs was simulated, or had a model of random weights."""
    summaries = [outcome.summary or {} for outcomes in arms for outcome in outcomes]
    return {name: any(each.get(name) for each in summaries) for name in ("simulated", "random_weights")}


def aspects(arms: Mapping[str, list[Outcome]], base: str) -> tuple[Document, Document]:
    """Correctness and side effects of the used runs of every arm."""
    from servebench.experiment.comparison import correctness, side_effects

    return correctness.of(arms, base), side_effects.of(arms, base)


def _sides(schedule: Schedule, arm: str) -> Sides:
    pairs, family = schedule.pairs(arm), schedule.design.family
    return figures_of([base for base, _ in pairs], family), figures_of([cand for _, cand in pairs], family)


def _noise(schedule: Schedule) -> Document:
    design, sides = schedule.design, _sides(schedule, AGAIN)
    rules = Rules(design.family, True, design.alpha, design.min_effect, outlook=False)
    effects = judge_candidates({AGAIN: sides}, rules)[AGAIN]
    return {"arm": AGAIN, "effects": [each.to_dict() for each in effects], "floors": noise_floors(*sides)}


def _design(directory: ExperimentDir, design: Design) -> Document:
    keys = dict.fromkeys(key for arm in design.candidates for key in design.variables(arm.name))
    return {
        "name": directory.document["name"],
        "paired": True,
        "repeats": design.repeats,
        "primary": design.family[0],
        "family": list(design.family),
        "alpha": design.alpha,
        "min_effect": design.min_effect,
        "confidence": CONFIDENCE,
        "aa": design.aa,
        "hypothesis": design.hypothesis,
        "order_seed": design.order_seed,
        "order": orders(design),
        "variables": list(keys),
    }


def _arm(schedule: Schedule, directory: ExperimentDir, name: str) -> Document:
    arm = next(each for each in schedule.design.running if each.name == name)
    runs, used = schedule.runs(name), schedule.used[name]
    return {
        "role": schedule.design.role(name),
        "overrides": list(arm.overrides),
        "endpoint": arm.endpoint,
        "model": arm.model,
        "runs": len(runs),
        "used": len(used),
        "verdicts": verdicts_of(runs),
        "paths": [str(outcome.path.relative_to(directory.path)) for outcome in runs],
        "figures": figures_of(used, schedule.design.family),
    }
