"""Windows of a run on real sockets: the simulated engine, and as a profiler its own log of its steps."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runs import Result, scenario
from servebench.engine.sim.launch import start_sim
from servebench.engine.sim.settings import SimSettings
from servebench.errors import UsageError
from servebench.experiment.comparison.differences import is_profiled
from servebench.profile.tool import Launch, ProfileError
from servebench.profile.windows import ProfileRequest, parse_windows
from servebench.record.document import replace_document
from servebench.record.rundir import RunDir
from servebench.run import RunOptions, run
from servebench.run.asking import ask
from servebench.telemetry.processes import process_tree
from step_tool import StepTool

LOAD = {"poisson": "15/s", "duration": "3s", "warmup": "500ms", "drain": "3s"}
BRIEF = {"constant": "20/s", "requests": 20, "drain": "3s"}
LENGTHS = {"input_tokens": {"uniform": {"min": 200, "max": 900}}, "output_tokens": 20}
STEP = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)")


def install(patch: pytest.MonkeyPatch) -> None:
    """Have every tool be the test's, and isolating loads be no longer than its engine, which is quick to arm, needs."""
    patch.setattr("servebench.run.profiling.make_tool", lambda name, folder, settings: StepTool(folder, settings))
    patch.setattr("servebench.profile.loads.ARMING_S", 0.7)


@pytest.fixture(autouse=True)
def step_tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(monkeypatch)
    StepTool.calls.clear()
    StepTool.failing.clear()
    yield
    StepTool.failing.clear()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    log = tmp_path_factory.mktemp("engine") / "steps.jsonl"
    with start_sim(SimSettings(base=0.004), "simulated", step_log=log) as sim:
        yield sim.url, log


def profiled(
    engine: tuple[str, Path], out: Path, windows: str, load: Any = BRIEF, workers: int = 1, **more: Any
) -> Result:
    """A run with windows; `more` are fields of the request."""
    url, log = engine
    request = ProfileRequest("steps", parse_windows([windows]), settings={"log": str(log)}, **more)
    out.parent.mkdir(exist_ok=True)
    base = scenario(out.parent, load, workload=LENGTHS)
    return Result.of(run(base, RunOptions(endpoint=url, out=out, workers=workers, telemetry=False, profile=request)))


def window(result: Result, name: str) -> dict[str, Any]:
    return json.loads((result.rundir.path / "profile" / name / "window.json").read_text())


