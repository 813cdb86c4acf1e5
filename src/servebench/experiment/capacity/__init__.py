"""`capacity`: the highest rate at which the SLO holds, as a bracket of rates, never as a point.

The search (`search.next_step`) says which rate comes next and where more runs are needed, the judge (`probe.judge`)
what the runs at a rate say. Every decision follows from the stored cells, so that an experiment that was killed goes on
as if nothing had happened.

`judge` computes experiment.json's `result` from the stored cells alone (a plain dict, JSON-able):

```
{"sustained_per_s": float | None,    # highest rate that passed with none failing below it; None: the lowest failed
 "failed_per_s": float | None,       # lowest rate that failed; None: nothing failed up to `max_per_s`
 "max_per_s": float | None,          # the highest rate that the search was allowed, else None
 "goodput_per_s": float | None,      # requests/s that met every objective at the sustained rate: mean over its runs
 "binding": {"objective": "ttft p95" | "backlog" | "failures" | None, "text": str},   # what failed at failed_per_s
 "slo": [{"objective": "ttft p95", "text": "ttft p95 < 800 ms", "metric": "ttft", "quantile": "p95",
          "limit_ms": 800.0, "target": 0.95}],
 "probes": [                         # one a rate, ascending by rate
   {"rate": float, "probe": int,     # per second; number in the order of probing, 1 first: cells are p01-r4-s1
    "runs": int, "failed_runs": int, "ended_runs": int, "held_out_runs": int, "seconds": float,
               # runs that were judged, cells that gave none that could be, runs that came to an end whatever they say
    "cells": [str],                  # names below cells/
    "decision": "pass" | "fail" | "undecided", "binding": str | None, "reason": str,
    "attainment": {"ttft p95": {"value": float, "low": float, "high": float, "target": 0.95, "decision": str}},
    "backlog": {"growth": float, "requests": float, "z": float, "limit": float, "decision": str} | None,
               # growth: share of the offered requests that piled up in the measured window; requests: how many a run
    "failures": {"value": float, "low": float, "high": float, "limit": float, "decision": str},   # share of offered
    "all_objectives": float,         # attainment of the run's `slo`: share of offered requests that met every one
    "ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p95_ms": float | None,   # medians over the runs
    "goodput_per_s", "output_tokens_per_s", "input_tokens_per_s", "in_flight": float | None,   # means over the runs
    "energy_j_per_output_token": float | None}],
 "tokens": {"input_mean", "output_mean", "input_tokens_per_s", "output_tokens_per_s": float | None},   # sustained rate
 "energy_j_per_output_token": float | None,      # at the sustained rate; None where it was not measured
 "energy_reason": str | None,
 "engine": {"name", "version", "model": str | None, "flags": dict, "gpus": int | None, "gpu": str | None},
 "scenario": str, "duration_s": float,           # of the first runs' measured window
 "confirmed": bool,                  # the sustained rate held with seeds that the search had not seen
 "precision": {"asked": 0.1, "reached": float | None},   # failed / sustained - 1
 "confidence": 0.95,                 # of each decision
 "simulated": bool, "random_weights": bool,
 "budget": {"asked_s": float, "spent_s": float, "exhausted": bool},
 "verdict": {"status": "VALID" | "SUSPECT" | "INVALID", "exit_code": int,
             "codes": [{"code", "level", "value", "limit", "unit", "text", "next"}]}}   # as in summary.json
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from servebench.errors import UsageError
from servebench.experiment.capacity.evidence import Effort, Evidence, Recipe, gather
from servebench.experiment.capacity.result import conclude, rules_of
from servebench.experiment.capacity.search import Bounds, Bracket, Confirm, Probe, next_step

if TYPE_CHECKING:
    from servebench.experiment.campaign import Campaign
    from servebench.experiment.cell import Cell, Outcome
    from servebench.experiment.directory import ExperimentDir
    from servebench.scenario.schema import Scenario

GUESSED_HALVINGS = 4  # below a first rate that was only guessed
FEW_REQUESTS = 10
LONGER = 4.0  # times as long are the runs that a rate gets when many runs could not decide it

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says.

    Attributes:
        first: rate to begin with, per second; None guesses.
        most: the highest rate to try; None for no limit.
        precision: see `Bounds`.
        runs: first runs of each rate.
        most_runs: runs of a rate before they get longer.
        confidence: of each decision, over all looks at the runs of a rate.
        duration_s: measured window of a run; None takes the scenario's.
    """

    first: float | None = None
    most: float | None = None
    precision: float = 0.1
    runs: int = 2
    most_runs: int = 6
    confidence: float = 0.95
    duration_s: float | None = None


def question(scenario: Scenario, settings: Settings, endpoint: str, model: str | None) -> Document:
    """All that decides which cells there are and how they are judged.

    Raises:
        UsageError: a scenario without an SLO or without an open loop of one rate, or settings that contradict.
    """
    _check(scenario, settings)
    load = scenario.load
    duration = settings.duration_s or load.duration or 60.0
    first = settings.first or _guess(load.stages[0].rate, duration, settings.most)
    least = first if settings.first else first / 2**GUESSED_HALVINGS
    return {
        "scenario": scenario.resolved(),
        "endpoint": endpoint,
        "model": model,
        "bounds": asdict(Bounds(first, least, settings.most, settings.precision)),
        "effort": asdict(Effort(settings.runs, settings.most_runs, LONGER)),
        "confidence": settings.confidence,
        "duration_s": duration,
    }


