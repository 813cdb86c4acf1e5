"""Runs in which something breaks: the server, the network, a worker, the parent, the disk. The numbers still add up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import (
    EVENTS,
    MILLISECOND,
    SECOND,
    OpenAI,
    Result,
    command,
    execute,
    scenario,
    tokens,
    until,
    write_scenario,
)
from servebench.dispatch.crew import Crew, WorkerError
from servebench.errors import EngineError, UsageError
from servebench.record.rundir import RunDir
from servebench.run import Observer, RunOptions, run
from servebench.testing import (
    GroundTruth,
    Hang,
    Script,
    Wait,
    json_response,
    refusing_port,
    response,
    sse,
    sse_response,
)
from servebench.workload.plan import Plan

KEY = "sk-canary-0123456789abcdef"


@pytest.fixture(scope="module")
def truth() -> Iterator[GroundTruth]:
    with GroundTruth(step_us=5000, ttft_us=10_000) as server:
        yield server


def adds_up(result: Result) -> bool:
    """Every planned request has exactly one outcome, and every identity of the report holds."""
    numbers = result.summary["outcomes"]
    parts = numbers["ok"] + numbers["failed"] + numbers["dropped"] + numbers["in_flight"] + numbers["unrecorded"]
    held = all(identity["ok"] for identity in result.summary["identities"].values())
    return bool(numbers["planned"] == parts and held)


class TestRefusals:
    """A server that will not serve is never hammered, and the run still ends with its report."""

    def refused(self, folder: Path, answer: Callable[[int], Script], seconds: float = 1.5) -> tuple[Result, OpenAI]:
        load = {"closed": {"concurrency": 4}, "duration": f"{seconds}s", "drain": "2s"}
        with OpenAI(answer) as server:
            result = execute(scenario(folder, load), server.url, folder / "run")
        return result, server

    def test_429_with_retry_after_is_obeyed(self, tmp_path: Path) -> None:
        result, server = self.refused(tmp_path, lambda n: json_response(429, {"error": "slow"}, {"retry-after": "1"}))
        assert len(server.load) == 8  # four slots, twice: at 0 and at 1 s
        assert result.outcomes == {"planned": 8, "rejected": 8}
        assert result.column("retry_after_s") == [1.0] * 8
        assert result.rundir.manifest["workers"][0]["pauses"] == 8
        assert result.verdict == "INVALID"
        assert result.summary["verdict"]["exit_code"] == 3
        assert adds_up(result)

    def test_429_without_it_makes_growing_pauses(self, tmp_path: Path) -> None:
        result, server = self.refused(tmp_path, lambda n: json_response(429, {"error": "slow"}))
        # pauses of 50, 100, 200, 400, 800 ms: a slot sends at 0, 50, 150, 350, 750 and, if the end is late, 1550 ms
        assert len(server.load) <= 4 * 6
        times = sorted(seen.received_ns for seen in server.load)
        gaps = [b - a for a, b in pairwise(times[::4])]
        assert gaps == sorted(gaps)
        assert gaps[-1] > 3 * gaps[0]
        assert result.outcomes["rejected"] == result.outcomes["planned"] == len(server.load) >= 16

    def test_refused_connections_are_not_hammered_either(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"closed": {"concurrency": 4}, "duration": "1500ms", "drain": "2s"}
        with OpenAI(lambda n: tokens(2)) as server:
            url = server.url
            watcher = closing_after_models(server)
            result = execute(scenario(tmp_path, load), url, tmp_path / "run")
            watcher.join()
        assert result.outcomes["connect_error"] == result.outcomes["planned"]
        assert 12 <= result.outcomes["planned"] <= 24
        assert result.verdict == "INVALID"
        assert "connection refused" in result.rows[0]["error"]
        assert adds_up(result)

    @pytest.mark.parametrize(
        "answer",
        [
            sse_response([sse({"error": {"message": "overloaded"}})]),
            sse_response([sse(EVENTS.finish())]),
            sse_response([sse(EVENTS.text("a"))]),
            response(200, b"<html>"),
        ],
        ids=["stream_error", "empty", "truncated", "protocol_error"],
    )
    def test_nor_is_one_whose_answers_fail_inside(
        self, answer: Script, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        result, server = self.refused(tmp_path, lambda n: answer)
        outcome = request.node.callspec.id
        assert result.outcomes == {"planned": len(server.load), outcome: len(server.load)}
        assert len(server.load) <= 4 * (3 + 6)  # each slot some at once, then with growing pauses
        assert result.verdict == "INVALID"
        assert adds_up(result)

    def test_a_single_failure_costs_no_pause(self, tmp_path: Path) -> None:
        failing = sse_response([sse({"error": {"message": "once"}})])
        load = {"closed": {"concurrency": 2}, "requests": 60, "drain": "2s"}
        with OpenAI(lambda n: failing if n % 10 == 5 else tokens(3)) as server:
            result = execute(scenario(tmp_path, load), server.url, tmp_path / "run")
        assert result.outcomes == {"planned": 60, "ok": 54, "stream_error": 6}
        assert result.rundir.manifest["workers"][0]["pauses"] == 0

    def test_a_server_that_comes_back_is_used_again_at_full_speed(self, tmp_path: Path) -> None:
        def answer(number: int) -> Script:
            return json_response(503, {"error": "warming up"}) if number < 8 else tokens(2)

        load = {"closed": {"concurrency": 4}, "requests": 60, "drain": "2s"}
        with OpenAI(answer) as server:
            result = execute(scenario(tmp_path, load), server.url, tmp_path / "run")
        assert result.outcomes == {"planned": 60, "rejected": 8, "ok": 52}
        assert result.rundir.manifest["workers"][0]["pauses"] == 8
        assert adds_up(result)

    def test_failures_of_every_kind_in_one_run_add_up(self, tmp_path: Path) -> None:
        broken = [
            json_response(500, {"error": "boom"}),
            sse_response([sse(EVENTS.text("a")), sse({"error": {"message": "out of memory"}})]),
            sse_response([sse(EVENTS.text("a"))], framing="length"),
            json_response(404, {"error": "no such path"}),
            sse_response([]),
        ]
        load = {"constant": "200/s", "requests": 60, "drain": "2s"}
        with OpenAI(lambda n: broken[n % 6] if n % 6 < 5 else tokens(3)) as server:
            result = execute(scenario(tmp_path, load), server.url, tmp_path / "run")
        counts = result.outcomes
        assert counts == {"planned": 60, "ok": 10, "http_error": 20, "stream_error": 10, "truncated": 10, "empty": 10}
        assert adds_up(result)


def closing_after_models(server: OpenAI) -> threading.Thread:
    """Close the listener once the probes before the load are through, so that the load meets a refusing port."""

    def watch() -> None:
        until(lambda: len(server.requests) >= 6, 10)  # models, version, tokenize, and three probes of the prompts
        server._listener.shutdown(2)
        server._listener.close()
        with server._lock:
            for sock in server._open:
                with suppress(OSError):  # it was just closed
                    sock.shutdown(2)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_frozen_server_shows_in_every_request_that_was_due_meanwhile(tmp_path: Path) -> None:
    freeze_s = 1.5
    load = {"constant": "40/s", "duration": "3s", "drain": "5s"}
    with GroundTruth(step_us=2000, ttft_us=5000) as server:
        frozen: list[int] = []

        class Freezer(Observer):
            def load(self, *args: Any) -> None:
                threading.Timer(0.8, self.freeze).start()

            def freeze(self) -> None:
                os.kill(server.pid, signal.SIGSTOP)
                frozen.append(time.time_ns())
                time.sleep(freeze_s)
                frozen.append(time.time_ns())
                os.kill(server.pid, signal.SIGCONT)

        rundir = run(scenario(tmp_path, load), RunOptions(endpoint=server.url, out=tmp_path / "run"), Freezer())
    result = Result.of(rundir)
    assert result.outcomes["ok"] == result.outcomes["planned"]
    meanwhile = [row for row in result.rows if frozen[0] < row["scheduled_ns"] < frozen[1]]
    assert len(meanwhile) == pytest.approx(freeze_s * 40, abs=2)  # all were sent as planned
    assert all(row["first_token_ns"] >= frozen[1] for row in meanwhile)
    lateness = [row["dispatched_ns"] - row["scheduled_ns"] for row in meanwhile]
    assert float(np.median(lateness)) < 25 * MILLISECOND  # the gap between two
    waits = [(row["first_token_ns"] - row["scheduled_ns"]) / MILLISECOND for row in meanwhile]
    assert max(waits) > 0.95 * freeze_s * 1000
    assert result.summary["metrics"]["ttft"]["max"] >= max(waits)
    assert result.summary["metrics"]["ttft"]["p95"] > 1000


class TestDrain:
    def endless(self, number: int) -> Script:
        return sse_response([sse(EVENTS.text(" tok")), Wait(0.1), sse(EVENTS.text(" tok")), Hang()])

    @pytest.mark.parametrize(
        "load",
        [
            {"constant": "20/s", "requests": 10},
            {"constant": "20/s", "duration": "500ms"},
            {"closed": {"concurrency": 3}, "duration": "500ms"},
        ],
        ids=["count", "open", "closed"],
    )
    def test_the_run_ends_with_the_drain_and_keeps_what_came(self, load: dict[str, Any], tmp_path: Path) -> None:
        with OpenAI(self.endless) as server:
            result = execute(scenario(tmp_path, {**load, "drain": "700ms"}), server.url, tmp_path / "run")
        phases = result.rundir.manifest["phases"]
        rows = result.rows
        assert {row["outcome"] for row in rows} == {"in_flight"}
        assert all(row["first_token_ns"] and row["output_tokens"] == 2 for row in rows[:3])  # later ones had no time
        assert sum(row["chunks"] for row in rows) == result.chunks.num_rows
        assert {row["error"] for row in rows} == {"still in flight at the end of the drain"}
        drained = phases["end_ns"] - (phases["measured_end_ns"] or phases["load_end_ns"])
        assert 650 * MILLISECOND < drained < 5 * SECOND
        assert result.rundir.manifest["status"] == "complete"
        assert result.verdict == "INVALID"
        assert adds_up(result)


class Watch(Observer):
    """Calls `act(crew)` in a thread, so many seconds after the load began."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._timer = threading.Timer(seconds, act)

    def load(self, *args: Any) -> None:
        self._timer.start()


