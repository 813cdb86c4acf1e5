"""Real nsys around a real server process: two windows in one session, on the client's clock, joined to its requests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from runs import MILLISECOND, scenario
from servebench.analysis.data import RunData, load
from servebench.analysis.profile.alignment import align
from servebench.analysis.profile.answers import answers
from servebench.errors import UsageError
from servebench.profile.server import Server
from servebench.profile.timeline import Kind, Timeline
from servebench.profile.tool import TIMELINE, Bounds, ProfileError
from servebench.profile.tools.nsys import NsysTool, find_nsys
from servebench.run import RunOptions, run

HERE = Path(__file__).parent
WINDOW_S = 1.5

try:
    NSYS = find_nsys()
except UsageError as error:
    pytest.skip(f"no nsys: {error}", allow_module_level=True)
pytestmark = pytest.mark.slow


def compiled(folder: Path) -> Path:
    """The NVTX ranges as a library, by the headers that come with nsys."""
    if NSYS.headers is None:
        pytest.skip(f"{NSYS.path} ships no NVTX headers")
    library = folder / "ranges.so"
    source = HERE / "nvtx_ranges.c"
    command = ["cc", "-O1", "-shared", "-fPIC", f"-I{NSYS.headers}", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return library


class Engine:
    """A server as servebench launches one under a tool: the tool's prefix before its command."""

    def __init__(self, tool: NsysTool, command: list[str], folder: Path) -> None:
        launch = tool.launch()
        self.command = [*launch.prefix, *command]
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(launch.env),
                start_new_session=True,
            )
        self.url = self._await_url()
        self.server = Server(self.url, "sim", self.process.pid, self._client, self.log, ours=True)

    def _await_url(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if line.startswith("http://"):
                    return line
            time.sleep(0.05)
        raise AssertionError(f"the server does not serve: {self.log.read_text()}")

    def _client(self, timeout: float) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout)

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@dataclass
class Captured:
    """One window: what was asked when (ns of CLOCK_REALTIME), and what came of it."""

    folder: Path
    bracket: tuple[int, int] = (0, 0)
    window: tuple[int, int] = (0, 0)
    facts: dict[str, Any] = field(default_factory=dict)
    alive: bool = False

    @property
    def timeline(self) -> Timeline:
        return Timeline.read(self.folder / TIMELINE)


@dataclass
class Session:
    windows: list[Captured]
    run: RunData
    exit_code: int
    left: list[str]


def capture(tool: NsysTool, engine: Engine, folder: Path) -> Captured:
    folder.mkdir()
    asked = time.time_ns()
    tool.start(folder.name, folder, Bounds(WINDOW_S))
    began = time.time_ns()
    time.sleep(WINDOW_S)
    ending = time.time_ns()
    tool.stop()
    return Captured(folder, (asked, time.time_ns()), (began, ending), alive=engine.process.poll() is None)


def loaded(folder: Path, url: str, seconds: float) -> tuple[threading.Thread, list[Any]]:
    """A load in the background: eight streams, all the time."""
    done: list[Any] = []
    document = scenario(
        folder,
        {"closed": {"concurrency": 8}, "duration": seconds, "drain": "20s"},
        workload={"input_tokens": 100, "output_tokens": 40},
    )
    options = RunOptions(endpoint=url, out=folder / "run", workers=1)
    thread = threading.Thread(target=lambda: done.append(run(document, options)))
    thread.start()
    return thread, done


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("nsys")
    tool = NsysTool(folder, {"trace": "nvtx,osrt"})
    tool.check()
    engine = Engine(tool, [sys.executable, str(HERE / "nvtx_engine.py"), str(compiled(folder))], folder)
    try:
        tool.attach(engine.server)
        thread, done = loaded(folder, engine.url, seconds=14.0)
        time.sleep(4.0)
        windows = [capture(tool, engine, folder / name) for name in ("one", "two")]
        thread.join(90)
    finally:
        code = engine.end()
        tool.close()
    for window in windows:
        window.facts = tool.collect(window.folder)
    listed = subprocess.run([NSYS.path, "sessions", "list"], capture_output=True, text=True, check=True).stdout
    name = next(word.partition("=")[2] for word in engine.command if word.startswith("--session-new="))
    return Session(windows, load(done[0]), code, [line for line in listed.splitlines() if name in line])


