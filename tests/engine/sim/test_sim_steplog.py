"""The log of the simulated engine's steps, against what a client of it must have seen."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from servebench.engine.sim.launch import start_sim
from servebench.engine.sim.scheduler import Step
from servebench.engine.sim.steplog import StepLog
from servebench.errors import EngineError

COST = {"base": 2e-3, "per_prefill_token": 1e-4, "per_sequence": 1e-3, "per_context_token": 0}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_instants_are_put_on_the_realtime_clock(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps")
    before, now = time.time_ns(), time.monotonic()
    log.add(Step(prefill_tokens=3, decode_sequences=2), now - 0.010, now, waiting=4)
    log.close()
    [step] = read(tmp_path / "steps")
    assert step["end_ns"] - step["start_ns"] == pytest.approx(10e6, abs=2)
    assert abs(step["end_ns"] - before) < 50e6
    assert (step["prefill_tokens"], step["decode_sequences"], step["waiting"]) == (3, 2, 4)


def test_every_step_is_there_with_its_cost(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    began = time.time_ns()
    with start_sim(COST, "toy", step_log=path) as sim:
        body = {"prompt": [7] * 50, "max_tokens": 6}
        assert httpx.post(f"{sim.url}/v1/completions", json=body).status_code == 200
        sim.stop()
    steps = read(path)
    assert [(s["prefill_tokens"], s["decode_sequences"]) for s in steps] == [(50, 0)] + [(0, 1)] * 5
    lengths = [s["end_ns"] - s["start_ns"] for s in steps]
    assert lengths == pytest.approx([7e6] + [3e6] * 5, abs=1000)
    assert all(a["end_ns"] <= b["start_ns"] + 1000 for a, b in pairwise(steps))
    assert began < steps[0]["start_ns"] < steps[-1]["end_ns"] < time.time_ns()
    assert {s["waiting"] for s in steps} == {0}


def test_without_the_option_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with start_sim(COST, "toy") as sim:
        assert httpx.post(f"{sim.url}/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"did not start .*No such file or directory"):
        start_sim(COST, "toy", step_log=tmp_path / "none" / "steps")
