"""The torch profiler of a real vLLM: its windows, the names of its steps, its clock, and its routes at the edges."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from servebench.engine.locate import find_vllm_python
from servebench.engine.vllm import VllmServer, VllmSettings, launch_vllm
from servebench.errors import EngineError
from servebench.profile.server import Server
from servebench.profile.timeline import Kind, Timeline
from servebench.profile.tool import TIMELINE, Bounds
from servebench.profile.tools.torch import TorchTool

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

CACHE = Path(__file__).parents[3] / ".cache" / "tests"
STEPS = 12


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return find_vllm_python()
    except EngineError as error:
        if os.environ.get("SERVEBENCH_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(f"no vLLM: {error}")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run") / "profile"


@pytest.fixture(scope="module")
def vllm(python: Path, profile: Path) -> Iterator[VllmServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        flags = {"max-model-len": 4096, **TorchTool(profile, {}).launch().flags}
        with launch_vllm(VllmSettings(flags=flags), python, profile.parent / "server.log") as running:
            yield running


@pytest.fixture
def tool(vllm: VllmServer, profile: Path) -> TorchTool:
    tool = TorchTool(profile, {})
    tool.attach(seen(vllm))
    return tool


def seen(vllm: VllmServer) -> Server:
    client = lambda limit: httpx.Client(timeout=limit)  # noqa: E731 - what a run gives
    return Server(vllm.url, "vllm", vllm.pid, client, log_path=vllm.log_path, ours=True)


@contextmanager
def load(vllm: VllmServer, prompt_tokens: int, tokens: int, requests: int) -> Iterator[list[int]]:
    """Keep so many requests in flight; the instants of their tokens, CLOCK_REALTIME ns."""
    over, arrivals = threading.Event(), list[int]()

    def follow(number: int) -> None:
        with httpx.Client(timeout=60) as client:
            turn = 0
            while not over.is_set():
                turn += 1
                prompt = [100 + (number * 7919 + turn * 104_729 + place * 31) % 3900 for place in range(prompt_tokens)]
                body = {"model": vllm.model, "prompt": prompt, "max_tokens": tokens, "stream": True}
                with client.stream("POST", f"{vllm.url}/v1/completions", json=body) as answer:
                    for line in answer.iter_lines():
                        if over.is_set():
                            return
                        if line.startswith("data: {"):
                            arrivals.append(time.time_ns())

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(requests)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 30
        while not arrivals and time.monotonic() < deadline:
            time.sleep(0.01)
        yield arrivals
    finally:
        over.set()
        for thread in threads:
            thread.join()


def capture(tool: TorchTool, folder: Path, bounds: Bounds) -> tuple[dict[str, Any], Timeline]:
    folder.mkdir(parents=True, exist_ok=True)
    tool.start(folder.name, folder, bounds)
    time.sleep(bounds.seconds)
    tool.stop()
    facts = tool.collect(folder)
    return facts, Timeline.read(folder / TIMELINE)


def steps(timeline: Timeline) -> tuple[Timeline, list[str]]:
    rows = timeline.take(timeline.of_kind(Kind.RANGE))
    names = [timeline.names[name] for name in rows.name.tolist()]
    named = np.array([name.startswith("execute_context_") for name in names])
    return rows.take(named), [name for name in names if name.startswith("execute_context_")]


def test_prefill_window_holds_prefill_only(tool: TorchTool, vllm: VllmServer, profile: Path) -> None:
    with load(vllm, 500, 1, 2):
        facts, timeline = capture(tool, profile / "prefill", Bounds(3.0, STEPS))
    rows, names = steps(timeline)
    assert {name.partition("_generation_")[2] for name in names} == {"0(0)"}
    assert any(name.startswith("execute_context_1(500)") for name in names)
    assert len(names) == STEPS  # the profiler ended by itself, and the stop stored it
    assert facts["version"].startswith("vLLM ")
    assert timeline.facts["processes"]
    operators = timeline.take(timeline.of_kind(Kind.OPERATOR))
    assert any("attention" in timeline.names[name] for name in operators.name.tolist())
    assert not timeline.on_device.any()
    assert int(rows.end.max()) <= timeline.span[1]


def test_decode_window_agrees_with_what_the_client_saw(tool: TorchTool, vllm: VllmServer, profile: Path) -> None:
    with load(vllm, 20, 3000, 1) as arrivals:
        facts, timeline = capture(tool, profile / "decode", Bounds(1.0, STEPS))
    rows, names = steps(timeline)
    assert set(names) == {"execute_context_0(0)_generation_1(1)"}
    assert len(names) == STEPS
    assert facts["stop_s"] > 0
    assert timeline.alignment is not None
    assert timeline.alignment.residual_ns is not None, timeline.alignment.reason  # the requests bracket the trace
    seen_at = np.sort(np.array(arrivals))
    inner = seen_at[(seen_at > rows.end[0]) & (seen_at <= rows.end[-1])]
    assert abs(inner.size - (STEPS - 1)) <= 1  # each step's token comes after it, and before the next one's end
    lag = seen_at[np.searchsorted(seen_at, rows.end[:-1])] - rows.end[:-1]
    assert np.median(lag) < 2 * np.median(np.diff(rows.start))


def test_window_by_time_and_a_capture_left_running(tool: TorchTool, vllm: VllmServer, profile: Path) -> None:
    httpx.post(f"{vllm.url}/start_profile", json={"profile_prefix": "forgotten"}).raise_for_status()
    with load(vllm, 50, 30, 2):
        facts, timeline = capture(tool, profile / "at-0s", Bounds(0.3))
    assert len(steps(timeline)[1]) > 1
    assert all(name.startswith("at-0s-") for name in facts["files"])


def test_attached_server_says_where_it_stores(vllm: VllmServer, tmp_path: Path, profile: Path) -> None:
    tool = TorchTool(tmp_path / "profile", {})
    attached = seen(vllm)
    tool.attach(Server(attached.url, "vllm", vllm.pid, attached.client))
    with load(vllm, 50, 30, 1):
        facts, _ = capture(tool, tmp_path / "profile" / "mixed", Bounds(0.2))
    assert facts["ranks"] == 1
    assert not list((profile / "torch").glob("mixed-*"))
