"""Side effects: taken from summaries, medians over runs, ratios to the base, and a reason for what is missing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.comparison.side_effects import FIGURES, of

REPOSITORY = Path(__file__).parents[3]
EXAMPLE: dict[str, Any] = json.loads((REPOSITORY / "results" / "example-chat" / "summary.json").read_text())


def outcome(summary: dict[str, Any] | None) -> Outcome:
    status = "failed" if summary is None else "done"
    return Outcome(Cell("r01-base"), status, summary, None, None, 1.0, Path())


def changed(**paths: Any) -> dict[str, Any]:
    """The example with other values: ``server_side__steps__per_s=3``."""
    summary = copy.deepcopy(EXAMPLE)
    for path, value in paths.items():
        *way, last = path.split("__")
        place = summary
        for key in way:
            place = place[key]
        place[last] = value
    return summary


def figures(**arms: list[Outcome]) -> dict[str, dict[str, Any]]:
    return {figure["name"]: figure for figure in of(arms, next(iter(arms)))["figures"]}


def test_a_real_summary_has_what_its_server_tells_and_reasons_for_the_rest() -> None:
    found = figures(base=[outcome(EXAMPLE)], cand=[outcome(EXAMPLE)])
    assert set(found) == {figure.name for figure in FIGURES}
    assert found["kv_usage_p95"]["arms"] == {"base": 0.002198, "cand": 0.002198}
    assert found["kv_capacity"]["arms"]["base"] == 524288
    assert found["preemptions"]["arms"]["base"] == 0
    assert found["preemptions"]["ratios"]["cand"] is None  # of nothing there is no ratio
    assert found["client_cpu"]["arms"]["base"] == pytest.approx(1.699824 / 65.102959)
    assert found["failed_share"]["arms"]["base"] == 0
    for name in ("gpu_memory_p95", "j_per_output_token"):
        assert found[name]["arms"] == {"base": None, "cand": None}
        assert found[name]["n"]["base"] == 0
        assert "no NVIDIA driver" in found[name]["reasons"]["base"]
    assert found["ready_s"]["reasons"]["base"] == "the server was not started by this run"
    json.dumps(list(found.values()), allow_nan=False)


def test_medians_over_runs_and_the_ratio_to_the_base() -> None:
    base = [outcome(changed(server_side__steps__per_s=value)) for value in (10, 30, 20)]
    cand = [outcome(changed(server_side__steps__per_s=value)) for value in (50, None, 30)]
    found = figures(base=base, cand=cand)["steps_per_s"]
    assert found["arms"] == {"base": 20, "cand": 40}
    assert found["n"] == {"base": 3, "cand": 2}
    assert found["ratios"] == {"base": 1, "cand": 2}
    assert found["reasons"] == {}


def test_gpu_memory_is_that_of_the_used_gpus_together() -> None:
    rows = [
        {"source": "nvml", "device": f"gpu-{n}", "name": "mem_used_bytes", "all": {"p95": size}}
        for n, size in enumerate((40e9, 44e9, 1e9))
    ]
    gpus = [{"device": f"gpu-{n}", "used": used} for n, used in enumerate((True, True, False))]
    summary = changed(phases_joined__tables=rows, energy__gpus=gpus)
    assert figures(base=[outcome(summary)])["gpu_memory_p95"]["arms"]["base"] == 84e9


def test_a_failed_run_is_left_out_and_an_arm_without_runs_says_so() -> None:
    found = figures(base=[outcome(EXAMPLE), outcome(None)], cand=[outcome(None)])["kv_capacity"]
    assert found["n"] == {"base": 1, "cand": 0}
    assert found["arms"]["cand"] is None
    assert found["reasons"] == {"cand": "no run of this arm ended"}


def test_a_summary_that_lacks_whole_sections() -> None:
    found = figures(base=[outcome({})])
    assert all(figure["arms"]["base"] is None and figure["reasons"]["base"] for figure in found.values())
