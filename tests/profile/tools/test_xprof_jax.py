"""The xprof tool on a real JAX process, on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from servebench.profile.intervals import union
from servebench.profile.server import Server
from servebench.profile.timeline import Kind, Timeline
from servebench.profile.tool import Bounds, ProfileError
from servebench.profile.tools.xprof import XprofTool

JAX_PYTHON = os.environ.get("SERVEBENCH_JAX_PYTHON")  # read before the fixture hides it
PROGRAM = Path(__file__).parents[2] / "jax_server.py"
NEAR_NS = 1_000_000

pytestmark = pytest.mark.skipif(
    not JAX_PYTHON, reason="needs JAX: scripts/install-jax, then SERVEBENCH_JAX_PYTHON=.venv-jax/bin/python"
)


@dataclass
class Jax:
    """The running process."""

    port: int
    pid: int
    log: Path

    def steps(self) -> np.ndarray:
        """Number, start and end of each step so far, as the process logged them."""
        lines = self.log.read_text().splitlines()
        return np.array([json.loads(line) for line in lines], np.int64)


@pytest.fixture(scope="module")
def jax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jax]:
    assert JAX_PYTHON is not None
    log = tmp_path_factory.mktemp("jax") / "steps.jsonl"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [JAX_PYTHON, str(PROGRAM), str(port), str(log)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate(timeout=10)[1]
            yield Jax(port, process.pid, log)
        finally:
            process.communicate("", timeout=30)
    assert process.returncode == 0


def tool_for(jax: Jax, folder: Path) -> XprofTool:
    tool = XprofTool(folder, {"port": str(jax.port)})
    tool.check()
    tool.attach(Server("http://127.0.0.1:9", "jax", jax.pid, lambda timeout: httpx.Client(timeout=timeout)))
    return tool


def captured(jax: Jax, tool: XprofTool, folder: Path, seconds: float) -> tuple[Timeline, int, int]:
    """The timeline of a window, and when `start` had returned and `stop` was called."""
    folder.mkdir()
    tool.start(folder.name, folder, Bounds(seconds=30))
    began = time.time_ns()
    time.sleep(seconds)
    ended = time.time_ns()
    tool.stop()
    tool.collect(folder)
    return Timeline.read(folder / "timeline.parquet"), began, ended


def test_steps_are_where_the_process_had_them(jax: Jax, tmp_path: Path) -> None:
    timeline, began, ended = captured(jax, tool_for(jax, tmp_path), tmp_path / "decode", 1.0)
    logged = jax.steps()
    inside = logged[(logged[:, 1] >= began) & (logged[:, 2] <= ended)]
    assert len(inside) > 20
    steps = timeline.take(timeline.of_kind(Kind.RANGE))
    assert {timeline.names[each] for each in steps.name} == {"serve"}
    at = np.searchsorted(steps.start, inside[:, 1])  # a step's range begins just after its logged start
    late = steps.start[at] - inside[:, 1]
    early = inside[:, 2] - steps.end[at]
    assert len(set(at.tolist())) == len(inside)
    # the process may be interrupted between a stamp and the range
    assert np.median(late) < NEAR_NS and np.median(early) < NEAR_NS
    assert (late >= 0).all() and (early >= 0).all()
    lengths = (inside[:, 2] - inside[:, 1]) - (steps.end[at] - steps.start[at])
    assert np.median(np.abs(lengths)) < NEAR_NS


def test_operations_are_inside_of_the_steps(jax: Jax, tmp_path: Path) -> None:
    timeline, _, _ = captured(jax, tool_for(jax, tmp_path), tmp_path / "decode", 1.0)
    steps = timeline.take(timeline.of_kind(Kind.RANGE))
    operations = timeline.take(timeline.of_kind(Kind.COMPUTE))
    assert timeline.devices == {0: "CPU 0 (threads of the host)"}
    assert set(operations.device.tolist()) == {0}
    at = np.searchsorted(steps.start, operations.start, side="right") - 1
    within = (at >= 0) & (operations.end <= steps.end[at] + 100_000)
    assert within.mean() > 0.95  # not those of steps that the capture's edges cut
    busy = union(operations.start, operations.end).total
    assert 0 < busy <= (steps.end - steps.start).sum() * 1.05
    # every step runs the same program, so the same operations
    counts = np.unique(operations.name, return_counts=True)[1]
    assert (np.abs(counts - len(steps)) <= 2 + len(steps) // 50).any()
    operators = {timeline.names[each] for each in timeline.take(timeline.of_kind(Kind.OPERATOR)).name}
    assert "PjitFunction(advance)" in operators


def test_two_windows_of_one_process(jax: Jax, tmp_path: Path) -> None:
    tool = tool_for(jax, tmp_path)
    first, _, first_end = captured(jax, tool, tmp_path / "prefill", 0.4)
    second, second_start, _ = captured(jax, tool, tmp_path / "decode", 0.4)
    assert len(first) and len(second)
    assert first.span[0] < first_end <= first.span[1]
    assert first.span[1] < second.span[0] <= second_start


def test_a_capture_at_a_time(jax: Jax, tmp_path: Path) -> None:
    tool, other = tool_for(jax, tmp_path), tool_for(jax, tmp_path)
    tool.start("decode", tmp_path, Bounds(seconds=30))
    with pytest.raises(ProfileError, match=r"did not start: .*[Aa]nother profiling session"):
        other.start("prefill", tmp_path / "other", Bounds())
    tool.stop()


def test_a_window_that_is_never_stopped_ends_by_itself(jax: Jax, tmp_path: Path) -> None:
    tool, other = tool_for(jax, tmp_path), tool_for(jax, tmp_path)
    tool.start("decode", tmp_path, Bounds(seconds=0.2))
    time.sleep(3)
    other.start("prefill", tmp_path / "other", Bounds(seconds=0.2))
    other.stop()
    tool.stop()  # too late, and what it captured is still there
    assert tool.collect(tmp_path)["rows"] > 0


def test_the_next_window_ends_one_that_was_given_up(jax: Jax, tmp_path: Path) -> None:
    tool = tool_for(jax, tmp_path)
    tool.start("prefill", tmp_path / "prefill", Bounds(seconds=30))
    tool.start("decode", tmp_path / "decode", Bounds(seconds=30))
    tool.stop()
    assert tool.collect(tmp_path / "decode")["rows"] > 0