class TestWorkerDeath:
    def die(self, folder: Path, url: str, load: dict[str, Any], number: int = signal.SIGKILL) -> Result:
        crew = Crew(2)
        act = Watch(0.7, lambda: os.kill(crew.pids[1], number))
        options = RunOptions(endpoint=url, out=folder / "run", workers=2)
        return Result.of(run(scenario(folder, load), options, act, crew))

    def checked(self, result: Result) -> list[dict[str, Any]]:
        """What holds in any case; returns the rows of the dead worker."""
        workers = result.rundir.manifest["workers"]
        assert [worker["exit"] for worker in workers] == ["clean", "died"]
        assert any("worker 1 died" in warning for warning in result.rundir.manifest["warnings"])
        assert result.verdict != "VALID"
        assert result.summary["verdict"]["exit_code"] in (0, 3)
        assert result.code("client.worker_died")["level"] != "ok"
        assert result.outcomes.get("unrecorded", 0) == 0
        assert adds_up(result)
        return [row for row in result.rows if row["worker"] == 1]

    def test_an_open_loop_by_count_drops_the_rest_of_its_shard(self, truth: GroundTruth, tmp_path: Path) -> None:
        result = self.die(tmp_path, truth.url, {"constant": "60/s", "requests": 120, "drain": "3s"})
        lost = self.checked(result)
        assert result.outcomes["planned"] == len(result.rows) == 120
        assert all(row["outcome"] == "ok" for row in result.rows if row["worker"] == 0)
        assert 20 < sum(row["outcome"] == "dropped" for row in lost) < 55
        assert sum(row["outcome"] == "ok" for row in lost) >= 5
        dropped = [row for row in lost if row["outcome"] == "dropped"]
        assert all(row["dispatched_ns"] is None and "died" in row["error"] for row in dropped)

    def test_an_open_loop_by_time_drops_what_was_due_while_the_load_lasted(
        self, truth: GroundTruth, tmp_path: Path
    ) -> None:
        result = self.die(tmp_path, truth.url, {"constant": "60/s", "duration": "1500ms", "drain": "3s"})
        lost = self.checked(result)
        end = result.rundir.manifest["phases"]["load_end_ns"]
        assert all(row["scheduled_ns"] < end for row in lost if row["outcome"] == "dropped")
        assert any(row["outcome"] == "dropped" for row in lost)
        assert end - result.rundir.manifest["phases"]["measured_end_ns"] < 2 * SECOND  # nobody waits for its cohort

    def test_a_closed_loop_by_time_owes_only_what_was_sent(self, truth: GroundTruth, tmp_path: Path) -> None:
        result = self.die(tmp_path, truth.url, {"closed": {"concurrency": 6}, "duration": "1500ms", "drain": "3s"})
        lost = self.checked(result)
        assert {row["outcome"] for row in lost} == {"ok", "in_flight"}
        assert sum(row["outcome"] == "ok" for row in result.rows if row["worker"] == 0) > 30

    def test_one_that_was_ended_by_sigterm_is_no_better(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"constant": "60/s", "requests": 120, "drain": "3s"}
        result = self.die(tmp_path, truth.url, load, signal.SIGTERM)
        lost = self.checked(result)
        assert any(row["outcome"] == "dropped" for row in lost)
        assert "ended by SIGTERM" in " ".join(result.rundir.manifest["warnings"])

    def test_all_of_them(self, truth: GroundTruth, tmp_path: Path) -> None:
        crew = Crew(1)
        options = RunOptions(endpoint=truth.url, out=tmp_path / "run", workers=1)
        load = {"constant": "60/s", "requests": 90, "drain": "3s"}
        watch = Watch(0.7, lambda: os.kill(crew.pids[0], signal.SIGKILL))
        result = Result.of(run(scenario(tmp_path, load), options, watch, crew))
        assert result.outcomes["planned"] == 90
        assert result.outcomes["dropped"] > 20
        assert result.verdict == "INVALID"
        assert adds_up(result)

    def test_one_that_died_before_it_had_a_job(self, truth: GroundTruth, tmp_path: Path) -> None:
        crew = Crew(2)
        os.kill(crew.pids[1], signal.SIGKILL)
        options = RunOptions(endpoint=truth.url, out=tmp_path / "run", workers=2)
        with pytest.raises(WorkerError, match="worker 1 ended at its start"):
            run(scenario(tmp_path, {"constant": "60/s", "requests": 9}), options, None, crew)
        assert not (tmp_path / "run").exists()


