"""TorchTool against a server that plays vLLM's profiler routes: every answer and failure, and what is left behind."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import kineto_files as kf
from servebench.engine.vllm_flags import flag_arguments
from servebench.errors import UsageError
from servebench.profile.server import Server
from servebench.profile.timeline import Kind, Timeline
from servebench.profile.tool import TIMELINE, Bounds, ProfileError
from servebench.profile.tools.torch import TorchTool
from servebench.testing import Hang, RequestSeen, Reset, ScriptedServer, json_response, response

CONFLICT = json_response(409, {"error": {"message": "A profiling session is already active."}})
OK = response(200, b"")
WITHOUT_STEPS = Bounds()
Answer = Callable[[RequestSeen], Any]


class Vllm:
    """vLLM's routes: it stores what it is told to when it is stopped, under the prefix that it was given.

    Attributes:
        folder: where it stores traces.
        events: of the trace, from the instants of the start and of the stop in µs since 1970.
        running: whether a capture runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running = False
        self.knows_prefix = True
        self.ranks = 1
        self.answers: dict[tuple[str, str], Answer] = {}
        self.bodies: list[Any] = []
        self.lateness_us = 0.0

    def __call__(self, request: RequestSeen) -> Any:
        told = self.answers.get((request.method, request.path))
        if told is not None:
            return told(request)
        if request.method != "POST":
            return response(405, b"") if request.path.endswith("_profile") else response(404, b"")
        return self.start(request) if request.path == "/start_profile" else self.stop()

    def start(self, request: RequestSeen) -> Any:
        if self.running:
            return CONFLICT
        self.bodies.append(request.json())
        self.running, self.begin_us = True, time.time_ns() / 1000
        return OK

    def stop(self) -> Any:
        if self.running:
            self.running = False
            self.store()
        return OK

    def store(self) -> None:
        end_us = time.time_ns() / 1000
        prefix = f"{self.bodies[-1]['profile_prefix']}_" if self.knows_prefix else ""
        self.folder.mkdir(exist_ok=True)
        for rank in range(self.ranks):
            events = [
                kf.step(self.begin_us + self.lateness_us, 1.0),
                kf.kernel("gemm", self.begin_us + self.lateness_us + 2, 1.0),
            ]
            stated = (self.begin_us + self.lateness_us, end_us + self.lateness_us)
            trace = kf.document(events, rank=rank, ranks=self.ranks, stated=stated)
            kf.write(self.folder / f"{prefix}rank{rank}.{time.time_ns()}.pt.trace.json.gz", trace)
            (self.folder / f"{prefix}rank{rank}.profiler_out.txt").write_text("a table\n")


@pytest.fixture
def vllm(tmp_path: Path) -> Vllm:
    return Vllm(tmp_path / "profile" / "torch")


@contextmanager
def attached(vllm: Vllm, tmp_path: Path, ours: bool = True, **settings: str) -> Iterator[TorchTool]:
    (tmp_path / "profile" / "decode").mkdir(parents=True, exist_ok=True)
    tool = TorchTool(tmp_path / "profile", settings)
    with ScriptedServer(vllm) as server:
        tool.attach(there(server.url, ours))
        yield tool
        assert server.errors == []


def there(url: str, ours: bool = True, pid: int | None = None, log: Path | None = None) -> Server:
    return Server(url, "vllm", pid, lambda limit: httpx.Client(timeout=limit), log_path=log, ours=ours)


def captured(tool: TorchTool, folder: Path, bounds: Bounds = WITHOUT_STEPS) -> dict[str, Any]:
    tool.start("decode", folder, bounds)
    tool.stop()
    return tool.collect(folder)


# -- a capture


def test_window_is_captured_moved_and_read(vllm: Vllm, tmp_path: Path) -> None:
    folder = tmp_path / "profile" / "decode"
    with attached(vllm, tmp_path) as tool:
        facts = captured(tool, folder, Bounds(1.0, 50))
    assert vllm.bodies[0]["max_iterations"] == 50
    assert vllm.bodies[0]["profile_prefix"].startswith("decode-")
    assert sorted(facts["files"]) == sorted(path.name for path in folder.iterdir() if path.name != TIMELINE)
    assert len(facts["files"]) == 2
    assert (facts["tool"], facts["version"], facts["ranks"]) == ("torch", "vLLM 0.32.0", 1)
    assert facts["bytes"] > 0
    assert facts["stop_s"] >= 0
    assert not vllm.folder.exists()
    timeline = Timeline.read(folder / TIMELINE)
    assert timeline.kind.tolist() == [Kind.RANGE, Kind.COMPUTE]


