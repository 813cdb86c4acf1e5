"""Launching vLLM: ready only when it really serves, explained when it does not, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servebench.clock import realtime_ns
from servebench.engine import guard
from servebench.engine.vllm import LaunchInterruptedError, VllmServer, VllmSettings, launch_vllm
from servebench.errors import EngineError, ExitCode, UsageError

Launcher = Callable[..., VllmServer]


@pytest.fixture
def launch(fake_python: Path, tmp_path: Path) -> Launcher:
    """Launch the fake vLLM, in a mode."""

    def start(
        mode: str = "serve", model: str = "some/model", flags: dict[str, Any] | None = None, **more: Any
    ) -> VllmServer:
        settings = VllmSettings(model, flags or {}, {"FAKE_VLLM": mode})
        return launch_vllm(settings, fake_python, tmp_path / "run" / "server.log", **more)

    return start


def runs(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or read
        return False


def wait_for_end(*pids: int) -> bool:
    deadline = time.monotonic() + 10
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(runs, pids))


def logged(server: VllmServer, what: str) -> Any:
    """What the fake vLLM wrote of itself: arguments, environment, or its helper process's id."""
    line = next(line for line in server.log_path.read_text().splitlines() if line.startswith(f"{what} "))
    return json.loads(line.removeprefix(f"{what} "))


def helper_of(log: Path) -> int:
    return int(next(line for line in log.read_text().splitlines() if line.startswith("helper ")).split()[1])


def test_a_server_is_returned_when_it_serves(launch: Launcher) -> None:
    with launch() as server:
        assert server.alive()
        assert runs(server.pid)
        assert (server.model, server.version, server.random_weights) == ("some/model", "9.9.9", False)
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))):
            pass


def test_its_instants_are_in_order_and_in_this_clock(launch: Launcher) -> None:
    before = realtime_ns()
    with launch() as server:
        cold = server.cold_start
        names = ("launch_ns", "listening_ns", "ready_ns", "first_request_ns", "first_token_ns")
        instants = [before, *(cold[name] for name in names), realtime_ns()]
    assert instants == sorted(instants)
    assert 0 < cold["ready_s"] < cold["first_token_s"]
    assert 0 < cold["first_request_s"] < cold["first_token_s"]


def test_it_gets_our_flags_and_two_names_on_loopback(launch: Launcher) -> None:
    with launch(flags={"max-num-seqs": 8, "enforce-eager": False, "max-num-batched-tokens": None}) as server:
        arguments = logged(server, "arguments")
    names = arguments[arguments.index("--served-model-name") + 1 :][:2]
    assert names[0] == "some/model"
    assert names[1].startswith("some/model-")
    assert arguments[:2] == ["--model", "some/model"]
    assert arguments[-2:] == ["--max-num-seqs=8", "--no-enforce-eager"]
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert server.command[-len(arguments) :] == arguments
    assert server.flags == {"max-num-seqs": 8, "enforce-eager": False, "max-num-batched-tokens": None}


