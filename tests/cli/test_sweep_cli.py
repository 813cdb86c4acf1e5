"""`servebench sweep` as a user runs it, on the simulated engine: tiny runs, a real directory, real exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs import write_scenario
from servebench.cli.main import main

LOAD = {"constant": "20/s", "duration": "1s", "drain": "3s"}


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    return str(write_scenario(tmp_path, LOAD, slo={"ttft": "p95 < 2s"}))


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((path / "experiment.json").read_text())["cells"]
    return cells


def test_a_sweep_runs_each_cell_and_goes_on_where_it_was(scenario, tmp_path, capsys):
    out = tmp_path / "sweep"
    asked = ["sweep", scenario, "--vary", "load.rate=20,30", "-e", "sim", "--out", str(out), "--no-telemetry", "--json"]
    assert main(asked) in (0, 3)  # a busy machine may make a run INVALID
    document = json.loads(capsys.readouterr().out)["experiment"]
    rows = document["result"]["cells"]
    assert [row["cell"] for row in rows] == ["01-rate-20", "02-rate-30"]
    assert [row["status"] for row in rows] == ["done", "done"]
    assert [round(row["offered_per_s"]) for row in rows] == [20, 30]
    assert document["simulated"] is True
    for row in rows:
        manifest = json.loads((out / row["path"] / "run.json").read_text())
        assert manifest["cache_reset"]["done"] is True  # by launch
        assert manifest["scenario"]["load"]["constant"] == row["labels"]["load.rate"]
    before = cells_of(out)
    assert main([*asked[:-1], "--quiet"]) in (0, 3)
    assert cells_of(out) == before
    shown = capsys.readouterr().out
    assert "load.rate, offered per second" in shown or "no curves" in shown
    assert main(["report", str(out), "--json"]) in (0, 3)
    assert json.loads(capsys.readouterr().out)["experiment"]["result"] == document["result"]


def test_another_question_in_the_same_directory_is_refused(scenario, tmp_path, capsys):
    out = str(tmp_path / "sweep")
    asked = ["sweep", scenario, "-e", "http://127.0.0.1:9", "--out", out, "--quiet"]
    assert main([*asked, "--vary", "load.rate=20,30"]) == 2  # nobody is there: every cell failed
    assert "connection refused" in capsys.readouterr().out
    assert main([*asked, "--vary", "load.rate=20,40"]) == 2
    assert "another question: variables.0.values" in capsys.readouterr().err


def test_a_dry_run_prints_the_cells_and_makes_nothing(scenario, tmp_path, capsys):
    out = tmp_path / "sweep"
    asked = ["sweep", scenario, "-V", "load.rate=1,2", "-V", "sim.base=1ms,2ms", "--out", str(out), "--dry-run"]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert "04-rate-2-base-2ms" in shown
    assert "4 runs, about" in shown
    assert main([*asked, "--zip", "--repeats", "3"]) == 0
    assert "6 runs, about" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--vary", "load.rates=1,2"], 'load.rates=1: load.rates: unknown key "rates"'),
        (["--vary", "load.rate=1,2", "--set", "load.closed.concurrency=2"], "the load has closed"),
        (["--vary", "load.rate=1"], "one value varies nothing"),
        (["--vary", "load.rate=1,2", "--vary", "seed=1,2,3", "--zip"], "load.rate has 2, seed has 3"),
        (
            ["--vary", "vllm.max-num-seqs=1,2", "-e", "sim"],
            "servebench starts, which --endpoint sim is not",
        ),
        (["--vary", "sim.base=1ms,2ms", "-e", "http://127.0.0.1:9"], "the simulated engine, which --endpoint"),
        ([], "Missing option"),
    ],
)
def test_a_mistake_is_one_line_before_the_first_run(scenario, tmp_path, capsys, asked, said):
    out = tmp_path / "sweep"
    assert main(["sweep", scenario, "--out", str(out), *asked]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.splitlines()) == 1
    assert not out.exists()


def test_points_that_were_left_out_are_said(scenario, capsys):
    assert main(["sweep", scenario, "-V", "load.closed.concurrency=1..3:log6", "-e", "sim", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "the 6 points of 1..3:log6 are 3 different ones" in told.err
    assert "3 runs" in told.out
