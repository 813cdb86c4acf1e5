"""`plan`: how many replicas a demand needs, from measured capacities; a document with every step and assumption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from servebench.errors import ExitCode, UsageError, did_you_mean
from servebench.experiment.fleet.arithmetic import keyed, plain
from servebench.experiment.fleet.assumptions import assumptions
from servebench.experiment.fleet.costs import COSTS, ENERGY, costs, energy, no_cost, no_energy, replicas_by_step
from servebench.experiment.fleet.demand import Demand
from servebench.experiment.fleet.deployment import Deployment
from servebench.experiment.fleet.sensitivity import headrooms, prompt_lengths
from servebench.experiment.fleet.sizing import Fleet, Policy, at_failed_end, breaks_first, comparable, size

SCHEMA = 1


def plan(deployments: Sequence[Deployment], demand: Demand, policy: Policy) -> dict[str, Any]:
    """Size each deployment for the demand; JSON-able.

    Shape::

        {"schema": 1, "demand": {"peak_per_s", "mean_per_s", "hours", "steps": [{"start", "hours", "rate", "peak"}]},
         "policy": {"headroom", "spare"},
         "rows": [                      # the cheapest first; without prices, the one with the fewest GPUs
           {"name", "path", "marks": [str], "not_comparable": str | None, "engine": {...},
            "capacity": {"sustained_per_s", "failed_per_s", "goodput_per_s", "input_tokens", "output_tokens"},
            "replicas": {"serving", "spare", "total", "at_failed_end"}, "gpus": {"per_replica", "total", "from"},
            "cost": {...}, "energy": {...}, "breaks_first": {...}, "by_step": [[hours, replicas]],
            "sensitivity": {"prompt_length": [...], "headroom": [...]},
            "lines": [{"label", "expression", "value", "unit"}]}],
         "not_planned": [{"name", "reason"}], "assumptions": [str], "simulated": bool, "exit_code": int}

    Raises:
        UsageError: two deployments have one name, or a price or number of GPUs is for none of them.
    """
    _check_names(deployments, policy)
    fleets = [size(d, demand, policy) for d in deployments if d.sustained is not None]
    fleets.sort(key=_order)
    odd = comparable(deployments)
    return {
        "schema": SCHEMA,
        "demand": _demand(demand),
        "policy": {"headroom": policy.headroom, "spare": policy.spare},
        "rows": [_row(fleet, deployments, odd.get(fleet.deployment.name)) for fleet in fleets],
        "not_planned": [{"name": d.name, "reason": _why_not(d)} for d in deployments if d.sustained is None],
        "assumptions": assumptions(demand, policy, fleets) if fleets else [],
        "simulated": any("SIMULATED" in d.marks for d in deployments),
        "exit_code": int(_exit_code(fleets)),
    }


def _why_not(deployment: Deployment) -> str:
    """Why there is no rate to plan with: the lowest one failed, or none was decided."""
    if deployment.failed is None:
        return "no rate was sustained, since none could be decided; its `servebench capacity` says why"
    return f"no rate was sustained: {plain(deployment.failed)} /s failed, and no lower one passed"


def _exit_code(fleets: Sequence[Fleet]) -> ExitCode:
    """INVALID when nothing can be planned, or only from capacities that are."""
    usable = [fleet for fleet in fleets if "INVALID" not in fleet.deployment.marks]
    return ExitCode.GOOD if usable else ExitCode.INVALID


def _check_names(deployments: Sequence[Deployment], policy: Policy) -> None:
    names = [deployment.name for deployment in deployments]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f'two capacities are called "{twice}"; rename one of their folders')
    for option, given in (("--gpu-hour", policy.gpu_hour), ("--gpus-per-replica", policy.gpus_per_replica)):
        stray = next((name for name in given if name and name not in names), None)
        if stray is not None:
            raise UsageError(f'{option}: no capacity is called "{stray}"{did_you_mean(stray, names)}')


def _order(fleet: Fleet) -> tuple[bool, float, int]:
    """Cheapest first; those without a price after them, by their GPUs; those from an INVALID capacity last."""
    price = math.inf if fleet.price is None else fleet.gpus * fleet.price
    return ("INVALID" in fleet.deployment.marks, price, fleet.gpus)


def _demand(demand: Demand) -> dict[str, Any]:
    return {
        "peak_per_s": demand.peak,
        "mean_per_s": demand.mean,
        "hours": demand.hours or None,
        "steps": [asdict(step) for step in demand.steps],
    }


def _row(fleet: Fleet, deployments: Sequence[Deployment], odd: str | None) -> dict[str, Any]:
    own = fleet.deployment
    spent, used = list(costs(fleet)), list(energy(fleet))
    return {
        "name": own.name,
        "path": own.path,
        "marks": list(own.marks),
        "not_comparable": odd,
        "engine": dict(own.engine),
        "capacity": _capacity(own),
        "replicas": _replicas(fleet),
        "gpus": {"per_replica": fleet.per_replica, "total": fleet.gpus, "from": fleet.per_replica_from},
        "cost": {"gpu_hour": fleet.price, **keyed(spent, COSTS), "reason": no_cost(fleet)},
        "energy": {**keyed(used, ENERGY), "reason": no_energy(fleet)},
        "breaks_first": breaks_first(fleet),
        "by_step": [[hours, replicas] for hours, replicas in replicas_by_step(fleet)],
        "sensitivity": {"prompt_length": prompt_lengths(fleet, deployments), "headroom": headrooms(fleet)},
        "lines": [line.to_dict() for line in (*fleet.lines, *spent, *used)],
    }


def _capacity(own: Deployment) -> dict[str, Any]:
    return {
        "sustained_per_s": own.sustained,
        "failed_per_s": own.failed,
        "goodput_per_s": own.goodput,
        "input_tokens": own.input_tokens,
        "output_tokens": own.output_tokens,
    }


def _replicas(fleet: Fleet) -> dict[str, Any]:
    return {
        "serving": fleet.serving,
        "spare": fleet.policy.spare,
        "total": fleet.replicas,
        "at_failed_end": at_failed_end(fleet),
    }
