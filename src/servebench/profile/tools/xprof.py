"""The profiler port of a JAX or XLA server, captured for the window."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from servebench.errors import UsageError
from servebench.profile.timeline import Alignment, Kind, Timeline
from servebench.profile.tool import TIMELINE, Bounds, Launch, ProfileError, Tool
from servebench.profile.tools import profiler_service
from servebench.profile.tools.grpc_call import Call, GrpcError

if TYPE_CHECKING:
    from servebench.profile.server import Server

VERSION = "profiler service v1"
STARTED_S = 0.2  # a service that cannot capture says so at once
SPARE_S = 2.0  # by which a capture outlives its window if it is never told to stop
STORED_S = 120.0
PLACE = Path("plugins", "profile")  # where XProf and TensorBoard look in a log directory
MISSING = (
    "xprof needs the port of the server's profiler: --profile-option port=NUMBER (a JAX server opens it with "
    "jax.profiler.start_server(NUMBER), vLLM on TPU with USE_JAX_PROFILER_SERVER=1 and JAX_PROFILER_SERVER_PORT, "
    "JetStream with --enable_jax_profiler --jax_profiler_port)"
)


@dataclass(slots=True)
class _Capture:
    """One window's; instants in ns of our CLOCK_REALTIME."""

    session: str
    call: Call
    asked_ns: int
    stored_ns: int = 0


class XprofTool(Tool):
    """Drives the profiler service of a server that runs JAX, on TPU, GPU or CPU. The server needs no other package."""

    name = "xprof"
    options: ClassVar[Mapping[str, str]] = {
        "port": "the port of the server's profiler",
        "host": "the host that listens on it; the server's own by default",
        "python": "1 traces every Python call of the server, too (slow); 0 by default",
    }

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._levels = profiler_service.Levels(python=_switch(settings.get("python", "0")))
        self._host = settings.get("host", "127.0.0.1")
        self._local = False
        self._captures: dict[Path, _Capture] = {}
        self._running: Path | None = None

    def check(self) -> str:
        self._port()
        return VERSION

    def launch(self) -> Launch:
        """The environment by which vLLM on TPU opens the port; others ignore it."""
        return Launch(env={"USE_JAX_PROFILER_SERVER": "1", "JAX_PROFILER_SERVER_PORT": str(self._port())})

    def attach(self, server: Server) -> None:
        self._host = self.settings.get("host") or urlsplit(server.url).hostname or "127.0.0.1"
        self._local = server.pid is not None
        try:
            profiler_service.terminate(self._address, profiler_service.UNKNOWN_SESSION)
        except (GrpcError, TimeoutError) as error:
            raise ProfileError(f"no JAX profiler answers there: {error or 'no answer'}. {MISSING}") from None

    def start(self, window: str, folder: Path, bounds: Bounds) -> None:
        session = f"{window}_{time.strftime('%Y_%m_%d_%H_%M_%S')}"
        root = str((folder / PLACE).resolve())
        message = profiler_service.request(session, self._host, root, bounds.seconds + SPARE_S, self._levels)
        if self._running is not None:  # a server has one capture at a time
            self.close()
            time.sleep(STARTED_S)  # the service looks once a millisecond whether someone still waits
        asked_ns = time.time_ns()
        try:
            call = profiler_service.capture(self._address, message, bounds.seconds + STORED_S)
        except GrpcError as error:
            raise ProfileError(f"the server's profiler did not start: {error}") from None
        if refusal := _refusal(call):
            call.close()
            raise ProfileError(f"the server's profiler did not start: {refusal}")
        self._captures[folder] = _Capture(session, call, asked_ns)
        self._running = folder

    def stop(self) -> None:
        folder, self._running = self._running, None
        if folder is None:
            raise ProfileError("no capture runs")
        capture = self._captures[folder]
        try:
            with capture.call:
                profiler_service.terminate(self._address, capture.session)
                space = profiler_service.captured(capture.call.answer(STORED_S))
        except TimeoutError:
            raise ProfileError(f"the server's profiler has not stopped in {STORED_S:g} s") from None
        except (GrpcError, ValueError) as error:
            raise ProfileError(f"the server's profiler gave no capture: {error}") from None
        capture.stored_ns = time.time_ns()
        if space is not None:
            _store(folder / PLACE / capture.session / f"{self._host}.xplane.pb", space)

    def close(self) -> None:
        """Hang up on a capture that was never stopped, which ends it."""
        if self._running is not None:
            self._captures.pop(self._running).call.close()
            self._running = None

    def collect(self, folder: Path) -> dict[str, Any]:
        from servebench.profile.readers.xplane import read_xplane

        files = sorted(folder.glob(f"{PLACE}/*/*.xplane.pb"))
        if not files:
            raise ProfileError(f"the server stored the capture on its own machine, not in {folder / PLACE}")
        timeline = read_xplane(files[-1])
        if not len(timeline):
            raise ProfileError("the capture is empty: the server ran no JAX code in the window")
        if folder in self._captures:
            timeline = _aligned(timeline, self._captures[folder], self._local)
        timeline.write(folder / TIMELINE)
        return {
            "files": [str(file.relative_to(folder)) for file in files],
            "tool": "xprof",
            "version": VERSION,
            "rows": len(timeline),
            "accelerator_profile": {
                "log_directory": "this window's folder, for `xprof --logdir` and `tensorboard --logdir`",
                "steps": _steps(timeline),
            },
        }

    @property
    def _address(self) -> tuple[str, int]:
        return self._host, self._port()

    def _port(self) -> int:
        text = self.settings.get("port")
        if text is None:
            raise UsageError(MISSING)
        if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 65536:
            raise UsageError(f"--profile-option port={text}: not a port (1 to 65535)")
        return int(text)


def _switch(text: str) -> int:
    if text not in ("0", "1"):
        raise UsageError(f"--profile-option python={text}: 0 or 1")
    return int(text)


def _refusal(call: Call) -> str | None:
    """Why a capture that was just asked for has ended; None while it runs."""
    try:
        call.answer(STARTED_S)
    except TimeoutError:
        return None
    except GrpcError as error:
        return str(error)
    return "it ended the capture as soon as it began"


def _store(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise ProfileError(f"the capture cannot be stored: {error}") from None


def _steps(timeline: Timeline) -> list[dict[str, Any]]:
    """The steps that the server marked, by name: how many, their median and longest, ms."""
    found = []
    for name in timeline.facts["step_names"]:
        rows = timeline.of_kind(Kind.RANGE) & (timeline.name == timeline.names.index(name))
        ms = (timeline.end[rows] - timeline.start[rows]) / 1e6
        found.append({"name": name, "n": int(ms.size), "p50_ms": float(np.median(ms)), "max_ms": float(ms.max())})
    return found


def _aligned(timeline: Timeline, capture: _Capture, local: bool) -> Timeline:
    """The timeline with what bounds the difference between the server's clock and ours.

    A server on this machine reads the clock that we read. Another one began after it was asked to and had ended when it
    answered: its clock is ahead by at most the delay with which it seems to have begun, and behind by at most the time
    that its answer seems to have taken.
    """
    if timeline.alignment is None:
        return timeline
    if local:
        method, residual = "the server and this client read one CLOCK_REALTIME", 0
    else:
        began, ended = timeline.span
        method = "the server's CLOCK_REALTIME, bounded by when it was asked to begin and when it had answered"
        residual = max(abs(began - capture.asked_ns), abs(capture.stored_ns - ended))
    return replace(timeline, alignment=Alignment(method, residual_ns=residual))