class TestParentDeath:
    def test_kill_9_leaves_a_directory_that_can_be_read_and_no_processes(
        self, truth: GroundTruth, tmp_path: Path
    ) -> None:
        path = write_scenario(tmp_path, {"constant": "60/s", "duration": "30s", "drain": "5s"})
        out = tmp_path / "run"
        with command(tmp_path / "cli", "run", path, "-e", truth.url, "-o", out, "-w", "2", "-q") as ran:
            until(lambda: list((out / "journal").glob("*.requests.arrows")), 20, "the workers are ready")
            time.sleep(2.5)
            killed = time.time_ns()
            ran.signal(signal.SIGKILL)
            until(lambda: not ran.processes(), 5, "the workers end by themselves")
        assert "Traceback" not in ran.stderr
        rundir = RunDir.open(out)
        assert rundir.incomplete
        rows = rundir.requests().to_pylist()
        start = rows[0]["scheduled_ns"]
        plan = Plan.read(rundir.plan_path)
        due = int((plan.scheduled_ns < killed - SECOND - 200 * MILLISECOND - start).sum())
        assert due > 40
        finished = {row["index"] for row in rows}
        assert finished >= set(range(due))  # each takes 60 ms: due 1.2 s before the kill, it had ended a second before
        reported = cli("report", str(out), "--json")
        assert reported.returncode in (0, 3)
        summary = json.loads(reported.stdout)["summary"]
        assert summary["incomplete"] is True
        assert summary["verdict"]["status"] != "VALID"
        assert summary["outcomes"]["ok"] >= due
        assert "incomplete" in cli("report", str(out)).stdout.lower()

    def test_kill_9_while_the_workers_get_ready(self, tmp_path: Path) -> None:
        path = write_scenario(tmp_path, {"constant": "60/s", "requests": 9000, "drain": "5s"})
        with (
            OpenAI(lambda n: tokens(2)) as server,
            command(tmp_path / "cli", "run", path, "-e", server.url, "-o", tmp_path / "run", "-w", "2") as ran,
        ):
            until(lambda: len(ran.workers()) == 2)
            until(lambda: (tmp_path / "run" / "journal" / "worker-1.job.json").exists())
            counters = json.loads((tmp_path / "run" / "journal" / "worker-1.job.json").read_text())["counters"]
            ran.signal(signal.SIGKILL)
            until(lambda: not ran.processes(), 8, "the workers end by themselves")
        assert not Path(counters).exists()


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "servebench", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