@pytest.fixture(scope="module")
def whole(engine: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        return profiled(engine, tmp_path_factory.mktemp("whole") / "run", "prefill,decode,mixed", LOAD)


class TestWindows:
    def test_each_is_captured_and_meets_what_it_is_meant_for(self, whole: Result) -> None:
        found = {w["name"]: w for w in whole.summary["profile"]["windows"]}
        assert list(found) == ["prefill", "decode", "mixed"]
        assert [w["empty"] for w in found.values()] == [False] * 3
        assert [w["traffic"]["as_meant"] for w in found.values()] == [True] * 3
        kinds = {name: {k["kind"]: k["n"] for k in w["steps"]["kinds"]} for name, w in found.items()}
        assert kinds["prefill"].keys() == {"prefill_only"}
        assert kinds["decode"].keys() == {"decode_only"}
        assert {"prefill_only", "decode_only", "mixed"} & kinds["mixed"].keys() >= {"decode_only"}
        assert min(kinds["prefill"]["prefill_only"], kinds["decode"]["decode_only"]) > 10

    def test_instants_are_in_order_and_inside_the_windows_own_load(self, whole: Result) -> None:
        for name in ("prefill", "decode", "mixed"):
            told = window(whole, name)
            assert told["start_asked_ns"] <= told["start_ns"] < told["stop_asked_ns"] <= told["stop_ns"]
            assert told["stop_asked_ns"] - told["start_ns"] == pytest.approx(0.9e9, rel=0.3)
            phases = RunDir.open(whole.rundir.path / "profile" / name / "captured").manifest["phases"]
            assert phases["start_ns"] < told["start_ns"] < phases["end_ns"]

    def test_none_is_inside_the_runs_own_load(self, whole: Result) -> None:
        end = whole.rundir.manifest["phases"]["end_ns"]
        assert all(window(whole, name)["start_asked_ns"] > end for name in ("prefill", "decode", "mixed"))

    def test_all_runs_are_marked_as_profiled(self, whole: Result) -> None:
        assert is_profiled(whole.rundir.manifest)
        assert [w["status"] for w in whole.rundir.manifest["profile"]["windows"]] == ["captured"] * 3
        parts = [f"{name}/{part}" for name in ("prefill", "decode") for part in ("plain", "captured")]
        for part in [*parts, "mixed/captured"]:
            assert is_profiled(RunDir.open(whole.rundir.path / "profile" / part).manifest)
        assert not (whole.rundir.path / "profile" / "mixed" / "plain").exists()

    def test_the_isolating_loads_run_with_and_without_the_capture(self, whole: Result) -> None:
        for name in ("prefill", "decode"):
            plain, captured = (RunDir.open(whole.rundir.path / "profile" / name / p) for p in ("plain", "captured"))
            assert plain.manifest["plan"]["hash"] == captured.manifest["plan"]["hash"]
            assert plain.manifest["plan"]["salt"] != captured.manifest["plan"]["salt"]

    def test_the_report_is_the_same_when_it_is_computed_again(self, whole: Result) -> None:
        before = (whole.rundir.path / "summary.json").read_bytes()
        assert Result.of(RunDir.open(whole.rundir.path)).summary["profile"] is not None
        assert (whole.rundir.path / "summary.json").read_bytes() == before

    def test_its_own_load_is_as_good_as_any(self, whole: Result) -> None:
        assert whole.summary["outcomes"]["ok"] == whole.summary["outcomes"]["planned"] > 30


class TestBounds:
    def test_a_window_ends_after_so_many_steps_of_the_engine(self, engine: tuple[str, Path], tmp_path: Path) -> None:
        result = profiled(engine, tmp_path / "run", "decode", steps=40, seconds=30.0)
        told = window(result, "decode")
        assert told["bounds"] == {"seconds": 30.0, "steps": 40}
        lines = [json.loads(line) for line in engine[1].read_text().splitlines()]
        inside = sum(told["start_ns"] <= s["end_ns"] <= told["stop_asked_ns"] for s in lines)
        assert 30 <= inside <= 120  # it asks for the count between steps
        assert told["stop_asked_ns"] - told["start_ns"] < 10e9

    def test_no_more_workers_share_a_windows_load_than_it_has_requests(
        self, engine: tuple[str, Path], tmp_path: Path
    ) -> None:
        result = profiled(engine, tmp_path / "run", "decode", workers=2, seconds=0.3, concurrency=1)
        assert window(result, "decode")["reason"] is None
        assert len(result.rundir.manifest["workers"]) == 2

    def test_a_range_begins_and_ends_by_the_clock_of_its_load(self, engine: tuple[str, Path], tmp_path: Path) -> None:
        result = profiled(engine, tmp_path / "run", "400ms..600ms")
        told = window(result, "at-0.4s-0.6s")
        zero = RunDir.open(result.rundir.path / "profile" / "at-0.4s-0.6s" / "captured").manifest["phases"]["start_ns"]
        assert (told["start_ns"] - zero) / 1e9 == pytest.approx(0.4, abs=0.2)
        assert (told["stop_asked_ns"] - told["start_ns"]) / 1e9 == pytest.approx(0.2, abs=0.15)

    def test_a_window_that_is_never_armed_says_what_was_seen(self, engine: tuple[str, Path], tmp_path: Path) -> None:
        result = profiled(engine, tmp_path / "run", "9s..10s")
        told = window(result, "at-9s-10s")
        assert told["reason"].startswith("the load ended before the window could be armed: after ")
        assert told["start_ns"] is None
        [found] = result.summary["profile"]["windows"]
        assert found["empty"] and found["reason"] == told["reason"]
        assert "start at-9s-10s" not in StepTool.calls


NAME = "at-0.1s-0.4s"


class TestFailures:
    @pytest.mark.parametrize(
        ("method", "error", "says"),
        [
            ("start", ProfileError("HTTP 404: no such route"), "HTTP 404: no such route"),
            ("collect", ProfileError("it has written no file"), "it has written no file"),
            (
                "collect",
                OSError(28, "No space left on device"),
                "the capture could not be read: No space left on device",
            ),
            (
                "start",
                OSError(28, "No space left on device"),
                "the capture could not be stored: No space left on device",
            ),
            ("start", KeyError("x"), "the capture failed: KeyError: 'x'"),
            ("collect", KeyError("x"), "the capture could not be read: KeyError: 'x'"),
            ("collect", UsageError("perf is gone"), "perf is gone"),
        ],
    )
    def test_a_window_says_what_went_wrong_and_the_runs_results_are_intact(
        self, engine: tuple[str, Path], tmp_path: Path, method: str, error: Exception, says: str
    ) -> None:
        StepTool.failing[method] = error
        result = profiled(engine, tmp_path / "run", "100ms..400ms")
        assert window(result, NAME)["reason"] == says
        assert result.rundir.manifest["profile"]["windows"] == [{"name": NAME, "status": "failed", "reason": says}]
        [found] = result.summary["profile"]["windows"]
        assert (found["empty"], found["reason"]) == (True, says)
        assert result.summary["outcomes"]["ok"] == result.summary["outcomes"]["planned"]
        assert result.rundir.manifest["status"] == "complete"

    def test_what_a_profiler_that_never_stopped_has_stored_is_still_read(
        self, engine: tuple[str, Path], tmp_path: Path
    ) -> None:
        StepTool.failing["stop"] = ProfileError("it did not stop within 5 s")
        result = profiled(engine, tmp_path / "run", "100ms..400ms")
        told = window(result, NAME)
        assert (told["reason"], told["stop_ns"]) == ("it did not stop within 5 s", None)
        [found] = result.summary["profile"]["windows"]
        assert not found["empty"]
        assert "it did not stop within 5 s" in found["notes"]
        assert found["steps"]["kinds"]

    def test_a_disk_that_is_full_after_the_windows_is_told_in_a_line(
        self, engine: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(file: Path, document: dict[str, Any]) -> None:
            if "collect at-0.1s-0.2s" in StepTool.calls:
                raise OSError(28, "No space left on device")
            replace_document(file, document)

        monkeypatch.setattr("servebench.run.profiling.replace_document", full)
        monkeypatch.setattr("servebench.record.rundir.replace_document", full)
        with pytest.raises(
            UsageError, match=r"the windows cannot be stored: No space left .* results in .*/run are whole"
        ):
            profiled(engine, tmp_path / "run", "100ms..200ms")
        rundir = RunDir.open(tmp_path / "run")
        assert rundir.manifest["status"] == "complete"
        assert rundir.requests().num_rows == 20

    def test_a_profiler_that_is_not_there_is_told_before_anything_is_run(
        self, engine: tuple[str, Path], tmp_path: Path
    ) -> None:
        StepTool.failing["check"] = UsageError("nsys is not installed")
        with pytest.raises(UsageError, match="nsys is not installed"):
            profiled(engine, tmp_path / "a" / "run", "decode")
        assert not (tmp_path / "a" / "run").exists()

    def test_a_server_that_cannot_be_captured_is_told_before_any_load(
        self, engine: tuple[str, Path], tmp_path: Path
    ) -> None:
        StepTool.failing["attach"] = ProfileError("it has no /start_profile")
        with pytest.raises(UsageError, match="steps cannot capture this server: it has no /start_profile"):
            profiled(engine, tmp_path / "a" / "run", "decode")
        assert not (tmp_path / "a" / "run").exists()

    def test_answers_that_take_too_long_after_a_window_are_given_up(
        self, engine: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("servebench.run.watching.PATIENCE_S", 0.0)
        monkeypatch.setattr("servebench.run.watching.PATIENCE", 0.0)
        result = profiled(engine, tmp_path / "run", "decode", seconds=0.3)
        plain, captured = (RunDir.open(result.rundir.path / "profile" / "decode" / p) for p in ("plain", "captured"))
        assert set(plain.requests()["outcome"].to_pylist()) == {"ok"}
        assert set(captured.requests()["outcome"].to_pylist()) == {"in_flight"}
        assert not result.summary["profile"]["windows"][0]["empty"]

    def test_a_window_part_of_whose_load_died_says_so(self, engine: tuple[str, Path], tmp_path: Path) -> None:
        class Deadly(StepTool):
            def start(self, window: str, folder: Path, bounds: Any) -> None:
                for pid in process_tree(os.getpid()):
                    if b"servebench.dispatch.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
                super().start(window, folder, bounds)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("servebench.run.profiling.make_tool", lambda n, folder, s: Deadly(folder, s))
            result = profiled(engine, tmp_path / "run", "100ms..400ms")
        assert window(result, NAME)["reason"] == "not all of its load ran: a worker died (captured)"

    def test_secrets_that_a_profiler_finds_in_the_server_are_taken_out(
        self, engine: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Telling(StepTool):
            def start(self, window: str, folder: Path, bounds: Any) -> None:
                super().start(window, folder, bounds)
                (folder / "raw").write_bytes(b"\xffHUB_TOKEN=" + os.environb[b"HUB_TOKEN"])

        monkeypatch.setenv("HUB_TOKEN", "Of-the-Hub-0")
        monkeypatch.setattr("servebench.run.profiling.make_tool", lambda n, folder, s: Telling(folder, s))
        result = profiled(engine, tmp_path / "run", "100ms..400ms")
        assert (result.rundir.path / "profile" / NAME / "raw").read_bytes() == b"\xffHUB_TOKEN=************"

    def test_a_tool_that_launches_servers_does_not_launch_the_simulated_engine(self, tmp_path: Path) -> None:
        class Launching(StepTool):
            def launch(self) -> Launch:
                return Launch(prefix=("nsys", "launch"))

        request = ProfileRequest("steps", parse_windows(["decode"]))
        options = RunOptions(endpoint="sim", out=tmp_path / "out", telemetry=False, profile=request)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("servebench.run.profiling.make_tool", lambda n, folder, s: Launching(folder, s))
            with pytest.raises(UsageError, match="steps launches the server, which the simulated engine is not made"):
                run(scenario(tmp_path, BRIEF), options)
        assert not (tmp_path / "out").exists()

    def test_a_server_that_dies_in_a_window_costs_that_window(self, tmp_path: Path) -> None:
        log = tmp_path / "steps.jsonl"
        with start_sim(SimSettings(base=0.004), "simulated", step_log=log) as sim:
            before = time.monotonic()

            class Deadly(StepTool):
                def start(self, window: str, folder: Path, bounds: Any) -> None:
                    os.kill(sim.pid, signal.SIGKILL)
                    super().start(window, folder, bounds)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "servebench.run.profiling.make_tool", lambda n, folder, settings: Deadly(folder, settings)
                )
                result = profiled((sim.url, log), tmp_path / "run", "100ms..400ms,500ms..600ms")
        assert result.summary["outcomes"]["ok"] == result.summary["outcomes"]["planned"]
        assert "connection refused" in window(result, "at-0.5s-0.6s")["reason"]
        assert time.monotonic() - before < 60


def signalled(at: str, *numbers: int) -> type[StepTool]:
    """A tool that sends us signals, one after the other, when its method `at` is called."""

    class Signalling(StepTool):
        def _called(self, method: str, window: str = "") -> None:
            super()._called(method, window)
            if method == at:
                for number in numbers:
                    os.kill(os.getpid(), number)
                    time.sleep(0.3)
                    if number == signal.SIGTERM:
                        time.sleep(20)  # a profiler that takes long for what it has

    return Signalling


class TestInterrupted:
    def ran(
        self, engine: tuple[str, Path], out: Path, tool: type[StepTool], windows: str = "100ms..60s,1s..2s"
    ) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("servebench.run.profiling.make_tool", lambda n, folder, settings: tool(folder, settings))
            result = profiled(engine, out, windows)
        assert result.rundir.manifest["profile"]["interrupted"]
        assert result.rundir.manifest["status"] == "complete"
        assert result.summary["outcomes"]["ok"] == result.summary["outcomes"]["planned"]
        return result

    def test_a_first_signal_cuts_the_window_short_and_it_is_read(
        self, engine: tuple[str, Path], tmp_path: Path
    ) -> None:
        before = time.monotonic()
        result = self.ran(engine, tmp_path / "run", signalled("start", signal.SIGINT))
        assert time.monotonic() - before < 20
        told = window(result, "at-0.1s-60s")
        assert told["reason"] == "interrupted while it was captured: it is shorter than was asked for"
        assert told["facts"]["files"]
        assert window(result, "at-1s-2s")["reason"] == "interrupted before it was captured"

    def test_a_second_one_gives_up_on_a_profiler_that_takes_long(
        self, engine: tuple[str, Path], tmp_path: Path
    ) -> None:
        before = time.monotonic()
        result = self.ran(engine, tmp_path / "run", signalled("stop", signal.SIGINT, signal.SIGTERM), "100ms..200ms")
        assert time.monotonic() - before < 15
        told = window(result, "at-0.1s-0.2s")
        assert told["reason"] == "interrupted twice, and so before steps had stored what it had"
        assert (told["start_ns"], told["facts"]) == (None, {})

    def test_one_before_a_windows_load_costs_that_window(self, engine: tuple[str, Path], tmp_path: Path) -> None:
        asked = 0

        def asking(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 2:  # by the window's run
                os.kill(os.getpid(), signal.SIGINT)
            return ask(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("servebench.run.execution.ask", asking)
            result = self.ran(engine, tmp_path / "run", StepTool)
        assert window(result, "at-0.1s-60s")["reason"] == "interrupted before it was captured"
        assert not (result.rundir.path / "profile" / "at-0.1s-60s" / "captured").exists()

    def test_one_while_a_capture_is_read_ends_the_reading(self, engine: tuple[str, Path], tmp_path: Path) -> None:
        result = self.ran(engine, tmp_path / "run", signalled("collect", signal.SIGINT), "100ms..200ms,300ms..400ms")
        reasons = [w["reason"] for w in result.rundir.manifest["profile"]["windows"]]
        assert reasons == ["interrupted before what was captured was read"] * 2
        assert [w["empty"] for w in result.summary["profile"]["windows"]] == [True] * 2
