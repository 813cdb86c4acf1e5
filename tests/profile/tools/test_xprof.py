from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from grpc_service import grpc_service
from servebench.errors import UsageError
from servebench.profile.readers.wire_format import field as encoded
from servebench.profile.readers.wire_format import scan, text
from servebench.profile.server import Server
from servebench.profile.timeline import Timeline
from servebench.profile.tool import Bounds, ProfileError
from servebench.profile.tools import xprof
from servebench.profile.tools.profiler_service import Levels, request
from servebench.profile.tools.xprof import XprofTool
from xplane_files import START, Event, write_space

STEPS = {"/host:CPU": {"python": [Event("serve", 0, 900, {"step_num": 4})]}}


@dataclass
class Service:
    """A profiler's service: a capture runs until it is terminated."""

    space: bytes
    emits: bool = True
    requests: list[dict[int, object]] = field(default_factory=list)
    terminated: threading.Event = field(default_factory=threading.Event)

    def __call__(self, path: str, message: bytes) -> bytes | tuple[int, str]:
        fields = {number: value if isinstance(value, int) else bytes(value) for number, value in scan(message)}
        if path == "/tensorflow.ProfilerService/Terminate":
            if self.requests and fields[1] == self.requests[-1][6]:
                self.terminated.set()
            return b""
        self.requests.append(fields)
        self.terminated.wait(10)
        if self.emits:
            return encoded(8, self.space)
        place = Path(text(memoryview(self.requests[-1][5]))) / self.requests[-1][6].decode()
        place.mkdir(parents=True)
        (place / "theirs.xplane.pb").write_bytes(self.space)
        return b""


@contextmanager
def service(
    tmp_path: Path, planes: dict[str, dict[str, list[Event]]], emits: bool = True
) -> Iterator[tuple[int, Service]]:
    space = write_space(tmp_path / "space", planes).read_bytes()
    handler = Service(space, emits)
    with grpc_service(handler) as port:
        yield port, handler


def server(pid: int | None = 1) -> Server:
    return Server("http://127.0.0.1:8000", "jax", pid, lambda timeout: httpx.Client(timeout=timeout))


def capture(tmp_path: Path, port: int, pid: int | None = 1, **settings: str) -> tuple[Path, dict[str, object]]:
    tool = XprofTool(tmp_path, {"port": str(port), **settings})
    folder = tmp_path / "decode"
    folder.mkdir()
    tool.check()
    tool.attach(server(pid))
    tool.start("decode", folder, Bounds(seconds=3))
    tool.stop()
    return folder, tool.collect(folder)


def test_a_window_is_a_log_directory_and_a_timeline(tmp_path: Path) -> None:
    with service(tmp_path, STEPS) as (port, handler):
        folder, facts = capture(tmp_path, port)
    (file,) = folder.glob("plugins/profile/decode_*/127.0.0.1.xplane.pb")
    assert facts["files"] == [str(file.relative_to(folder))]
    assert facts["tool"] == "xprof"
    assert facts["version"] == "profiler service v1"
    assert facts["rows"] == 1
    told = facts["accelerator_profile"]
    assert told["steps"] == [{"name": "serve", "n": 1, "p50_ms": 0.9, "max_ms": 0.9}]
    timeline = Timeline.read(folder / "timeline.parquet")
    assert timeline.start.tolist() == [START + 1000]
    assert timeline.alignment is not None and timeline.alignment.residual_ns == 0
    (asked,) = handler.requests
    assert asked[1] == 5000  # ms: the window, and two seconds to spare
    assert asked[5] == str(folder / "plugins" / "profile").encode()


def test_a_service_that_keeps_its_captures_stores_into_the_window(tmp_path: Path) -> None:
    with service(tmp_path, STEPS, emits=False) as (port, _):
        folder, facts = capture(tmp_path, port)
    assert [Path(each).name for each in facts["files"]] == ["theirs.xplane.pb"]
    assert (folder / "timeline.parquet").is_file()


def test_another_machine_has_another_clock(tmp_path: Path) -> None:
    with service(tmp_path, STEPS) as (port, _):
        folder, _ = capture(tmp_path, port, pid=None)
    alignment = Timeline.read(folder / "timeline.parquet").alignment
    assert alignment is not None and alignment.residual_ns is not None
    assert alignment.residual_ns > 10**9  # the fixture is of another year