class TestNothingLeft:
    """A run that came to nothing leaves no half directory, and what was there before stays."""

    def fail(self, folder: Path, **options: Any) -> None:
        loaded = scenario(folder, {"constant": "9/s", "requests": 2})
        with refusing_port() as port, pytest.raises(EngineError, match="connection refused"):
            run(loaded, RunOptions(f"http://127.0.0.1:{port}", **options))

    def test_out(self, tmp_path: Path) -> None:
        self.fail(tmp_path, out=tmp_path / "a" / "b" / "run")
        assert not (tmp_path / "a").exists()

    def test_results(self, tmp_path: Path) -> None:
        self.fail(tmp_path, results=tmp_path / "results")
        assert not (tmp_path / "results").exists()

    def test_results_with_other_runs_in_them(self, tmp_path: Path) -> None:
        (tmp_path / "results" / "other").mkdir(parents=True)
        self.fail(tmp_path, results=tmp_path / "results")
        assert [path.name for path in (tmp_path / "results").iterdir()] == ["other"]

    def test_a_folder_that_was_there(self, tmp_path: Path) -> None:
        out = tmp_path / "run"
        mine = ["journal/diary.txt", "notes.txt", "raw/data.bin", "server.log", "worker-0.log"]
        for name in mine:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text("mine")
        self.fail(tmp_path, out=out)
        left = [str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()]
        assert sorted(left) == mine

    def test_a_run_that_was_there(self, tmp_path: Path) -> None:
        out = tmp_path / "run"
        RunDir.create(out)
        before = sorted(path.name for path in out.iterdir())
        with pytest.raises(UsageError, match="already holds a run"):
            self.fail(tmp_path, out=out)
        assert sorted(path.name for path in out.iterdir()) == before

    def test_a_plan_that_cannot_be_made(self, tmp_path: Path) -> None:
        load = {"poisson": "0.001/s", "duration": "1s"}
        with pytest.raises(UsageError, match="no request is due"):
            run(scenario(tmp_path, load), RunOptions("http://127.0.0.1:9", out=tmp_path / "run"))
        assert not (tmp_path / "run").exists()

    def test_no_shared_memory_stays_behind(self, truth: GroundTruth, tmp_path: Path) -> None:
        shared = Path("/dev/shm")
        before = set(shared.glob("servebench-*"))
        with pytest.raises(UsageError, match="has no model"):
            execute(
                scenario(tmp_path, {"constant": "9/s", "requests": 2}), truth.url, tmp_path / "run", model="another"
            )
        execute(scenario(tmp_path, {"constant": "9/s", "requests": 2}), truth.url, tmp_path / "run")
        assert not set(shared.glob("servebench-*")) - before

    def test_an_error_under_load_keeps_what_was_recorded(self, truth: GroundTruth, tmp_path: Path) -> None:
        class Fails(Observer):
            def done(self) -> None:
                raise RuntimeError("a bug in the view")

        load = {"constant": "50/s", "requests": 20}
        with pytest.raises(RuntimeError, match="a bug in the view"):
            run(scenario(tmp_path, load), RunOptions(truth.url, out=tmp_path / "run"), Fails())
        rundir = RunDir.open(tmp_path / "run")
        assert rundir.manifest["status"] == "failed"
        assert rundir.incomplete
        assert rundir.requests().num_rows == 20
        assert cli("report", str(tmp_path / "run")).returncode in (0, 3)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "servebench-test", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class TestDisk:
    def test_one_that_fills_up_in_mid_run_is_one_clear_message_and_what_was_recorded_stays(
        self, truth: GroundTruth, tmp_path: Path
    ) -> None:
        load = {"constant": "100/s", "duration": "20s", "drain": "5s"}
        with small_disk(tmp_path / "disk", "300k") as disk:
            out = disk / "run"
            started = time.monotonic()
            with pytest.raises(UsageError, match=r"run cannot go on: .*No space left on device"):
                run(scenario(tmp_path, load), RunOptions(truth.url, out=out, keep_raw=True))
            assert time.monotonic() - started < 15  # it ended when the disk was full
            rundir = RunDir.open(out)
            assert rundir.incomplete
            assert rundir.requests().num_rows > 20

    def test_one_that_is_full_from_the_start(self, truth: GroundTruth, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", "16k") as disk:
            (disk / "fill").write_bytes(bytes(4096 * 3))
            with pytest.raises(UsageError, match="No space left on device"):
                run(scenario(tmp_path, {"constant": "9/s", "requests": 2}), RunOptions(truth.url, out=disk / "run"))
            assert [path.name for path in disk.iterdir()] == ["fill"]

    def test_a_place_where_nothing_can_be_made(self, truth: GroundTruth, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for out in (tmp_path / "file" / "run", Path("/proc/run")):
            with pytest.raises(UsageError, match=f"cannot make the run directory {out}"):
                run(scenario(tmp_path, {"constant": "9/s", "requests": 2}), RunOptions(truth.url, out=out))
