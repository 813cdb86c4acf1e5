"""Runs of arms without any server: summaries and manifests that say what a test wants of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from servebench.errors import EngineError
from servebench.experiment.ab.design import Design, cells, question
from servebench.experiment.arms import Arm
from servebench.experiment.campaign import Campaign
from servebench.experiment.cell import Cell
from servebench.experiment.directory import ExperimentDir

SCENARIO = {
    "servebench": 1,
    "name": "chat",
    "workload": {"classes": [{"name": "default", "input_tokens": 20, "output_tokens": 10}]},
    "load": {"poisson": 4.0, "duration": 60.0},
    "endpoint": {"api": "chat", "stream": True},
    "slo": {"ttft": ["p99 < 1s"], "itl": ["p99 < 100ms"]},
    "seed": {"arrivals": 1, "lengths": 1, "content": 1},
}
FAMILY = ("ttft.p99", "itl.p99")
ARMS = (Arm("base"), Arm("cand", overrides=("engine.sim.max_num_batched_tokens=256",)))

Latencies = Mapping[str, float]


def manifest(tokens: int = 2048, **changes: Any) -> dict[str, Any]:
    """A run.json of the simulated engine, with `changes` by dotted key (two underscores for a dot)."""
    document: dict[str, Any] = {
        "schema": 1,
        "servebench": "0.1.0",
        "created_ns": 0,
        "simulated": True,
        "random_weights": False,
        "scenario": copy.deepcopy(SCENARIO),
        "endpoint": {
            "url": "http://127.0.0.1:40001",
            "api": "chat",
            "model": "simulated",
            "engine": {"name": "sim", "version": "0.1.0"},
            "server": {"engine": "sim", "settings": {"max_num_batched_tokens": tokens, "base": 0.004}},
        },
        "server_identity": {"settings": None, "kv_cache": {"blocks": 25000}, "model": None},
        "environment": {
            "cpu": {"model": "Xeon", "logical": 2, "load_1m": 0.5},
            "packages": {"numpy": "2.4.6"},
            "python": {"version": "3.11.7"},
        },
        "telemetry": {"sources": {"host": {"state": "sampled", "asked_hz": 2.0}}},
        "workers": [{"worker": 0}],
        "prompts": {"method": "server_tokenizer"},
    }
    for key, value in changes.items():
        place = document
        *path, last = key.split("__")
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
    return document


def summary(
    plan: str = "p1", verdict: str = "VALID", simulated: bool = True, **figures: float | None
) -> dict[str, Any]:
    """A summary.json with these figures, ``ttft_p99=60.0``; a code of the verdict's level says why it is not VALID."""
    metrics: dict[str, dict[str, float | None]] = {}
    for name, value in figures.items():
        metric, _, statistic = name.partition("_")
        metrics.setdefault(metric, {"unit": "ms", "n": 1000})[statistic] = value
    level = {"VALID": "ok", "SUSPECT": "warn", "INVALID": "fail"}[verdict]
    codes = [{"code": "client.loop_lag", "level": level, "text": "the event loop was late by 200 ms", "next": ""}]
    return {
        "schema": 1,
        "name": "chat",
        "simulated": simulated,
        "random_weights": False,
        "verdict": {"status": verdict, "codes": codes},
        "metrics": metrics,
        "plan": {"hash": plan},
        "cohort": {"planned": 100, "ok": 100, "failed": 0},
    }


Made = tuple[dict[str, Any], dict[str, Any]]
Maker = Callable[[Cell], Made]


class Runner:
    """Runs cells by asking `make` for summary and manifest; a string instead is the reason why the cell fails."""

    def __init__(self, make: Callable[[Cell], Made | str]) -> None:
        self._make = make
        self.ran: list[str] = []

    def __call__(self, cell: Cell, path: Path) -> dict[str, Any]:
        self.ran.append(cell.name)
        made = self._make(cell)
        if isinstance(made, str):
            raise EngineError(made)
        path.mkdir(parents=True)
        (path / "summary.json").write_text(json.dumps(made[0]))
        (path / "run.json").write_text(json.dumps(made[1]))
        return made[0]


def experiment(path: Path, design: Design, make: Callable[[Cell], Made | str]) -> ExperimentDir:
    """An A/B experiment in `path` with all its cells run."""
    directory = ExperimentDir.begin(path, "ab", "chat", question(design, SCENARIO, "sim"), ["servebench", "ab"])
    Campaign(directory, Runner(make)).run_all(cells(design))
    return directory


def design(**changes: Any) -> Design:
    """Two arms in six repeats."""
    return Design(**{"arms": ARMS, "family": FAMILY, "repeats": 6} | changes)


def store(path: Path, made: Made, created: int = 0) -> Path:
    """A run directory with these documents, made at the instant `created`."""
    path.mkdir(parents=True)
    (path / "summary.json").write_text(json.dumps(made[0]))
    (path / "run.json").write_text(json.dumps(made[1] | {"created_ns": created}))
    return path
