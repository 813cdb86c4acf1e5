"""Whether the runs of an A/B experiment began with an empty prefix cache, as a check of the experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.comparison.checks import caches


def run(name: str, done: bool, beyond: float | None) -> Outcome:
    counted: dict[str, Any] = {"beyond_share": beyond, "reason": None if beyond is not None else "no counters"}
    manifest = {"cache_reset": {"done": done, "reason": "it was started for this run"}}
    return Outcome(Cell(name), "done", {"server_side": {"prefix_cache": counted}}, manifest, None, 1.0, Path())


def test_emptied_and_verified() -> None:
    found = caches([run("r01-a", True, 0.0), run("r01-b", True, 0.004)])
    assert (found["level"], found["next"]) == ("ok", "")
    assert "empty before 2 of 2 runs, verified by its hits in 2" in found["text"]


def test_nobody_emptied_it_and_nobody_counts() -> None:
    found = caches([run("r01-a", False, None), run("r01-b", True, None)])
    assert found["level"] == "ok"
    assert "empty before 1 of 2 runs, verified by its hits in 0" in found["text"]
    assert "--reset-caches" in found["next"]


def test_a_run_that_met_the_cache_of_another_is_a_warning() -> None:
    found = caches([run("r01-a", True, 0.0), run("r01-b", False, 0.6)])
    assert found["level"] == "warn"
    assert "r01-b: prompts were found in the prefix cache" in found["text"]
    assert "r01-a" not in found["text"]
