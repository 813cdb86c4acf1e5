"""What all commands of experiments share, tried on a command that only they make up."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from runs import write_scenario
from servebench.cli.campaigns import campaign, dry_run, experiment_options
from servebench.cli.progress import Progress, time_text
from servebench.errors import UsageError
from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.directory import ExperimentDir
from servebench.run import RunOptions

KEY = "sk-canary-0123456789abcdef"
CELLS = [Cell(f"r{number}", {"rate": rate}, (f"load.poisson={rate}/s",)) for number, rate in ((1, 40), (2, 80))]


@click.command()
@experiment_options
def twice(
    scenario: str,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    quiet: bool,
    dry_run: bool,
    retry_failed: bool,
    **options: Any,
) -> None:
    """Run the cells, whatever is asked."""
    runs = RunOptions(**options)
    work = campaign("sweep", "t", {"cells": 2}, scenario, overrides, out, quiet, retry_failed, runs, "ttft.p99")
    click.echo(json.dumps([outcome.status for outcome in work.run_all(CELLS)]))


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    load = {"poisson": "40/s", "requests": 8, "drain": "5s"}
    return write_scenario(tmp_path, load, engine={"sim": {"base": "1ms"}})


def invoke(scenario: Path, *more: str | Path) -> Result:
    return CliRunner().invoke(twice, [str(scenario), "-e", "sim", "--no-telemetry", *map(str, more)])


def test_a_campaign_from_the_command_line(scenario_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "e"
    first = invoke(scenario_file, "--out", out)
    assert first.exception is None
    assert json.loads(first.stdout) == ["done", "done"]
    lines = first.stderr.splitlines()
    assert lines[0] == f"experiment in {out}; after an interruption the same command with --out {out} goes on"
    assert lines[1] == "2 runs to do"
    assert lines[2].startswith("1/2 r1: ")
    assert "ttft.p99" in lines[2]
    assert lines[2].endswith(" left")
    assert lines[3].endswith(" s")
    assert len(lines) == 4, "a status line where there is no terminal"

    again = invoke(scenario_file, "--out", out)
    assert json.loads(again.stdout) == ["done", "done"]
    assert again.stderr.splitlines()[1:] == [
        "every run is there already",
        *(f"{c['name']}: there already, {c['verdict']}" for c in ExperimentDir.open(out).document["cells"]),
    ]


def test_quiet_says_nothing(scenario_file: Path, tmp_path: Path) -> None:
    assert invoke(scenario_file, "--out", tmp_path / "e", "-q").stderr == ""


def test_two_at_once_are_refused(scenario_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "e"
    ExperimentDir.begin(out, "sweep", "t", {"cells": 2}, ["servebench"])
    handle = os.open(out, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        found = invoke(scenario_file, "--out", out).exception
    finally:
        os.close(handle)
    assert isinstance(found, UsageError)
    assert str(found) == f"another servebench is working in {out}"


def test_a_key_goes_nowhere(scenario_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    out = tmp_path / "e"
    found = invoke(
        scenario_file, "--out", out, "--api-key-env", "MY_KEY", "-s", f"endpoint.headers.X-Tenant={KEY}-tenant"
    )
    assert found.exception is None
    assert KEY not in found.output
    for file in filter(Path.is_file, out.rglob("*")):
        assert KEY.encode() not in file.read_bytes(), file


def test_the_secrets_of_every_arm_are_known(scenario_file: Path, tmp_path: Path) -> None:
    arms = [
        {
            "overrides": [f"endpoint.headers.X-Tenant={KEY}-{name}"],
            "environ": {"SERVEBENCH_ARM_API_KEY": f"{name}-hook-1"},
        }
        for name in ("a", "b")
    ]
    with click.Context(twice):
        work = campaign("ab", "t", {"arms": arms}, str(scenario_file), (), tmp_path / "e", True, False, RunOptions())
    assert {f"{KEY}-a", f"{KEY}-b", "a-hook-1", "b-hook-1"} <= set(work.directory.secrets)
    assert not any(word in (tmp_path / "e/experiment.json").read_text() for word in (KEY, "hook-1"))


def test_a_wrong_setting_is_said_before_anything_is_made(scenario_file: Path, tmp_path: Path) -> None:
    found = invoke(scenario_file, "--out", tmp_path / "e", "-s", "load.poison=3").exception
    assert isinstance(found, UsageError)
    assert not (tmp_path / "e").exists()


class TestDryRun:
    def test_cells_and_time(self, capsys: pytest.CaptureFixture[str]) -> None:
        dry_run([Cell("r1", {"rate": 1.5, "arm": "base"}, expected_s=70.0), Cell("r2", {"rate": 3}, expected_s=3600)])
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == ["run", "rate", "arm", "about"]
        assert lines[1] == ["r1", "1.5", "base", "1", "min", "10", "s"]
        assert lines[2] == ["r2", "3", "1", "h", "00", "min"]
        assert " ".join(lines[3]) == "2 runs, about 1 h 01 min; nothing was run"

    def test_a_time_that_nobody_knows(self, capsys: pytest.CaptureFixture[str]) -> None:
        dry_run([Cell("r1", expected_s=10), Cell("r2")])
        assert capsys.readouterr().out.splitlines()[-1] == "2 runs, at least 10 s; nothing was run"

    def test_a_value_in_brackets_is_no_markup(self, capsys: pytest.CaptureFixture[str]) -> None:
        dry_run([Cell("r1", {"paths": "[/x]"}), Cell("r2", {"paths": "[red]"})])
        assert "[/x]" in (out := capsys.readouterr().out)
        assert "[red]" in out

    def test_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        dry_run([Cell("r1", {"rate": 2}, expected_s=10), Cell("r2")], as_json=True)
        document = json.loads(capsys.readouterr().out)
        assert document["expected_s"] is None
        assert document["cells"][0] == {"name": "r1", "labels": {"rate": 2}, "expected_s": 10}


class TestProgress:
    def test_a_failed_run_gives_its_reason_and_the_time_left(self, capsys: pytest.CaptureFixture[str]) -> None:
        view = Progress(Path("e"))
        view.begins(Cell("a"), 3, 12, 100.0)
        view.ends(Outcome(Cell("a"), "failed", None, None, "no\nserver", 10.0, Path("e/cells/a")), 90.0)
        assert capsys.readouterr().err.splitlines()[-1] == "3/12 a: FAILED: no server, 10 s, 1 min 30 s left"

    def test_a_failed_run_of_before_says_how_it_is_tried_again(self, capsys: pytest.CaptureFixture[str]) -> None:
        Progress(Path("e")).found(Outcome(Cell("a"), "failed", None, None, "no server", 10.0, Path("e/cells/a")))
        assert capsys.readouterr().err.splitlines()[-1] == (
            "a: there already, failed, which --retry-failed tries again: no server"
        )

    def test_a_figure_that_the_run_lacks_is_a_dash(self, capsys: pytest.CaptureFixture[str]) -> None:
        view = Progress(Path("e"), "ttft.p99")
        view.begins(Cell("a"), 1, None, None)
        done = {"verdict": {"status": "VALID"}}
        view.ends(Outcome(Cell("a"), "done", done, None, None, 2.0, Path("e/cells/a")), None)
        assert capsys.readouterr().err.splitlines()[-1] == "1 a: VALID, ttft.p99 –, 2 s"

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(None, "?"), (0.4, "0 s"), (59.6, "1 min 00 s"), (130, "2 min 10 s"), (7500, "2 h 05 min")],
    )
    def test_times(self, seconds: float | None, text: str) -> None:
        assert time_text(seconds) == text
