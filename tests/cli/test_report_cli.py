import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from servebench.cli.main import main
from servebench.cli.report import exit_code_of
from servebench.errors import ExitCode
from servebench.experiment.directory import ExperimentDir
from servebench.record.columns import Outcome
from servebench.testing.synthetic import open_run

Capture = pytest.CaptureFixture[str]


def make(path: Path, slo: str | None = None) -> Path:
    open_run(requests=300, warmup=1, cooldown=1, slo={"ttft": [slo]} if slo else None).write(path)
    return path


def test_report_prints_and_writes(run_path: Path, capsys: Capture) -> None:
    assert main(["report", str(make(run_path))]) == ExitCode.GOOD
    out = capsys.readouterr().out
    assert "VALID" in out
    assert str(run_path) in out.replace("\n", "")
    assert (run_path / "summary.json").exists()
    assert (run_path / "histograms.hlog").exists()


def test_json(run_path: Path, capsys: Capture) -> None:
    assert main(["report", str(make(run_path)), "--json"]) == ExitCode.GOOD
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(run_path)
    assert document["summary"] == json.loads((run_path / "summary.json").read_text(encoding="utf-8"))
    assert "definitions" not in document


@pytest.mark.parametrize("tool", ["vllm", "aiperf", "guidellm", "llmperf"])
def test_definitions(tool: str, run_path: Path, capsys: Capture) -> None:
    assert main(["report", str(make(run_path)), "--definitions", tool]) == ExitCode.GOOD
    assert f"under the definitions of {tool}" in capsys.readouterr().out
    assert main(["report", str(run_path), "--definitions", tool, "--json"]) == ExitCode.GOOD
    assert json.loads(capsys.readouterr().out)["definitions"]["tool"] == tool


def test_a_missed_objective_is_an_exit_code(run_path: Path) -> None:
    assert main(["report", str(make(run_path, "p95 < 10ms"))]) == ExitCode.OBJECTIVE


def test_an_invalid_run_is_an_exit_code(run_path: Path) -> None:
    run = open_run(requests=100, warmup=1, cooldown=1, slo={"ttft": ["p95 < 10ms"]})
    for index in range(100):
        run.fail(index, Outcome.HTTP_ERROR, "HTTP 500", 500)
    run.write(run_path)
    assert main(["report", str(run_path)]) == ExitCode.INVALID


def test_a_killed_run_is_read_from_its_journals(run_path: Path, capsys: Capture) -> None:
    run = open_run(requests=300, warmup=1, cooldown=1)
    run.manifest["status"] = "running"
    run.manifest.pop("phases")
    run.manifest.pop("workers")
    run.write(run_path)
    assert not (run_path / "requests.parquet").exists()
    assert main(["report", str(run_path)]) == ExitCode.GOOD
    assert "INCOMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "nowhere"], "nowhere is no run directory"),
        (["report"], "Missing argument"),
        (["report", ".", "--definitions", "wrk"], "wrk"),
        (["report", ".", "--jsno"], "--json"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], words: str, capsys: Capture) -> None:
    assert main(arguments) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_help_needs_no_run(capsys: Capture) -> None:
    assert main(["report", "--help"]) == ExitCode.GOOD
    assert "RUNDIR" in capsys.readouterr().out


def begun(path: Path) -> None:
    """A sweep of which nothing has been run yet."""
    variables = [{"key": "load.rate", "written": "load.rate", "values": ["1", "2"]}]
    scenario = {"seed": {"arrivals": 1, "lengths": 1, "content": 1}, "load": {"poisson": 1.0}}
    asked = {"scenario": scenario, "variables": variables, "how": "grid", "repeats": 1, "reset_caches": False}
    ExperimentDir.begin(path, "sweep", "t", asked, ["servebench"])


class TestExperiment:
    def test_of_a_kind_that_is_not_known(self, tmp_path: Path, capsys: Capture) -> None:
        ExperimentDir.begin(tmp_path / "e", "sweeps", "t", {}, ["servebench"])
        assert main(["report", str(tmp_path / "e")]) == ExitCode.USAGE
        assert 'of the unknown kind "sweeps" (did you mean "sweep"?)' in capsys.readouterr().err

    def test_definitions_are_about_one_run(self, tmp_path: Path, capsys: Capture) -> None:
        ExperimentDir.begin(tmp_path / "e", "sweep", "t", {}, ["servebench"])
        assert main(["report", str(tmp_path / "e"), "--definitions", "vllm"]) == ExitCode.USAGE
        assert f"--definitions is about one run: give a folder below {tmp_path}/e/cells" in capsys.readouterr().err

    def test_while_it_is_being_run_it_is_shown_and_left_alone(self, tmp_path: Path, capsys: Capture) -> None:
        begun(tmp_path / "e")
        handle = os.open(tmp_path / "e", os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        before = (tmp_path / "e/experiment.json").read_bytes()
        try:
            assert main(["report", str(tmp_path / "e"), "--json"]) == ExitCode.GOOD
        finally:
            os.close(handle)
        told = capsys.readouterr()
        assert json.loads(told.out)["experiment"]["result"]["kind"] == "sweep"
        assert f"another servebench is working in {tmp_path}/e: nothing is written" in told.err
        assert (tmp_path / "e/experiment.json").read_bytes() == before
        assert main(["report", str(tmp_path / "e"), "--json"]) == ExitCode.GOOD
        assert capsys.readouterr().err == ""
        assert ExperimentDir.open(tmp_path / "e").document["result"]["kind"] == "sweep"

    @pytest.mark.parametrize("text", ['{"schema": 1}', '{"schema": 1, "kind": "ab", "cells": 3}', "[]", "{", ""])
    def test_of_a_damaged_one(self, text: str, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "experiment.json").write_text(text)
        assert main(["report", str(tmp_path)]) == ExitCode.USAGE
        assert len(capsys.readouterr().err.splitlines()) == 1

    @pytest.mark.parametrize(
        ("result", "code"),
        [
            ({}, 0),
            ({"exit_code": 4}, 4),
            ({"verdict": {"status": "INVALID", "exit_code": 3}}, 3),
            ({"verdict": None}, 0),
        ],
    )
    def test_its_result_says_the_exit_code(self, result: dict[str, Any], code: int) -> None:
        assert exit_code_of(result) == code