def test_without_steps_the_server_sets_no_limit(vllm: Vllm, tmp_path: Path) -> None:
    with attached(vllm, tmp_path) as tool:
        captured(tool, tmp_path / "profile" / "decode")
    assert "max_iterations" not in vllm.bodies[0]


def test_each_window_gets_its_own_files(vllm: Vllm, tmp_path: Path) -> None:
    with attached(vllm, tmp_path) as tool:
        for name in ("prefill", "decode"):
            (tmp_path / "profile" / name).mkdir(exist_ok=True)
            tool.start(name, tmp_path / "profile" / name, Bounds())
            tool.stop()
        files = [tool.collect(tmp_path / "profile" / name)["files"] for name in ("prefill", "decode")]
    assert [file.split("-")[0] for file in files[0] + files[1]] == ["prefill"] * 2 + ["decode"] * 2


def test_windows_with_odd_names_have_names_that_vllm_takes(vllm: Vllm, tmp_path: Path) -> None:
    folder = tmp_path / "profile" / "decode"
    with attached(vllm, tmp_path) as tool:
        for name in ("at 2s–4s/é", "..", "x" * 300):
            tool.start(name, folder, Bounds())
            tool.stop()
    for body in vllm.bodies:
        prefix = body["profile_prefix"]
        assert len(prefix) <= 128
        assert prefix.isascii()
        assert prefix[0].isalnum()
        assert set(prefix) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")


def test_vllm_that_ignores_names(vllm: Vllm, tmp_path: Path) -> None:
    vllm.knows_prefix = False
    vllm.folder.mkdir(parents=True)
    old = kf.write(vllm.folder / "rank0.1.pt.trace.json.gz", kf.document([kf.step(1, 1)]), written_ns=10**18)
    with attached(vllm, tmp_path) as tool:
        facts = captured(tool, tmp_path / "profile" / "decode")
    assert len(facts["files"]) == 1
    assert old.exists()


def test_all_ranks_are_read_and_the_front_end_is_none(vllm: Vllm, tmp_path: Path) -> None:
    def with_front_end() -> None:
        Vllm.store(vllm)
        name = f"{vllm.bodies[-1]['profile_prefix']}_box_12.async_llm.1.pt.trace.json.gz"
        kf.write(vllm.folder / name, kf.document([kf.step(vllm.begin_us, 1.0, "front end")]))

    vllm.ranks, vllm.store = 3, with_front_end  # type: ignore[method-assign]
    folder = tmp_path / "profile" / "decode"
    with attached(vllm, tmp_path) as tool:
        assert captured(tool, folder)["ranks"] == 3
    assert "front end" in Timeline.read(folder / TIMELINE).names
    assert sorted(Timeline.read(folder / TIMELINE).devices) == [0, 1, 2]


# -- the bound of its clock


def test_requests_bound_the_clock(vllm: Vllm, tmp_path: Path) -> None:
    folder = tmp_path / "profile" / "decode"
    with attached(vllm, tmp_path) as tool:
        asked = time.time_ns()
        tool.start("decode", folder, Bounds())
        tool.stop()
        took = time.time_ns() - asked
        tool.collect(folder)
    alignment = Timeline.read(folder / TIMELINE).alignment
    assert alignment is not None
    assert alignment.residual_ns is not None
    assert 0 <= alignment.residual_ns <= took
    assert alignment.reason is None


@pytest.mark.parametrize("lateness_s", [-30, 30])
def test_clock_of_another_machine_is_not_bounded(vllm: Vllm, tmp_path: Path, lateness_s: int) -> None:
    vllm.lateness_us = lateness_s * 1e6
    folder = tmp_path / "profile" / "decode"
    with attached(vllm, tmp_path) as tool:
        captured(tool, folder)
    alignment = Timeline.read(folder / TIMELINE).alignment
    assert alignment is not None
    assert alignment.residual_ns is None
    assert alignment.reason is not None
    off_ms = float(alignment.reason.split(" lie ")[1].split(" ms")[0])
    assert abs(off_ms - 30_000) < 5000


