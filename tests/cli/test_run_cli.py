"""`servebench run` as its users meet it: a process with flags, streams, signals and an exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import servebench
from runs import EVENTS, MILLISECOND, Command, OpenAI, command, tokens, until, write_scenario
from servebench.record.rundir import RunDir
from servebench.testing import (
    GroundTruth,
    Hang,
    RequestSeen,
    Script,
    ScriptedServer,
    json_response,
    refusing_port,
    response,
    sse,
    sse_response,
)

KEY = "sk-canary-0123456789abcdef"


@pytest.fixture(scope="module")
def truth() -> Iterator[GroundTruth]:
    with GroundTruth(step_us=5000, ttft_us=10_000) as server:
        yield server


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results" / "run"


Started = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path, out: Path) -> Iterator[Started]:
    """Start `servebench run` of a scenario with this load; nothing of it is left at the end of the test."""
    begun: list[Command] = []

    def start(load: dict[str, Any], *arguments: str, scenario: dict[str, Any] | None = None, **env: str) -> Command:
        path = write_scenario(tmp_path, load, **(scenario or {}))
        started = Command(tmp_path / "streams", "run", path, "--out", out, *arguments, env=env)
        begun.append(started)
        return started

    yield start
    for one in begun:
        one.end()


def ended(ran: Command, code: int, timeout: float = 40.0) -> None:
    """It ends with this code, without a traceback, and none of its processes outlives it."""
    got = ran.wait(timeout)
    if got == -signal.SIGINT:
        got = 130  # so do shells: Python itself ends by the signal when it hit the middle of certain imports
    assert "Traceback" not in ran.stderr, ran.stderr
    assert got == code, f"exit {got}\n{ran.stderr}\n{ran.stdout[-2000:]}"
    until(lambda: not ran.processes(), 3, f"no process is left: {ran.processes()}")


def recording(out: Path) -> bool:
    """Whether requests have been recorded already."""
    try:
        return RunDir.open(out).requests().num_rows > 0
    except Exception:  # noqa: BLE001 - not there yet, or just being written
        return False


LONG = {"closed": {"concurrency": 4}, "duration": "60s", "drain": "20s"}


class TestGood:
    def test_json_is_one_document_and_nothing_else_on_stdout(
        self, start: Started, truth: GroundTruth, out: Path
    ) -> None:
        ran = start({"constant": "50/s", "requests": 20}, "-e", truth.url, "--json")
        ended(ran, 0)
        told = json.loads(ran.stdout)
        assert told["path"] == str(out)
        assert told["summary"] == json.loads((out / "summary.json").read_text())
        assert told["summary"]["outcomes"]["ok"] == 20

    def test_the_table_names_verdict_figures_and_files(self, start: Started, truth: GroundTruth, out: Path) -> None:
        ran = start({"constant": "50/s", "requests": 20}, "-e", truth.url)
        ended(ran, 0)
        verdict = json.loads((out / "summary.json").read_text())["verdict"]["status"]
        for word in (verdict, "TTFT", "ITL", out.name):
            assert word in ran.stdout
        assert "asking the server" in ran.stderr

    def test_quiet_says_nothing_but_the_result(self, start: Started, truth: GroundTruth) -> None:
        ran = start({"constant": "50/s", "requests": 20}, "-e", truth.url, "--quiet")
        ended(ran, 0)
        assert ran.stderr == ""
        assert "TTFT" in ran.stdout

    def test_a_missed_objective_is_exit_4(self, start: Started, truth: GroundTruth) -> None:
        slow = {"slo": {"ttft": "p50 < 1ms"}}
        ran = start({"constant": "50/s", "requests": 20}, "-e", truth.url, "-q", scenario=slow)
        ended(ran, 4)

    def test_all_failed_is_exit_3_with_a_report(self, start: Started, out: Path) -> None:
        with OpenAI(lambda n: json_response(500, {"error": "boom"})) as server:
            ran = start({"constant": "50/s", "requests": 20}, "-e", server.url)
            ended(ran, 3)
        assert "INVALID" in ran.stdout
        assert "boom" in ran.stdout
        assert json.loads((out / "summary.json").read_text())["outcomes"]["http_error"] == 20

    def test_overrides_and_workers(self, start: Started, truth: GroundTruth, out: Path) -> None:
        ran = start({"constant": "50/s", "requests": 20}, "-e", truth.url, "-s", "load.requests=6", "-w", "2", "-q")
        ended(ran, 0)
        rundir = RunDir.open(out)
        assert rundir.requests().num_rows == 6
        assert len(rundir.manifest["workers"]) == 2
        assert rundir.manifest["command"][:2] == ["servebench", "run"]

    def test_the_simulated_engine_says_so_wherever_figures_are(self, tmp_path: Path) -> None:
        folder, short = tmp_path / "streams", ("-s", "load.duration=1s", "-s", "load.warmup=0s")
        with command(folder, "run", "smoke", "-e", "sim", "-o", tmp_path / "run", *short) as ran:
            ended(ran, 0)
        assert "SIMULATED" in ran.stdout
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["simulated"] is True


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_first_one_lets_what_is_in_flight_end(
        self, number: int, start: Started, truth: GroundTruth, out: Path
    ) -> None:
        ran = start(LONG, "-e", truth.url, "--json")
        until(lambda: recording(out), 20)
        hit = time.time_ns()
        ran.signal(number)
        ended(ran, 130, 10)
        summary = json.loads(ran.stdout)["summary"]
        rundir = RunDir.open(out)
        rows = rundir.requests().to_pylist()
        assert rundir.manifest["status"] == "interrupted"
        assert rundir.incomplete
        assert summary["incomplete"] is True
        assert {row["outcome"] for row in rows} == {"ok"}
        assert any(row["end_ns"] > hit for row in rows)
        assert max(row["dispatched_ns"] for row in rows) < hit + 200 * MILLISECOND
        assert summary["verdict"]["status"] != "VALID"
        assert all(identity["ok"] for identity in summary["identities"].values())

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_second_one_gives_up_what_is_in_flight(self, number: int, start: Started, out: Path) -> None:
        def answer(count: int) -> Script:
            return tokens(3) if count < 4 else sse_response([sse(EVENTS.text(" tok")), Hang()])

        with OpenAI(answer) as server:
            ran = start(LONG, "-e", server.url, "-q")
            until(lambda: len(server.load) == 8, 20)
            ran.signal(number)
            time.sleep(0.7)
            assert ran.process.poll() is None  # it waits for what is in flight
            began = time.monotonic()
            ran.signal(number)
            ended(ran, 130, 10)
        assert time.monotonic() - began < 8  # and not the 20 seconds of the drain
        rows = RunDir.open(out).requests().to_pylist()
        assert sorted(row["outcome"] for row in rows) == ["in_flight"] * 4 + ["ok"] * 4
        assert all(row["first_token_ns"] is not None for row in rows)
        assert "in flight" in ran.stdout

    def test_an_interrupted_run_can_be_reported_again(
        self, start: Started, truth: GroundTruth, out: Path, tmp_path: Path
    ) -> None:
        ran = start({"constant": "40/s", "duration": "60s", "drain": "20s"}, "-e", truth.url, "--json")
        until(lambda: recording(out), 20)
        ran.signal()
        ended(ran, 130, 10)
        first = (out / "summary.json").read_bytes()
        with command(tmp_path / "report", "report", out, "--json") as again:
            again.wait()
        assert json.loads(again.stdout)["summary"] == json.loads(ran.stdout)["summary"]
        assert (out / "summary.json").read_bytes() == first

    def test_ctrl_c_in_a_terminal_leaves_the_simulated_engine_up_until_the_drain_is_over(self, tmp_path: Path) -> None:
        """There the signal goes to the whole foreground process group."""
        out, long = tmp_path / "run", ("-s", "load.duration=60s", "-s", "workload.output_tokens=150")
        with command(tmp_path / "streams", "run", "smoke", "-e", "sim", "-o", out, "-q", *long) as ran:
            until(lambda: recording(out), 20)
            os.killpg(ran.process.pid, signal.SIGINT)
            ended(ran, 130, 20)
        assert {row["outcome"] for row in RunDir.open(out).requests().to_pylist()} == {"ok"}

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_while_the_server_is_asked(self, number: int, start: Started, out: Path) -> None:
        with ScriptedServer([Hang()]) as server:
            ran = start(LONG, "-e", server.url)
            until(lambda: server.requests, 20)
            began = time.monotonic()
            ran.signal(number)
            ended(ran, 130, 10)
        assert time.monotonic() - began < 6  # and not the ten until the server would be given up
        assert ran.stderr.rstrip().endswith("servebench: note: interrupted")
        assert ran.stdout == ""
        assert not out.parent.exists()

    def test_while_the_plan_is_made(self, start: Started, out: Path) -> None:
        ran = start({"poisson": "20000/s", "duration": "200s"}, "-e", "http://127.0.0.1:9")
        until(out.exists, 20)
        ran.signal()
        ended(ran, 130, 20)
        assert ran.stderr.rstrip().endswith("servebench: note: interrupted")
        assert not out.exists()


class TestKey:
    def test_it_is_sent_and_nowhere_to_be_found_even_if_the_server_repeats_it(
        self, start: Started, tmp_path: Path
    ) -> None:
        """The server echoes the header: whole, after so much text that a cut goes through it, in a stream, as JSON."""
        seen: list[str] = []

        def answer(request: RequestSeen) -> Script:
            if "authorization" in request.headers:
                seen.append(request.headers["authorization"])
            if request.path == "/v1/models":
                return json_response(200, {"data": [{"id": "scripted"}]})
            if request.path != EVENTS.path or not request.json().get("stream"):
                return json_response(404, {"error": request.headers.get("authorization", "")})
            return self.failures(request.headers["authorization"])[len(seen) % 9]

        with ScriptedServer(answer) as server:
            ran = start(
                {"constant": "40/s", "requests": 40, "drain": "5s"},
                *("-e", server.url, "--api-key-env", "CANARY_KEY", "--keep-raw"),
                CANARY_KEY=KEY,
            )
            shown: set[str] = set()
            while ran.process.poll() is None:
                shown.update(ran.processes().values())
                time.sleep(0.02)
            ended(ran, 3)
        assert set(seen) == {f"Bearer {KEY}"}
        assert len(seen) > 40
        assert len(shown) >= 2
        text = "\n".join([ran.stdout, ran.stderr, *shown])
        for path in tmp_path.rglob("*"):
            if path.is_file():
                text += path.read_bytes().decode("latin-1")
        for table in ("requests", "chunks", "telemetry"):  # Parquet is compressed
            text += str(getattr(RunDir.open(tmp_path / "results" / "run"), table)().to_pydict())
        for size in range(len(KEY), 9, -1):
            assert KEY[:size] not in text, f"{size} characters of the key"
        assert "[key]" in text

    def failures(self, said: str) -> list[Script]:
        text = sse(EVENTS.text("a"))
        return [
            json_response(401, {"error": {"message": f"bad key: {said}"}}),
            response(500, f"<html>{said}</html>".encode(), {"content-type": "text/html"}),
            *(json_response(500, {"error": {"message": "x" * pad + said}}) for pad in (270, 283, 288)),
            *(response(500, b"y" * pad + said.encode()) for pad in (180, 190)),
            sse_response([text, sse({"error": {"message": f"{said} was refused"}})]),
            sse_response([text, sse(EVENTS.finish(said))]),
        ]


class TestErrors:
    """Whatever is wrong: one line, exit 2, no traceback, no process and no half directory left behind."""

    def check(self, ran: Command, out: Path, *words: str) -> None:
        ended(ran, 2)
        lines = ran.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("servebench: error: ")]
        assert errors == lines[-1:], ran.stderr
        assert all(word in errors[0] for word in words), errors
        assert ran.stdout == ""
        assert not out.exists()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--endpiont", "x"), ['"--endpiont"', "--endpoint"]),
            (("-e", "localhost:8000"), ["no scheme", "http://localhost:8000"]),
            (("-w", "0"), ["whole number"]),
            (("-w", "3"), ["3 workers", "load.closed.concurrency", "--workers 2"]),
            (("-s", "load.closed.concurency=3"), ["concurency", "concurrency"]),
            (("-s", "load.requests"), ["load.requests"]),
            (("--ca-file", "/no/such.pem"), ["/no/such.pem"]),
            (("--api-key-env", "NO_SUCH_KEY"), ["NO_SUCH_KEY", "not set"]),
            (("--salt", "pepper"), ["pepper"]),
            (("--nvml-hz", "0"), ["--nvml-hz", "0.1"]),
            (("--scrape-hz", "1000"), ["--scrape-hz", "20"]),
            (("--telemetry", "gpu-host:9400"), ["--telemetry", "no scheme", "http://gpu-host:9400"]),
            (("--telemetry-token-env", "NO_SUCH_TOKEN"), ["--telemetry-token-env", "NO_SUCH_TOKEN", "not set"]),
            (("--tokenizer", "/no/such/tokenizer"), ["/no/such/tokenizer"]),
        ],
    )
    def test_flags(
        self, arguments: tuple[str, ...], words: list[str], start: Started, truth: GroundTruth, out: Path
    ) -> None:
        endpoint = () if "-e" in arguments else ("-e", truth.url)
        ran = start({"closed": {"concurrency": 2}, "requests": 9}, *endpoint, *arguments)
        self.check(ran, out, *words)

    def test_a_port_that_refuses(self, start: Started, out: Path) -> None:
        with refusing_port() as port:
            ran = start(LONG, "-e", f"http://127.0.0.1:{port}", "-w", "2")
            self.check(ran, out, f"127.0.0.1:{port}", "connection refused")

    def test_a_host_that_is_not_known(self, start: Started, out: Path) -> None:
        self.check(start(LONG, "-e", "http://no-such-host.invalid:80"), out, "no-such-host.invalid", "not known")

    def test_a_model_that_the_server_has_not(self, start: Started, truth: GroundTruth, out: Path) -> None:
        self.check(start(LONG, "-e", truth.url, "-m", "ground-trut"), out, 'no model "ground-trut"', "ground-truth")

    def test_something_else_than_a_model_server(self, start: Started, out: Path) -> None:
        page = response(200, b"<html>hello</html>", {"content-type": "text/html"})
        with ScriptedServer(page) as server:
            self.check(start(LONG, "-e", server.url), out, "no OpenAI-compatible server", "text/html")

    def test_a_key_that_is_refused(self, start: Started, out: Path) -> None:
        with ScriptedServer(json_response(401, {"error": "who?"})) as server:
            self.check(start(LONG, "-e", server.url), out, "401", "--api-key-env")

    def test_a_directory_that_holds_a_run(self, start: Started, truth: GroundTruth, out: Path) -> None:
        ended(start({"constant": "50/s", "requests": 2}, "-e", truth.url, "-q"), 0)
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        ran = start({"constant": "50/s", "requests": 2}, "-e", truth.url)
        ended(ran, 2)
        assert "already holds a run; choose another --out" in ran.stderr
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before

    def test_a_scenario_that_is_none(self, tmp_path: Path, out: Path) -> None:
        for name, words in (("chta", ["chta", "chat"]), (str(tmp_path), [str(tmp_path)])):
            with command(tmp_path / "streams", "run", name, "-e", "sim", "-o", out) as ran:
                self.check(ran, out, *words)

    def test_a_key_of_the_scenario_that_is_none(self, start: Started, truth: GroundTruth, out: Path) -> None:
        ran = start({"constant": "5/s", "request": 2}, "-e", truth.url)
        self.check(ran, out, "scenario.yaml:", "request", "requests")

    def test_no_vllm(self, start: Started, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        elsewhere = tmp_path / "checkout" / "src"  # this one may have an environment with vLLM, which would be found
        shutil.copytree(Path(servebench.__file__).parent, elsewhere / "servebench")
        monkeypatch.chdir(tmp_path)
        ran = start(LONG, "-e", "vllm", PATH="/nowhere", SERVEBENCH_VLLM_PYTHON="", PYTHONPATH=str(elsewhere))
        ended(ran, 2)
        assert ran.stderr.strip().splitlines()[-1].startswith("servebench: error: ")
        assert not out.exists()