def test_the_scenario_overrides_the_user_who_overrides_the_defaults(
    launch: Launcher, fake_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    settings = VllmSettings("m", {}, {"VLLM_CPU_KVCACHE_SPACE": "3", "MINE": "x"})
    with launch_vllm(settings, fake_python, tmp_path / "log") as server:
        environment = logged(server, "environment")
    chosen = {"OMP_NUM_THREADS": "7", "VLLM_CPU_KVCACHE_SPACE": "3", "MINE": "x", "VLLM_HOST_IP": "127.0.0.1"}
    assert chosen.items() <= environment.items()
    assert chosen.items() <= server.env.items()
    assert "VLLM_API_KEY" not in environment
    assert "secret" not in str(server)


def test_stop_ends_it_with_all_its_processes(launch: Launcher) -> None:
    server = launch()
    helper = helper_of(server.log_path)
    assert runs(helper)
    server.stop()
    assert not server.alive()
    assert wait_for_end(server.pid, helper)
    server.stop()  # once more does no harm


def test_the_block_ends_it_on_an_error(launch: Launcher) -> None:
    with pytest.raises(ZeroDivisionError), launch() as server:
        _ = 1 / 0
    assert wait_for_end(server.pid)


def test_a_stubborn_one_is_killed_when_patience_is_over(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = tmp_path / "guard.py"
    hasty.write_text(Path(guard.__file__).read_text().replace("PATIENCE_S = 30.0", "PATIENCE_S = 0.5"))
    monkeypatch.setattr(guard, "__file__", str(hasty))
    server = launch("stubborn")
    start = time.monotonic()
    server.stop()
    assert 0.5 <= time.monotonic() - start < 10
    assert wait_for_end(server.pid, helper_of(server.log_path))


def test_it_does_not_outlive_us_however_we_die(fake_python: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from servebench.engine.vllm import VllmSettings, launch_vllm\n"
        "server = launch_vllm(VllmSettings('m'), Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(server.pid, flush=True); time.sleep(60)\n"
    )
    log = tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", program, fake_python, log], stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None
        pid = int(ours.stdout.readline())
        helper = helper_of(log)
        assert runs(pid) and runs(helper)
        ours.kill()
    assert wait_for_end(pid, helper)


def test_it_does_not_outlive_its_guard(launch: Launcher) -> None:
    with launch() as server:
        parent = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        assert wait_for_end(server.pid, parent)  # the guard may take a moment longer to be gone than what it guarded
        assert not server.alive()


def test_ctrl_c_in_the_terminal_does_not_reach_it(launch: Launcher) -> None:
    with launch() as server:
        assert os.getpgid(server.pid) == os.getsid(server.pid) == server.pid != os.getsid(0)


def test_an_end_before_it_was_ready_is_explained(launch: Launcher, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as error:
        launch("die")
    first, *rest = str(error.value).splitlines()
    assert first == "vLLM ended (exit code 1): ValueError: no room for the KV cache"
    assert str(tmp_path / "run" / "server.log") in rest[0]
    assert "Engine core initialization failed" in rest[-1]


def test_an_end_at_the_first_request_is_explained(launch: Launcher) -> None:
    with pytest.raises(EngineError, match=r"vLLM ended \(exit code 4\): RuntimeError: the first request was too much"):
        launch("die-at-first-request")


def test_an_end_later_on_can_be_explained(launch: Launcher) -> None:
    with launch() as server:
        os.kill(server.pid, signal.SIGKILL)
        assert wait_for_end(server.pid)
        deadline = time.monotonic() + 5
        while server.alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.why_dead().startswith("vLLM ended (signal 9)")
        assert "GET /health" in server.tail()


def test_an_unknown_flag_is_answered_with_the_nearest(launch: Launcher) -> None:
    with pytest.raises(EngineError) as error:
        launch(flags={"max-num-batched-tokns": 2048})
    said = 'this vLLM has no flag "max-num-batched-tokns" (did you mean "max-num-batched-tokens"?)'
    assert str(error.value) == said


def test_a_reserved_flag_is_refused_before_anything_starts(launch: Launcher, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='"port" is set by servebench itself'):
        launch(flags={"port": 1})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mode", ["slow", "hang-at-first-request"])
def test_patience_with_a_slow_one_ends(launch: Launcher, tmp_path: Path, mode: str) -> None:
    with pytest.raises(EngineError, match=r"vLLM was not ready within 2 s; its last lines:\n"):
        launch(mode, timeout=2)


@pytest.mark.parametrize("mode", ["slow", "hang-at-first-request"])
def test_a_launch_can_be_interrupted(launch: Launcher, tmp_path: Path, mode: str) -> None:
    asked = iter(range(1_000_000))
    began = time.monotonic()
    with pytest.raises(LaunchInterruptedError) as error:
        launch(mode, should_stop=lambda: next(asked) > 20)
    assert error.value.exit_code == ExitCode.INTERRUPTED
    assert time.monotonic() - began < 20


def test_another_server_at_its_port_is_not_taken_for_it(launch: Launcher) -> None:
    with pytest.raises(EngineError, match=r"another server answers at http://127\.0\.0\.1:\d+, where vLLM should"):
        launch("stranger")


def test_a_server_that_refuses_the_model_is_not_ready(launch: Launcher) -> None:
    with pytest.raises(
        EngineError, match=r'did not answer a one-token request for "some/model": status 404, {"no": 1}'
    ):
        launch("refuse")


def test_a_taken_port_is_an_error(launch: Launcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            launch(port=port)


def test_the_port_asked_for_is_taken(launch: Launcher, free_port: int) -> None:
    with launch(port=free_port) as server:
        assert server.url == f"http://127.0.0.1:{free_port}"


def test_the_stages_are_told(launch: Launcher) -> None:
    stages: list[str] = []
    launch(progress=stages.append).stop()
    assert stages == ["starting vLLM", "waiting for the first token"]