def _check(scenario: Scenario, settings: Settings) -> None:
    load = scenario.load
    if load.closed:
        raise UsageError(
            f"{scenario.name}: capacity needs an open loop, whose rate does not depend on the server; "
            "set one, such as --set load.poisson=1/s"
        )
    if len(load.stages) != 1 or load.stages[0].law == "ramp":
        raise UsageError(f"{scenario.name}: capacity needs a load of one rate; set one, such as --set load.poisson=1/s")
    _check_uncapped(scenario)
    if not scenario.slo.objectives:
        raise UsageError(
            f'{scenario.name}: capacity needs an SLO to hold; set one, such as --set "slo.ttft=p95 < 800ms"'
        )
    if settings.first and settings.most and settings.most < settings.first:
        raise UsageError(f"--max {settings.most:g}/s is below --from {settings.first:g}/s")
    if settings.most_runs < settings.runs:
        raise UsageError(f"--most-runs {settings.most_runs} is less than --runs {settings.runs}")


def _check_uncapped(scenario: Scenario) -> None:
    """A client that holds requests back hides the backlog of a server that is too slow."""
    load, why = scenario.load, "capacity needs a load that the client does not hold back"
    if load.throttle is not None:
        raise UsageError(f"{scenario.name}: {why}; leave the throttle out: --set load.throttle=null")
    if load.max_in_flight is not None and load.max_in_flight.policy == "wait":
        raise UsageError(
            f"{scenario.name}: {why}; leave the cap out (--set load.max_in_flight=null), or have it drop requests "
            "(--set load.max_in_flight.policy=drop)"
        )


def _guess(own: float, duration_s: float, most: float | None) -> float:
    """Low: 1/s, or half of the scenario's own rate if that is less, but a few requests a run; never above the limit."""
    guessed = max(min(1.0, own / 2), float(f"{FEW_REQUESTS / duration_s:.2g}"))
    return guessed if most is None else min(guessed, most)


def search(campaign: Campaign, budget_s: float, tell: Callable[[str], None] = lambda text: None) -> Document:
    """Run cells until the bracket is found, confirmed and as narrow as asked, or the budget is spent; see `judge`.

    Args:
        campaign: its directory holds the question.
        budget_s: no further run begins once all together took so long. It is not part of the question, so that an
            experiment that has spent its budget goes on with a larger one.
        tell: is told what is thought of a rate, each time that its runs are looked at.

    Raises:
        UsageError: the directory cannot be written to.
        KeyboardInterrupt: of the user; what is finished is stored.
    """
    document = campaign.directory.document
    document["budget_s"] = budget_s
    outcomes: list[Outcome] = []
    while (cell := next_cell(document["question"], gather(outcomes), budget_s)) is not None:
        outcomes.append(campaign.run(cell))
        if thought := thought_of(document["question"], gather(outcomes), cell):
            tell(thought)
    return conclude(document["question"], gather(outcomes), budget_s)


def judge(directory: ExperimentDir) -> Document:
    """Compute the result from the stored cells alone, finished or not; its shape is described above."""
    document = directory.document
    return conclude(document["question"], gather(directory.outcomes()), document.get("budget_s", math.inf))


def next_cell(asked: Document, found: Sequence[Evidence], budget_s: float) -> Cell | None:
    """The cell that the search needs next; None when it is at its end."""
    rules, recipe, bounds = rules_of(asked), _recipe(asked), Bounds(**asked["bounds"])
    if not found:
        return recipe.cell(1, bounds.first, 1)
    if sum(each.seconds for each in found) >= budget_s or _never_ran(found):
        return None
    for each in found:
        if each.lacks_own(rules, recipe.effort) or each.lacks_held_out(recipe.effort):
            return recipe.next_of(each, held_out=each.lacks_held_out(recipe.effort))
    step = next_step(bounds, [each.known(rules, recipe.effort) for each in found])
    if isinstance(step, Bracket):
        return None
    if isinstance(step, Probe):
        return recipe.cell(len(found) + 1, step.rate, 1)
    return recipe.next_of(next(e for e in found if e.rate == step.rate), held_out=isinstance(step, Confirm))


def thought_of(asked: Document, found: Sequence[Evidence], cell: Cell) -> str | None:
    """What the runs at a cell's rate say, in a line; None while runs are missing for a look at them."""
    rules, effort = rules_of(asked), Effort(**asked["effort"])
    each = next(each for each in found if each.rate == cell.labels["rate"])
    if each.lacks_own(rules, effort) or each.lacks_held_out(effort):
        return None
    judgement = each.judged(rules)
    why = "no run can be used" if judgement is None else judgement.reason
    return f"{each.rate:g}/s: {each.known(rules, effort).decision}, {why}"


def first_cells(asked: Document) -> list[Cell]:
    """The first runs of the first rate."""
    recipe = _recipe(asked)
    return [recipe.cell(1, asked["bounds"]["first"], run) for run in range(1, recipe.effort.runs + 1)]


def _never_ran(found: Sequence[Evidence]) -> bool:
    """Whether no run at the first rate came about at all: then none will."""
    outcomes = found[0].outcomes
    return len(found) == 1 and len(outcomes) > 1 and all(outcome.status == "failed" for outcome in outcomes)


def _recipe(asked: Document) -> Recipe:
    scenario = asked["scenario"]
    return Recipe(
        effort=Effort(**asked["effort"]),
        seed=scenario["seed"]["arrivals"],
        law=_law(scenario["load"]),
        duration_s=asked["duration_s"],
    )


def _law(load: Document) -> str:
    """The override that sets the rate of the load's own law."""
    stage = load["stages"][0] if "stages" in load else load
    if "gamma" in stage:
        return f"load.gamma={{{{rate: {{rate}}, cv: {stage['gamma']['cv']}}}}}"
    return f"load.{'constant' if 'constant' in stage else 'poisson'}={{rate}}"
