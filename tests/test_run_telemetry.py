"""Runs with telemetry: what is joined is right where the truth is known, and nothing that goes wrong stops a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import OpenAI, Result, execute, scenario, tokens
from servebench.engine.locate import find_vllm_python
from servebench.engine.sim.launch import start_sim
from servebench.errors import EngineError
from servebench.report.console import print_report
from servebench.run import Observer, RunOptions, run
from servebench.testing import Hang, Script, json_response, response
from servebench.testing.nvml_stub import StubGpu, StubMachine, StubProcess, install

COST = {"base": "6ms", "per_prefill_token": "20us", "per_sequence": "100us", "max-num-batched-tokens": 1024}
MIX = {
    "classes": [
        {"name": "chat", "weight": 9, "input_tokens": 60, "output_tokens": {"uniform": {"min": 30, "max": 60}}},
        {"name": "document", "weight": 1, "input_tokens": 3000, "output_tokens": 20},
    ]
}
LOAD = {"poisson": "12/s", "duration": "8s", "warmup": "1s", "drain": "10s"}
SHORT = {"constant": "20/s", "duration": "2s", "drain": "5s"}


def shown(result: Result, capsys: pytest.CaptureFixture[str]) -> str:
    print_report(result.summary)
    return " ".join(capsys.readouterr().out.split())


def all_ok(result: Result) -> bool:
    return set(result.outcomes) == {"planned", "ok"}


def source(result: Result, name: str) -> dict[str, Any]:
    found: dict[str, Any] = result.rundir.manifest["telemetry"]["sources"][name]
    return found


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[dict[str, int]]]:
    """Chats and documents on the simulated engine; and the engine's own log of its steps."""
    folder = tmp_path_factory.mktemp("mixed")
    told = scenario(folder, LOAD, workload=MIX, engine={"sim": COST})
    with start_sim(told.engine.sim, "simulated", step_log=folder / "steps") as sim:
        result = execute(told, sim.url, folder / "run", workers=1)
    return result, [json.loads(line) for line in (folder / "steps").read_text().splitlines()]