def test_capture_that_ended_by_itself_is_still_stopped(vllm: Vllm, tmp_path: Path) -> None:
    folder = tmp_path / "profile" / "decode"
    with attached(vllm, tmp_path) as tool:
        tool.start("decode", folder, Bounds(1.0, 5))
        vllm.store()  # after five steps, the session stays
        time.sleep(0.05)
        vllm.store = lambda: None  # type: ignore[method-assign]
        tool.stop()
        tool.collect(folder)
    assert not vllm.running
    alignment = Timeline.read(folder / TIMELINE).alignment
    assert alignment is not None
    assert alignment.residual_ns is not None  # an end before the stop was asked for is no contradiction


# -- answers


def test_capture_left_running_is_stopped_first(vllm: Vllm, tmp_path: Path) -> None:
    vllm.running, vllm.begin_us = True, time.time_ns() / 1000
    vllm.bodies.append({"profile_prefix": "somebody"})
    with attached(vllm, tmp_path) as tool:
        facts = captured(tool, tmp_path / "profile" / "decode")
    assert all(name.startswith("decode-") for name in facts["files"])
    assert any(path.name.startswith("somebody") for path in vllm.folder.iterdir())


def test_capture_that_nothing_stops(vllm: Vllm, tmp_path: Path) -> None:
    vllm.answers["POST", "/start_profile"] = lambda _: CONFLICT
    with attached(vllm, tmp_path) as tool, pytest.raises(ProfileError, match=r"409.*already active"):
        tool.start("decode", tmp_path, Bounds())


def test_server_without_routes(vllm: Vllm, tmp_path: Path) -> None:
    vllm.answers["OPTIONS", "/start_profile"] = lambda _: json_response(404, {"detail": "Not Found"})
    advice = r"has no /start_profile: start vLLM with --profiler-config"
    with pytest.raises(ProfileError, match=advice), attached(vllm, tmp_path):
        pass
    assert vllm.bodies == []


def test_routes_are_found_without_starting_anything(vllm: Vllm, tmp_path: Path) -> None:
    with attached(vllm, tmp_path):
        assert not vllm.running


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_server_error_is_quoted_in_one_line(vllm: Vllm, tmp_path: Path, path: str) -> None:
    vllm.answers["POST", path] = lambda _: response(500, b"the profiler\n broke")
    with attached(vllm, tmp_path) as tool, pytest.raises(ProfileError, match="500: the profiler broke") as told:
        captured(tool, tmp_path / "profile" / "decode")
    assert "\n" not in str(told.value)


def test_profiler_that_never_stops_is_given_up_at_its_limit(vllm: Vllm, tmp_path: Path) -> None:
    vllm.answers["POST", "/stop_profile"] = lambda _: [Hang()]
    folder = tmp_path / "profile" / "decode"
    with attached(vllm, tmp_path, patience="300ms") as tool:
        tool.start("decode", folder, Bounds())
        begin = time.monotonic()
        with pytest.raises(ProfileError, match=r"/stop_profile within 0.3 s \(option patience"):
            tool.stop()
        assert time.monotonic() - begin < 5
        with pytest.raises(ProfileError, match="stored no trace"):
            tool.collect(folder)


def test_profiler_that_never_starts_is_given_up_at_its_limit(vllm: Vllm, tmp_path: Path) -> None:
    vllm.answers["POST", "/start_profile"] = lambda _: [Hang()]
    with attached(vllm, tmp_path, patience="300ms") as tool, pytest.raises(ProfileError, match=r"within 0.3 s"):
        tool.start("decode", tmp_path, Bounds())


def test_server_that_dies_meanwhile(vllm: Vllm, tmp_path: Path) -> None:
    vllm.answers["POST", "/stop_profile"] = lambda _: [Reset()]
    with attached(vllm, tmp_path) as tool, pytest.raises(ProfileError, match="did not answer /stop_profile"):
        captured(tool, tmp_path / "profile" / "decode")


def test_nothing_there(tmp_path: Path, free_port: int) -> None:
    tool = TorchTool(tmp_path, {})
    with pytest.raises(ProfileError, match="did not answer /start_profile"):
        tool.attach(there(f"http://127.0.0.1:{free_port}"))


def test_stop_without_start(vllm: Vllm, tmp_path: Path) -> None:
    with attached(vllm, tmp_path) as tool:
        with pytest.raises(ProfileError, match="no capture was started"):
            tool.stop()
        captured(tool, tmp_path / "profile" / "decode")
        with pytest.raises(ProfileError, match="no capture was started"):
            tool.stop()


