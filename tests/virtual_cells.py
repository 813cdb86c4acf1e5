"""Runs of the simulated engine in virtual time as cells of an experiment: no sockets, no waiting, the same step model.

A summary here has the fields that experiments read of a run, computed by the analysis' own functions from the traces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis import slo
from servebench.analysis.attainment import kept
from servebench.analysis.facts import DRIFT_BINS
from servebench.analysis.quantiles import REPORTED, nearest
from servebench.analysis.stationarity import drift
from servebench.analysis.steps import StepFunction
from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.virtual import Arrival, simulate
from servebench.experiment.cell import Cell
from servebench.scenario import Scenario, load_scenario
from servebench.workload.planning import make_plan

Ints = NDArray[np.int64]


class VirtualRunner:
    """A `CellRunner` that plays each cell's plan to the engine's model; counts its cells and their requests."""

    def __init__(self, scenario: Path, overrides: tuple[str, ...] = ()) -> None:
        self.scenario = scenario
        self.overrides = overrides
        self.cells: list[str] = []

    def __call__(self, cell: Cell, path: Path) -> dict[str, Any]:
        self.cells.append(cell.name)
        seed = () if cell.seed is None else (f"seed={cell.seed}",)
        return virtual_summary(load_scenario(self.scenario, (*self.overrides, *cell.overrides, *seed)))


def virtual_summary(scenario: Scenario) -> dict[str, Any]:
    """Play the scenario's plan to its simulated engine and summarise the cohort."""
    assert scenario.engine.sim is not None and scenario.load.duration is not None
    plan = make_plan(scenario)
    prompts = {n: [1] * n for n in set(plan.input_tokens.tolist())}
    rows = zip(plan.scheduled_ns.tolist(), plan.input_tokens.tolist(), plan.output_tokens.tolist(), strict=True)
    arrivals = [Arrival(due / 1e9, prompts[inputs], outputs) for due, inputs, outputs in rows]
    traces = simulate(EngineCore(SimSettings.of(scenario.engine.sim)), arrivals)
    first, last = (np.array([round(trace.token_times[i] * 1e9) for trace in traces], np.int64) for i in (0, -1))
    start = round(scenario.load.warmup_s * 1e9)
    end = start + round(scenario.load.duration * 1e9)
    cohort = (plan.scheduled_ns >= start) & (plan.scheduled_ns < end)
    done = last < end + round(scenario.load.drain * 1e9)
    values = {"ttft": first - plan.scheduled_ns, "e2e": last - plan.scheduled_ns}
    objectives = slo.objectives({"scenario": {"slo": scenario.slo.model_dump(mode="json")}})
    good = np.ones(int(cohort.sum()), bool)
    reached = []
    for objective in objectives:
        mine = values[objective.metric][cohort]
        within = done[cohort] & (mine < objective.limit_ns)
        good &= within
        reached.append(_objective(objective, within, mine[done[cohort]]))
    level = StepFunction.of_intervals(plan.scheduled_ns, last)
    trend = drift("in flight", level.bin_means(np.linspace(start, end, DRIFT_BINS + 1)))
    seconds = (end - start) / 1e9
    inputs, outputs = (int(column[cohort & done].sum()) for column in (plan.input_tokens, plan.output_tokens))
    return {
        "simulated": True,
        "random_weights": False,
        "verdict": {"status": "VALID", "exit_code": 0, "codes": []},
        "cohort": {"planned": int(cohort.sum()), "ok": int((cohort & done).sum())},
        "metrics": {name: _metric(column[cohort & done]) for name, column in values.items()},
        "slo": {"attainment": float(good.mean()), "objectives": reached},
        "stationarity": [{"name": "in flight", "change": trend.change, "z": trend.z, "bins": trend.bins}],
        "concurrency": {"total": {"window_mean": level.mean(start, end)}},
        "throughput": {
            "goodput_per_s": float(good.sum()) / seconds,
            "output_tokens_per_s": outputs / seconds,
            "input_tokens_per_s": inputs / seconds,
        },
        "lengths": {
            "input": {"real": {"mean": float(plan.input_tokens.mean())}},
            "output": {"real": {"mean": float(plan.output_tokens.mean())}},
        },
        "energy": {"j_per_output_token": None, "reason": "no GPU was sampled"},
        "endpoint": {"url": "http://127.0.0.1", "model": "sim", "engine": {"name": "sim", "version": "0"}},
    }


def _objective(objective: slo.Objective, within: NDArray[np.bool_], series: Ints) -> dict[str, Any]:
    found = kept(within, series, objective.quantile)
    return {
        "text": objective.text,
        "metric": objective.metric,
        "quantile": objective.quantile.name,
        "limit": objective.limit_ns / 1e6,
        "attainment": {
            "value": found.share,
            "within": found.within,
            "of": found.of,
            "error": found.error,
            "effective": found.effective,
        },
    }


def _metric(values: Ints) -> dict[str, float | None]:
    ordered = np.sort(values)
    quantiles = {q.name: nearest(ordered, q) / 1e6 if ordered.size else None for q in REPORTED}
    return {**quantiles, "max": float(ordered[-1]) / 1e6 if ordered.size else None}