def test_an_empty_capture_says_so(tmp_path: Path) -> None:
    empty = {"/host:CPU": {}}
    no_code = "the server ran no JAX code in the window"
    with service(tmp_path, empty) as (port, _), pytest.raises(ProfileError, match=no_code):
        capture(tmp_path, port)


def test_a_capture_that_was_stored_elsewhere_says_so(tmp_path: Path) -> None:
    tool = XprofTool(tmp_path, {"port": "1"})
    with pytest.raises(ProfileError, match="stored the capture on its own machine"):
        tool.collect(tmp_path)


def test_a_busy_profiler_says_so(tmp_path: Path) -> None:
    with grpc_service(lambda path, message: (13, "Another profiling session active.")) as port:
        tool = XprofTool(tmp_path, {"port": str(port)})
        with pytest.raises(ProfileError, match=r"did not start: .*Another profiling session active"):
            tool.start("decode", tmp_path, Bounds())
        with pytest.raises(ProfileError, match="no capture runs"):
            tool.stop()


def test_a_capture_that_ends_at_once_says_so(tmp_path: Path) -> None:
    with grpc_service(lambda path, message: b"") as port:
        tool = XprofTool(tmp_path, {"port": str(port)})
        with pytest.raises(ProfileError, match="it ended the capture as soon as it began"):
            tool.start("decode", tmp_path, Bounds())


def test_closing_ends_a_capture_that_was_never_stopped(tmp_path: Path) -> None:
    with service(tmp_path, STEPS) as (port, handler):
        tool = XprofTool(tmp_path, {"port": str(port)})
        tool.start("decode", tmp_path, Bounds())
        tool.close()
        tool.close()
        with pytest.raises(ProfileError, match="no capture runs"):
            tool.stop()
        handler.terminated.set()


def test_a_profiler_that_never_stops_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xprof, "STORED_S", 0.2)
    release = threading.Event()

    def handler(path: str, message: bytes) -> bytes:
        if path.endswith("Profile"):
            release.wait(10)
        return b""

    with grpc_service(handler) as port:
        tool = XprofTool(tmp_path, {"port": str(port)})
        tool.start("decode", tmp_path, Bounds())
        with pytest.raises(ProfileError, match=r"has not stopped in 0\.2 s"):
            tool.stop()
        release.set()


def test_a_full_disk_says_so(tmp_path: Path) -> None:
    (tmp_path / "plugins").write_text("in the way")
    with service(tmp_path, STEPS) as (port, _):
        tool = XprofTool(tmp_path, {"port": str(port)})
        tool.start("decode", tmp_path, Bounds())
        with pytest.raises(ProfileError, match="the capture cannot be stored"):
            tool.stop()


def test_no_profiler_says_how_to_open_one(tmp_path: Path, free_port: int) -> None:
    tool = XprofTool(tmp_path, {"port": str(free_port)})
    with pytest.raises(ProfileError, match=r"no JAX profiler answers there: .*refused.*jax\.profiler\.start_server"):
        tool.attach(server())


def test_the_port_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--profile-option port=NUMBER.*USE_JAX_PROFILER_SERVER.*JetStream"):
        XprofTool(tmp_path, {}).check()


@pytest.mark.parametrize(
    ("key", "value"), [("port", "0"), ("port", "99999"), ("port", "nine"), ("port", "²"), ("python", "yes")]
)
def test_settings_that_mean_nothing(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"--profile-option {key}={value}"):
        XprofTool(tmp_path, {"port": "9", key: value}).check()


def test_the_environment_that_opens_the_port_of_vllm_on_tpu(tmp_path: Path) -> None:
    launch = XprofTool(tmp_path, {"port": "9012"}).launch()
    assert launch.env == {"USE_JAX_PROFILER_SERVER": "1", "JAX_PROFILER_SERVER_PORT": "9012"}
    assert not launch.after_exit


def test_the_request_field_by_field() -> None:
    message = request("decode_1", "host-a", "/logs/plugins/profile", 7.5, Levels(host=2, device=1, python=1))
    fields = {number: value if isinstance(value, int) else bytes(value) for number, value in scan(message)}
    options = dict(scan(fields.pop(4)))
    assert fields == {1: 7500, 5: b"/logs/plugins/profile", 6: b"decode_1", 7: b"host-a", 9: 1}
    assert options == {5: 1, 2: 2, 3: 1, 4: 1, 7: 1, 9: 7500}
