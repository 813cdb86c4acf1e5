"""`servebench profile` and `run --profile` as a user meets them: refusals in a line, perf on a simulated engine."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from runs import Command, until, write_scenario
from servebench.cli.main import main
from servebench.errors import UsageError
from servebench.experiment.comparison.differences import is_profiled
from servebench.profile.tools import NAMES
from servebench.profile.tools.perf import PerfTool
from servebench.record.rundir import RunDir
from servebench.testing import GroundTruth

LOAD = {"constant": "20/s", "requests": 30, "drain": "5s"}


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """What is said when a command is refused, in its one line."""
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    return line


class TestRefusals:
    @pytest.mark.parametrize(
        ("more", "says"),
        [
            (
                ["--tool", "nsis"],
                'no profiler "nsis": expected torch, nsys, perf, ncu, sanitizer, xprof (did you mean "nsys"?)',
            ),
            (["--window", "decod"], 'window "decod": expected prefill, decode, mixed or a range such as 12s..14s'),
            (["--window", "decode", "--window", "decode"], 'window "decode" is asked for twice'),
            (["--profile-option", "stacks"], 'profile option "stacks": expected KEY=VALUE'),
            (["--profile-option", "stack=yes"], "--profile-option stack: torch knows stacks, "),
            (["--window-steps", "0"], "--window-steps"),
            (["--window-seconds", "0"], "--window-seconds"),
            (["--window-seconds", "nan"], "nan is no number"),
        ],
    )
    def test_what_is_wrong_is_told_before_anything_is_started(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
    ) -> None:
        scenario = write_scenario(tmp_path, LOAD)
        out = tmp_path / "out"
        assert says in refused(capsys, "profile", scenario, "-e", "http://127.0.0.1:9", "-o", out, "-q", *more)
        assert not out.exists()

    def test_windows_without_a_profiler(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        line = refused(capsys, "run", write_scenario(tmp_path, LOAD), "-e", "sim", "--window", "decode")
        assert "give --profile TOOL, too" in line

    @pytest.mark.parametrize("tool", [("ncu", "--profile-option", "kernel=gemm"), ("sanitizer",)])
    def test_tools_of_a_gpu_say_what_they_need(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tool: tuple[str, ...]
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        line = refused(
            capsys, "profile", write_scenario(tmp_path, LOAD), "-e", "sim", "-o", tmp_path / "out", "-t", *tool
        )
        assert "NVIDIA" in line
        assert not (tmp_path / "out").exists()

    def test_a_server_without_the_routes_is_told_how_to_be_started(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with GroundTruth() as truth:
            line = refused(
                capsys, "profile", write_scenario(tmp_path, LOAD), "-e", truth.url, "-o", tmp_path / "out", "-q"
            )
        assert "torch cannot capture this server: " in line
        assert "--profiler-config.profiler torch" in line
        assert not (tmp_path / "out").exists()


def perf_or_skip() -> None:
    try:
        PerfTool(Path(), {}).check()
    except UsageError as error:
        pytest.skip(str(error))


class TestPerf:
    def test_a_window_of_a_simulated_engine_becomes_a_flame_graph(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        perf_or_skip()
        out = tmp_path / "out"
        arguments = ["profile", write_scenario(tmp_path, LOAD), "-e", "sim", "-t", "perf", "-o", out, "-q"]
        code = main([*map(str, arguments), "--window", "200ms..900ms", "--profile-option", "frequency=2000"])
        shown = capsys.readouterr().out
        assert code in (0, 3)  # on a busy machine the client says that it was late
        assert "SIMULATED" in shown
        folder = out / "profile" / "at-0.2s-0.9s"
        assert (folder / "flame.svg").read_text().startswith("<svg")
        [window] = json.loads((out / "summary.json").read_text())["profile"]["windows"]
        assert window["hot"]["samples"] > 3
        assert window["traffic"]["requests"] > 0
        assert "Flame graph" in shown or "flame.svg" in shown
        assert is_profiled(RunDir.open(out).manifest)

    def test_run_takes_the_same_options(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        perf_or_skip()
        out = tmp_path / "out"
        arguments = ["run", write_scenario(tmp_path, LOAD), "-e", "sim", "--profile", "perf", "-o", out, "--json"]
        code = main([*map(str, arguments), "--window", "200ms..500ms"])
        document = json.loads(capsys.readouterr().out)
        assert code in (0, 3)
        assert [w["name"] for w in document["summary"]["profile"]["windows"]] == ["at-0.2s-0.5s"]

    def test_ctrl_c_in_a_window_keeps_the_runs_own_results(self, tmp_path: Path) -> None:
        perf_or_skip()
        out = tmp_path / "out"
        scenario = write_scenario(tmp_path, LOAD)
        windows = ("--window", "500ms..60s", "--window", "600ms..1s")
        ran = Command(tmp_path / "cli", "profile", scenario, "-e", "sim", "-t", "perf", "-o", out, "-q", *windows)
        until(lambda: list(out.glob("profile/*/captured/journal/*.requests.arrows")), 40, "the window's load runs")
        ran.signal(signal.SIGINT)
        assert ran.wait() == 130
        assert "Traceback" not in ran.stderr
        assert not ran.processes()
        summary = json.loads((out / "summary.json").read_text())
        assert summary["outcomes"]["ok"] == summary["outcomes"]["planned"] == 30
        told = {w["name"]: w for w in RunDir.open(out).manifest["profile"]["windows"]}
        assert told["at-0.6s-1s"]["reason"] == "interrupted before it was captured"


def test_every_tool_is_told_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)