def test_start_without_attach(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no server is attached"):
        TorchTool(tmp_path, {}).start("decode", tmp_path, Bounds())


# -- what is left behind


def test_collect_of_another_window(vllm: Vllm, tmp_path: Path) -> None:
    with attached(vllm, tmp_path) as tool, pytest.raises(ProfileError, match="nothing was captured"):
        tool.collect(tmp_path)


def test_no_trace_is_explained_by_the_servers_log(vllm: Vllm, tmp_path: Path) -> None:
    vllm.store = lambda: None  # type: ignore[method-assign]
    log = tmp_path / "server.log"
    log.write_text(
        "INFO all is well\nWARNING Failed to stop profiler: [Errno 28] No space left on device: 'x'\nINFO on\n"
    )
    with ScriptedServer(vllm) as server:
        tool = TorchTool(tmp_path / "profile", {})
        tool.attach(there(server.url, log=log))
        with pytest.raises(ProfileError, match=r"no trace in .*: Failed to stop profiler: .* No space left on device"):
            captured(tool, tmp_path)


def test_unfinished_trace_stays_for_inspection(vllm: Vllm, tmp_path: Path) -> None:
    def broken() -> None:
        Vllm.store(vllm)
        for path in vllm.folder.glob("*.gz"):
            path.write_bytes(path.read_bytes()[:200])

    vllm.store = broken  # type: ignore[method-assign]
    folder = tmp_path / "profile" / "decode"
    with attached(vllm, tmp_path) as tool, pytest.raises(ProfileError, match="not a whole trace"):
        captured(tool, folder)
    assert len(list(folder.glob("*.pt.trace.json.gz"))) == 1
    assert not (folder / TIMELINE).exists()


def test_empty_trace(vllm: Vllm, tmp_path: Path) -> None:
    def empty() -> None:
        vllm.folder.mkdir(exist_ok=True)
        name = f"{vllm.bodies[-1]['profile_prefix']}_rank0.1.pt.trace.json"
        kf.write(vllm.folder / name, kf.document([], stated=(1e15, 1.1e15)))

    vllm.store = empty  # type: ignore[method-assign]
    with attached(vllm, tmp_path) as tool, pytest.raises(ProfileError, match="the engine made no step"):
        captured(tool, tmp_path / "profile" / "decode")


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_disk_full_when_the_trace_is_moved(vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "move", full_disk)
    with attached(vllm, tmp_path) as tool, pytest.raises(ProfileError, match=r"cannot be moved.*No space left"):
        captured(tool, tmp_path / "profile" / "decode")


def test_disk_full_when_the_timeline_is_written(vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeline, "write", full_disk)
    with attached(vllm, tmp_path) as tool, pytest.raises(ProfileError, match=r"cannot be written: No space left"):
        captured(tool, tmp_path / "profile" / "decode")


# -- how the server is launched, and where an attached one stores


def test_flags_of_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = flag_arguments(TorchTool(Path("run", "profile"), {"memory": "yes"}).launch().flags)
    assert "--profiler-config.profiler=torch" in words
    assert f"--profiler-config.torch_profiler_dir={tmp_path}/run/profile/torch" in words
    assert "--profiler-config.torch_profiler_with_stack=false" in words
    assert "--profiler-config.torch_profiler_with_memory=true" in words
    assert "--profiler-config.ignore_frontend=true" in words


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"stack": "yes"}, 'did you mean "stacks"'),
        ({"stacks": "1"}, "expected yes or no"),
        ({"patience": "soon"}, "patience"),
        ({"patience": "0s"}, "more than 0s"),
    ],
)
def test_bad_options(tmp_path: Path, settings: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        TorchTool(tmp_path, settings)


def test_attached_server_needs_a_folder(vllm: Vllm, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"--profile-option dir=FOLDER"), attached(vllm, tmp_path, ours=False):
        pass


def test_attached_server_with_a_folder(vllm: Vllm, tmp_path: Path) -> None:
    vllm.folder = tmp_path / "traces"
    vllm.folder.mkdir()
    with attached(vllm, tmp_path, ours=False, dir=str(vllm.folder)) as tool:
        assert captured(tool, tmp_path / "profile" / "decode")["ranks"] == 1


def test_attached_server_with_a_folder_that_is_not_here(vllm: Vllm, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(ProfileError, match="no such folder"), attached(vllm, tmp_path, ours=False, dir=nowhere):
        pass


def test_attached_server_cannot_be_given_flags(vllm: Vllm, tmp_path: Path) -> None:
    told = "stacks is decided when vLLM is started"
    with pytest.raises(ProfileError, match=told), attached(vllm, tmp_path, ours=False, stacks="yes"):
        pass