class TestTwoWindowsInOneSession:
    def test_the_server_ran_on_and_ended_well_and_nothing_is_left(self, session: Session) -> None:
        assert [window.alive for window in session.windows] == [True, True]
        assert session.exit_code == 0
        assert session.left == []

    def test_each_has_os_runtime_calls_and_named_steps(self, session: Session) -> None:
        for window in session.windows:
            timeline = window.timeline
            assert "execute_context_0(0)_generation_8(8)" in names_of(timeline, Kind.RANGE)
            assert timeline.of_kind(Kind.SYSTEM).sum() > 100
            assert window.facts["files"] == ["capture.nsys-rep", "capture.sqlite", TIMELINE]
            assert all((window.folder / name).is_file() for name in window.facts["files"])

    def test_the_timeline_lies_within_its_own_window(self, session: Session) -> None:
        first, second = (window.timeline for window in session.windows)
        assert first.span[1] < second.span[0]
        for window in session.windows:
            assert window.bracket[0] <= window.timeline.span[0]
            assert window.timeline.span[1] <= window.bracket[1]

    def test_it_is_aligned_to_the_clients_clock_within_a_millisecond(self, session: Session) -> None:
        for window in session.windows:
            aligned = align(window.timeline, session.run.chunks.arrival, bracket=window.bracket)
            assert aligned.alignment is not None
            assert "send calls" in aligned.alignment.method
            assert aligned.alignment.residual_ns is not None
            assert aligned.alignment.residual_ns < MILLISECOND

    def test_the_steps_alone_say_the_same(self, session: Session) -> None:
        for window in session.windows:
            timeline = window.timeline
            steps = timeline.of_kind(Kind.RANGE)
            without = timeline.take(~timeline.of_kind(Kind.SYSTEM))
            by_sends = align(timeline, session.run.chunks.arrival, bracket=window.bracket)
            by_steps = align(without, session.run.chunks.arrival, step_ends=timeline.end[steps], bracket=window.bracket)
            assert by_sends.alignment is not None
            assert by_steps.alignment is not None
            assert by_steps.alignment.residual_ns is not None
            difference = abs(by_steps.alignment.offset_ns - by_sends.alignment.offset_ns)
            assert difference <= by_steps.alignment.residual_ns + (by_sends.alignment.residual_ns or 0)

    def test_it_is_joined_to_the_requests_in_flight_and_honest_about_the_gpu(self, session: Session) -> None:
        for window in session.windows:
            aligned = align(window.timeline, session.run.chunks.arrival, bracket=window.bracket)
            document = answers(
                aligned,
                name=window.folder.name,
                kind="mixed",
                tool="nsys",
                version=window.facts["version"],
                start_ns=window.window[0],
                end_ns=window.window[1],
                run=session.run,
            )
            assert document["traffic"]["in_flight"]["max"] == 8
            assert document["traffic"]["as_meant"] is True
            assert document["devices"] == []
            assert "no GPU activity" in document["no_device"]
            assert document["steps"]["found_by"] == "names"
            assert {row["name"] for row in document["system"]} & {"write", "send", "sendmsg"}


class TestCaptureRanges:
    """mode=range, with an NVTX range where vLLM has CUDA's profiler calls, which need a GPU."""

    def test_routes_bracket_each_window_and_reports_are_written_when_the_server_has_ended(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("servebench.profile.tools.nsys.tool.has_gpu", lambda: True)
        by_nvtx = ("--capture-range=nvtx", "--nvtx-capture=capture")
        monkeypatch.setattr("servebench.profile.tools.nsys.tool.RANGES", by_nvtx)
        monkeypatch.setenv("NSYS_NVTX_PROFILER_REGISTER_ONLY", "0")
        tool = NsysTool(tmp_path, {"mode": "range", "trace": "nvtx,osrt"})
        assert tool.launch().after_exit
        engine = Engine(tool, [sys.executable, str(HERE / "nvtx_engine.py"), str(compiled(tmp_path))], tmp_path)
        folders = [tmp_path / name for name in ("one", "two")]
        tokens = (10, 25)
        try:
            tool.attach(engine.server)
            for folder, count in zip(folders, tokens, strict=True):
                folder.mkdir()
                tool.start(folder.name, folder, Bounds(1.0, steps=5))
                time.sleep(1.0)  # nsys begins its collection after the range has
                ask(engine.url, count)
                tool.stop()
                time.sleep(2.0)
                ask(engine.url, 3)
        finally:
            assert engine.end() == 0
        for folder, count in zip(folders, tokens, strict=True):
            assert tool.collect(folder)["mode"] == "range"
            timeline = Timeline.read(folder / TIMELINE)
            steps = [name for name in names_of(timeline, Kind.RANGE) if name.startswith("execute_context")]
            assert len(steps) == count
        tool.close()


def ask(url: str, tokens: int) -> None:
    body = {"model": "simulated", "prompt": "a b c", "max_tokens": tokens}
    httpx.post(f"{url}/v1/completions", json=body, timeout=30).raise_for_status()


def names_of(timeline: Timeline, kind: Kind) -> list[str]:
    return [timeline.names[number] for number in timeline.name[timeline.of_kind(kind)]]


class TestFailures:
    def test_a_capture_of_nothing_is_told(self, tmp_path: Path) -> None:
        tool = NsysTool(tmp_path, {"trace": "nvtx"})
        engine = Engine(tool, [sys.executable, str(HERE / "nvtx_engine.py"), str(compiled(tmp_path))], tmp_path)
        try:
            tool.attach(engine.server)
            (tmp_path / "idle").mkdir()
            tool.start("idle", tmp_path / "idle", Bounds(0.1))
            tool.stop()
            with pytest.raises(ProfileError, match="captured nothing of nvtx"):
                tool.collect(tmp_path / "idle")
        finally:
            assert engine.end() == 0
            tool.close()

    def test_a_server_that_died_is_told_and_leaves_nothing(self, tmp_path: Path) -> None:
        tool = NsysTool(tmp_path, {})
        engine = Engine(tool, [sys.executable, str(HERE / "nvtx_engine.py"), str(compiled(tmp_path))], tmp_path)
        os.kill(int(tool.pid_file.read_text()), 9)
        assert engine.process.wait(60) == 137
        gone = r"has no session|in state Shutdown"
        with pytest.raises(ProfileError, match=gone):
            tool.attach(engine.server)
        with pytest.raises(ProfileError, match=gone):
            tool.start("late", tmp_path, Bounds(0.1))
        tool.close()