class TestSimulated:
    def test_the_server_counted_what_the_client_did(self, mixed: tuple[Result, Any]) -> None:
        found = mixed[0].summary["server_side"]
        assert {row["what"]: row["difference"] for row in found["agreement"]} == {
            "requests": 0,
            "output_tokens": 0,
            "input_tokens": 0,
        }
        service = found["service"]
        late = [r["value"] for r in mixed[0].rundir.telemetry().to_pylist() if r["name"] == "sim_late_max_s"]
        own = 1e3 * max(late)  # on a busy machine the engine's steps end later than they say
        assert abs(service["difference_ms"]) <= 0.02 * service["client_ms"] + 1 + own
        assert found["ttft_split"]["rest_ms"] == pytest.approx(0, abs=0.01)

    def test_the_interference_is_that_of_the_engines_own_steps(self, mixed: tuple[Result, Any]) -> None:
        result, steps = mixed
        ratio, phases = result.summary["interference"]["ratio"], result.summary["phases"]
        start = phases["start_ns"] + round(phases["warmup_end_s"] * 1e9)
        end = phases["start_ns"] + round(phases["measured_end_s"] * 1e9)
        took, sequences, prefill = (
            np.array([step[key] for step in steps if start <= step["end_ns"] < end])
            for key in ("end_ns", "decode_sequences", "prefill_tokens")
        )
        took = took - np.array([step["start_ns"] for step in steps if start <= step["end_ns"] < end])
        with_one, without = (
            float(np.average(took[rows], weights=sequences[rows])) for rows in (prefill > 0, prefill == 0)
        )
        assert ratio["low"] > 1
        assert 0.9 * ratio["low"] <= with_one / without <= 1.1 * ratio["high"]

    def test_phases_add_up_and_every_level_is_joined(self, mixed: tuple[Result, Any]) -> None:
        found = mixed[0].summary["phases_joined"]
        assert sum(found["shares"].values()) == pytest.approx(1, abs=4 * 0.5e-6)  # each rounded to six digits
        assert {t["name"] for t in found["tables"]} >= {"running", "waiting", "kv_usage", "cpu_busy_share"}
        for table in found["tables"]:
            assert sum(level["n"] for level in table["given"].values()) == table["n"]
        running = next(t for t in found["tables"] if t["name"] == "running")
        assert 0 < running["n"] <= 17  # 2 Hz for 8 s, if the machine has the time

    def test_its_codes_are_in_the_verdict(self, mixed: tuple[Result, Any]) -> None:
        for name in ("restarted", "preemptions", "prefix_hits", "counts", "config_changed"):
            code = mixed[0].code(f"server.{name}")
            assert (code["level"], code["value"]) == ("ok", 0), code
        assert not [c for c in mixed[0].summary["verdict"]["codes"] if c["code"].startswith("gpu.")]

    def test_the_tables_are_shown(self, mixed: tuple[Result, Any], capsys: pytest.CaptureFixture[str]) -> None:
        text = shown(mixed[0], capsys)
        for words in ("Phases samples", "running, requests", "ITL of the cohort", "TTFT from sent", "client = server"):
            assert words in text

    def test_a_source_that_is_not_there_is_told_with_its_reason(self, mixed: tuple[Result, Any]) -> None:
        found = source(mixed[0], "nvml")
        assert found["state"] == "absent"
        assert found["reason"]
        assert found["samples"] == 0
        assert "nvml" not in mixed[0].rundir.telemetry()["source"].to_pylist()

    def test_nothing_of_the_sampler_is_left(self, mixed: tuple[Result, Any]) -> None:
        assert not mixed[0].rundir.journal_dir.exists()
        assert mixed[0].rundir.manifest["warnings"] == []

    def test_the_baseline_is_before_the_first_request_and_the_last_sample_after_the_last(
        self, mixed: tuple[Result, Any]
    ) -> None:
        rows = [r for r in mixed[0].rundir.telemetry().to_pylist() if r["name"] == "requests_success"]
        times = [row["t_ns"] for row in rows]
        assert min(times) < min(mixed[0].column("sent_ns"))
        assert max(times) > max(mixed[0].column("end_ns"))

    def test_one_that_the_run_starts_has_a_cold_start(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        result = execute(scenario(tmp_path, SHORT, engine={"sim": COST}), "sim", tmp_path / "run", workers=1)
        assert [stage["name"] for stage in result.summary["cold_start"]["stages"]] == ["ready", "load"]
        assert "Cold start ready after" in shown(result, capsys)
        identity = result.rundir.manifest["server_identity"]
        assert (identity["engine"], identity["block_size"], identity["changed"]) == ("sim", 16, [])


def test_telemetry_can_be_switched_off(tmp_path: Path) -> None:
    told = scenario(tmp_path, SHORT, engine={"sim": COST})
    result = execute(told, "sim", tmp_path / "run", workers=1, telemetry=False)
    assert result.rundir.manifest["telemetry"]["sources"] == {}
    assert set(result.rundir.telemetry()["source"].to_pylist()) == {"client"}
    assert result.summary["server_side"]["reason"]
    assert all_ok(result)
    assert not [c for c in result.summary["verdict"]["codes"] if c["code"] == "time.telemetry_gap"]


def test_sampling_moves_neither_the_figures_nor_the_load(tmp_path: Path) -> None:
    """A paired run: the same plan with and without; what a busy machine does to both is not told apart from it."""
    told = scenario(tmp_path, {"closed": {"concurrency": 8}, "duration": "3s", "drain": "5s"}, engine={"sim": COST})
    with start_sim(told.engine.sim, "simulated") as sim:
        off, on = (execute(told, sim.url, tmp_path / name, workers=1, telemetry=name == "on") for name in ("off", "on"))
    p50s = [result.summary["metrics"]["itl"]["p50"] for result in (off, on)]
    assert p50s[1] / p50s[0] == pytest.approx(1, abs=0.1)
    assert on.summary["outcomes"]["ok"] / off.summary["outcomes"]["ok"] == pytest.approx(1, abs=0.25)
    assert 0 < on.rundir.manifest["telemetry"]["cpu_share"] < 0.1


PAGE = """# TYPE vllm:num_requests_running gauge
{running}{{engine="0"}} {level}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0"}} {tokens}
"""


class Metrics(OpenAI):
    """An OpenAI server with a page of metrics; `page` takes the number of the scrape.

    The first is for the server's identity, the second the sampler's baseline; then comes one each half second.
    """

    def __init__(self, page: Callable[[int], Script]) -> None:
        super().__init__(lambda n: tokens(10))
        self._page = page
        self._scrapes = count()

    def _answer(self, seen: Any) -> Script:
        return self._page(next(self._scrapes)) if seen.path == "/metrics" else super()._answer(seen)


def page(running: str = "vllm:num_requests_running", level: float = 1, tokens: float = 0) -> Script:
    text = PAGE.format(running=running, level=level, tokens=tokens)
    return response(200, text.encode(), {"content-type": "text/plain; version=0.0.4"})


HTML = response(200, b"<html>nothing to see</html>", {"content-type": "text/html"})
GOOD = 3  # scrapes before it goes wrong
FAULTS: dict[str, tuple[Callable[[int], Script], str, str]] = {
    # what the page does: its answers, the state of the source, words of the reason or failure
    "hangs": (lambda n: page() if n < GOOD else [Hang()], "sampled", "no whole answer in time"),
    "disappears": (lambda n: page() if n < GOOD else json_response(404, {}), "sampled", "404"),
    "turns into HTML": (lambda n: page() if n < GOOD else HTML, "sampled", "HTML"),
    "hangs from the start": (lambda n: [Hang()], "absent", "no whole answer in time"),
    "is HTML from the start": (lambda n: HTML, "absent", "HTML"),
    "is of nothing known": (lambda n: response(200, b"x 1\n"), "absent", "no series of vLLM"),
}


class TestFaults:
    """Whatever becomes of the page of metrics or of the sampler, the run ends well and says what is missing."""

    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_page(self, fault: str, tmp_path: Path) -> None:
        answer, state, words = FAULTS[fault]
        with Metrics(answer) as server:
            result = execute(scenario(tmp_path, SHORT | {"duration": "3s"}), server.url, tmp_path / "run", workers=1)
        found = source(result, "server")
        assert all_ok(result)
        assert found["state"] == state
        assert words in json.dumps([found["reason"], found["failures"]])
        if state == "sampled":
            assert result.code("time.telemetry_gap")["level"] == "warn"
            assert "server" in result.code("time.telemetry_gap")["text"]
            rows = [r for r in result.rundir.telemetry().to_pylist() if r["name"] in ("running", "up")]
            assert {r["value"] for r in rows if r["name"] == "running"} == {1.0, None}
            assert {r["value"] for r in rows if r["name"] == "up"} == {1.0, 0.0}
        else:
            assert "no server metrics" in result.summary["server_side"]["reason"]

    def test_names_that_change(self, tmp_path: Path) -> None:
        def renamed(n: int) -> Script:
            return page() if n < GOOD else page("vllm:num_requests_active")

        with Metrics(renamed) as server:
            result = execute(scenario(tmp_path, SHORT), server.url, tmp_path / "run", workers=1)
        assert source(result, "server")["lost"] == ["running"]
        assert result.summary["server_side"]["lost"] == ["running"]

    def test_a_counter_that_falls_is_a_restart(self, tmp_path: Path) -> None:
        with Metrics(lambda n: page(tokens=1000 + 100 * n if n < GOOD else 10 * n)) as server:
            result = execute(scenario(tmp_path, SHORT), server.url, tmp_path / "run", workers=1)
        code = result.code("server.restarted")
        assert (code["level"], code["value"]) == ("fail", 1)
        assert result.verdict == "INVALID"

    def test_a_server_that_is_restarted_in_mid_run(self, tmp_path: Path) -> None:
        told = scenario(tmp_path, {"constant": "20/s", "duration": "5s", "drain": "5s"}, engine={"sim": COST})
        first = start_sim(told.engine.sim, "simulated")
        port = int(first.url.rpartition(":")[2])
        second: list[Any] = []

        def restart() -> None:
            first.stop()
            second.append(start_sim(told.engine.sim, "simulated", port=port))

        timer = AtLoad(2.0, restart)
        try:
            result = Result.of(run(told, RunOptions(endpoint=first.url, out=tmp_path / "run", workers=1), timer))
        finally:
            timer.join()
            for sim in (first, *second):
                sim.stop()
        assert result.rundir.manifest["status"] == "complete"
        assert result.summary["outcomes"]["failed"] > 0
        assert result.code("server.restarted")["level"] == "fail"
        assert result.summary["server_side"]["restarts"] == 1
        counts = result.code("server.counts")
        # where the last scrape before the stop happened to see all that the first server had done, the counts are equal
        assert counts["level"] == "ok"
        assert "restarted" in counts["text"] or "counted the same" in counts["text"]

    def test_a_sampler_that_is_killed_costs_a_warning(self, tmp_path: Path) -> None:
        killer = AtLoad(1.0, lambda: [os.kill(pid, signal.SIGKILL) for pid in samplers()])
        told = scenario(tmp_path, SHORT, engine={"sim": COST})
        result = Result.of(run(told, RunOptions(endpoint="sim", out=tmp_path / "run", workers=1), killer))
        killer.join()
        assert all_ok(result)
        assert result.rundir.manifest["status"] == "complete"
        assert [w for w in result.rundir.manifest["warnings"] if w.startswith("telemetry: the sampler ended")]
        assert {s["state"] for s in result.rundir.manifest["telemetry"]["sources"].values()} == {"lost"}
        assert result.code("time.telemetry_gap")["level"] == "warn"
        assert "server" in result.rundir.telemetry()["source"].to_pylist()  # what it had journalled is still there

    def test_a_remote_that_is_not_there(self, tmp_path: Path) -> None:
        told = scenario(tmp_path, SHORT, engine={"sim": COST})
        result = execute(told, "sim", tmp_path / "run", workers=1, telemetry_url="http://127.0.0.1:9")
        assert source(result, "remote")["state"] == "absent"
        assert source(result, "server")["state"] == "sampled"
        assert all_ok(result)


class AtLoad(Observer):
    """Does something so many seconds after the load has begun."""

    def __init__(self, seconds: float, act: Callable[[], object]) -> None:
        self._timer = threading.Timer(seconds, act)

    def load(self, *_: object) -> None:
        self._timer.start()

    def join(self) -> None:
        self._timer.join(10)


def samplers() -> Iterator[int]:
    """Sampler processes that are children of this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"servebench.telemetry.sampler" in (folder / "cmdline").read_bytes():
                yield int(folder.name)
        except OSError:
            continue


class TestGpu:
    """Through the real ctypes path, on a stub of the driver's library."""

    @pytest.fixture
    def ran(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
        monkeypatch.setattr("servebench.run.sampling.process_tree", lambda root: [4242])

        def ran(*gpus: StubGpu) -> Result:
            folder = tmp_path / "library"
            folder.mkdir()
            library = install(StubMachine(gpus), folder)
            told = scenario(tmp_path, {"constant": "20/s", "duration": "3s", "warmup": "1s"}, engine={"sim": COST})
            return execute(told, "sim", tmp_path / "run", workers=1, nvml_library=library)

        return ran

    def test_of_two_gpus_the_one_that_the_server_uses_is_judged(
        self, ran: Callable[..., Result], capsys: pytest.CaptureFixture[str]
    ) -> None:
        busy = {"power_instant": 400_000, "util_gpu": 97, "clock_reasons": 0x4}
        mine = StubGpu(busy, processes=[StubProcess(4242)], uuid="GPU-a")
        other = StubGpu({"clock_reasons": 0x40}, processes=[StubProcess(1)], uuid="GPU-b")
        result = ran(mine, other)
        energy = result.summary["energy"]
        assert {gpu["device"]: gpu["used"] for gpu in energy["gpus"]} == {"gpu-0": True, "gpu-1": False}
        assert energy["valid"], energy["reasons"]
        assert energy["mean_w"] == pytest.approx(400, rel=0.001)
        assert energy["energy_j"] == pytest.approx(400 * energy["window_ms"] / 1e3, rel=0.001)
        for name in ("throttled", "foreign_process", "ecc", "lost", "xid"):
            assert result.code(f"gpu.{name}")["level"] == "ok"
        text = shown(result, capsys)
        assert "GPU 0 power, W" in text
        assert "GPU 1" not in text
        assert "J an output token" in text

    def test_a_gpu_that_is_throttled_shared_and_sick(self, ran: Callable[..., Result]) -> None:
        processes = [StubProcess(4242), StubProcess(1)]
        sick = StubGpu(
            {"clock_reasons": 0x48, "ecc_uncorrected": [(0, 0), (2, 1)]}, processes=processes, xids=[(2, 79)]
        )
        result = ran(sick)
        levels = {name: result.code(f"gpu.{name}")["level"] for name in ("throttled", "foreign_process", "ecc", "xid")}
        assert levels == {"throttled": "fail", "foreign_process": "warn", "ecc": "fail", "xid": "fail"}
        assert result.verdict == "INVALID"

    def test_a_gpu_that_is_lost_on_the_way(self, ran: Callable[..., Result]) -> None:
        result = ran(StubGpu(processes=[StubProcess(4242)], lost=2.5))
        assert result.code("gpu.lost")["level"] == "fail"
        assert result.code("time.telemetry_gap")["level"] == "warn"
        assert result.summary["energy"]["j_per_output_token"] is None
        assert all_ok(result)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_vllm_agrees_with_the_client(tmp_path: Path) -> None:
    try:
        python = find_vllm_python()
    except EngineError as error:
        if os.environ.get("SERVEBENCH_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(f"no vLLM: {error}")
    short = ("-s", "load.duration=20s", "-s", "load.poisson=3/s")
    command = [sys.executable, "-m", "servebench", "run", "long-prefill-mix", "--vllm-python", str(python), *short]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run"), "--json"], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout)["summary"]

    assert [row["difference"] for row in summary["server_side"]["agreement"]] == [0, 0, 0]
    assert summary["server_side"]["service"]["difference_ms"] is not None
    split = summary["server_side"]["ttft_split"]
    assert split["queue_ms"] >= 0 < split["prefill_ms"] < split["client_ms"]
    beside = summary["interference"]
    assert beside["with_prefill"]["mean"] > 1.2 * beside["without_prefill"]["mean"]
    assert any(each["n"] for each in beside["ttft_by_queue_depth"])
    assert {t["name"] for t in summary["phases_joined"]["tables"]} >= {"running", "waiting", "kv_usage"}
    stages = [stage["name"] for stage in summary["cold_start"]["stages"]]
    assert stages == ["listening", "ready", "first_request", "first_token", "load"]
    assert summary["cold_start"]["log"]["weights_s"] >= 0
    assert summary["server_identity"]["model"]["layers"] == 4
    assert summary["server_identity"]["changed"] == []
    levels = {c["code"]: c["level"] for c in summary["verdict"]["codes"] if c["code"].startswith("server.")}
    assert set(levels.values()) == {"ok"}, levels
