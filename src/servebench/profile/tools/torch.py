"""vLLM's torch profiler, through its routes: one trace of each worker for each window."""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from servebench.errors import UsageError
from servebench.profile.tool import TIMELINE, Bounds, Launch, ProfileError, Tool
from servebench.profile.tools.routes import Routes
from servebench.profile.tools.torch_bracket import Instants, bounded
from servebench.profile.tools.torch_folder import stated_folder
from servebench.units import parse_duration

if TYPE_CHECKING:
    from servebench.profile.server import Server
    from servebench.profile.timeline import Timeline

ADVICE = "start vLLM with --profiler-config.profiler torch --profiler-config.torch_profiler_dir FOLDER"
SWITCHES = {  # options that are flags of vLLM, which only a launch can set
    "stacks": "torch_profiler_with_stack",
    "shapes": "torch_profiler_record_shapes",
    "memory": "torch_profiler_with_memory",
}
TRACE = re.compile(r"\.pt\.trace\.json(\.gz)?$")
FRONT_END = ".async_llm."
FAILURE = re.compile(r"Failed to (?:start|stop) profiler: .+")
PREFIX_LENGTH = 100  # vLLM takes up to 128


@dataclass(slots=True)
class _Capture:
    """One window's.

    Attributes:
        prefix: what the names of its files begin with.
        by_steps: whether the profiler counts the steps.
    """

    prefix: str
    by_steps: bool
    instants: Instants = field(default_factory=Instants)


class TorchTool(Tool):
    """Drives the profiler of a vLLM that was started with one. Its workers stand still while they store a trace."""

    name = "torch"
    bounds: ClassVar[Bounds] = Bounds(seconds=5.0, steps=40)  # some 800 operators a step, a tenth of a second to store
    options: ClassVar[Mapping[str, str]] = {
        "stacks": "yes records Python's stacks, too: a stop takes several times as long; no by default",
        "shapes": "yes records the shapes of the operators' tensors; no by default",
        "memory": "yes records each allocation, and so the peak of memory; no by default",
        "frontend": "yes also stores a trace of vLLM's front end, for a viewer of traces; no by default",
        "dir": "the folder in which an attached server stores its traces: its torch_profiler_dir",
        "patience": "how long a start or a stop may take, 300s by default",
    }

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._switches = {key: _switch(key, settings.get(key, "no")) for key in (*SWITCHES, "frontend")}
        self._patience_s = _patience(settings.get("patience", "300s"))
        self._own = folder.absolute() / "torch"
        self._traces = Path(settings["dir"]) if "dir" in settings else self._own
        self._log: Path | None = None
        self._routes: Routes | None = None
        self._captures: dict[Path, _Capture] = {}
        self._running: _Capture | None = None

    def check(self) -> str:
        """It comes with the server's vLLM: which version, its traces tell."""
        return "the server's own"

    def launch(self) -> Launch:
        config: dict[str, str] = {
            "profiler": "torch",
            "torch_profiler_dir": str(self._traces.absolute()),
            "torch_profiler_dump_cuda_time_total": "false",  # a table for people, as slow to make as the trace
            "ignore_frontend": _word(not self._switches["frontend"]),
        }
        config |= {flag: _word(self._switches[key]) for key, flag in SWITCHES.items()}
        return Launch(flags={f"profiler-config.{key}": value for key, value in config.items()})

    def attach(self, server: Server) -> None:
        if not server.ours and (given := [key for key in self._switches if key in self.settings]):
            raise ProfileError(f"{given[0]} is decided when vLLM is started: {ADVICE} and its other options")
        routes = Routes(server, ADVICE, self._patience_s)
        routes.check()
        self._traces = self._place(server)
        self._log = server.log_path
        self._routes = routes

    def _place(self, server: Server) -> Path:
        """Where this server stores its traces."""
        if "dir" in self.settings:
            if not self._traces.is_dir():
                raise ProfileError(f"dir={self._traces}: no such folder on this machine")
            return self._traces
        stated = stated_folder(server.pid) if server.pid is not None else None
        if stated is not None or server.ours:
            return stated or self._traces
        raise ProfileError(
            "it is not known where the server stores its traces: give --profile-option dir=FOLDER, its "
            "torch_profiler_dir as this machine sees it"
        )

    def start(self, window: str, folder: Path, bounds: Bounds) -> None:
        if self._routes is None:
            raise ProfileError("no server is attached")
        prefix = f"{_plain(window)}-{secrets.token_hex(3)}"
        capture = _Capture(prefix, by_steps=bounds.steps is not None)
        body = {"profile_prefix": prefix} | ({"max_iterations": bounds.steps} if bounds.steps else {})
        capture.instants.start_asked = time.time_ns()
        self._routes.start(body)
        capture.instants.started = time.time_ns()
        self._captures[folder] = self._running = capture

    def stop(self) -> None:
        capture, self._running = self._running, None
        if capture is None or self._routes is None:
            raise ProfileError("no capture was started")
        capture.instants.stop_asked = time.time_ns()
        try:
            self._routes.stop()
        except ProfileError as error:
            raise ProfileError(f"{error} (option patience; fewer steps are stored faster)") from None
        capture.instants.stopped = time.time_ns()

    def collect(self, folder: Path) -> dict[str, Any]:
        capture = self._captures.get(folder)
        if capture is None:
            raise ProfileError("nothing was captured")
        files = self._taken(capture, folder)
        traces = [path for path in files if TRACE.search(path.name)]
        if not traces:
            raise ProfileError(f"the server stored no trace in {self._traces}: {self._why()}")
        timeline = _read(traces, capture)
        _write(timeline, folder / TIMELINE)
        instants = capture.instants
        return {
            "files": [path.name for path in files],
            "tool": self.name,
            "version": f"vLLM {timeline.facts.get('vllm_version', 'of unknown version')}",
            "bytes": sum(path.stat().st_size for path in files),
            "ranks": sum(FRONT_END not in path.name for path in traces),
            "start_s": instants.start_s,
            "stop_s": instants.stop_s,
        }

    def _taken(self, capture: _Capture, folder: Path) -> list[Path]:
        """Move what the server stored for a window into the window's folder; traces by the name that was asked for.

        A vLLM that does not know names for its files is told by their date.
        """
        try:
            found = sorted(self._traces.glob(f"{capture.prefix}_*")) or self._since(capture.instants.start_asked)
            moved = [Path(shutil.move(path, folder / path.name)) for path in found]
        except OSError as error:
            raise ProfileError(f"the traces cannot be moved to {folder}: {error.strerror or error}") from None
        self._tidy()
        return moved

    def _tidy(self) -> None:
        """Remove the folder that was given to a launch once nothing is left in it; vLLM makes it anew."""
        if self._traces == self._own:
            with suppress(OSError):
                self._own.rmdir()

    def _since(self, instant_ns: int) -> list[Path]:
        traces = [path for path in self._traces.glob("*.pt.trace.json*") if path.stat().st_mtime_ns >= instant_ns]
        return sorted(traces)

    def _why(self) -> str:
        """What the server's log says of its profiler."""
        from servebench.engine.vllm_log import read_log

        found = FAILURE.findall(read_log(self._log)) if self._log else []
        return found[-1] if found else "is that its torch_profiler_dir, and does it run on this machine?"


def _read(traces: list[Path], capture: _Capture) -> Timeline:
    from servebench.profile.readers.kineto import read_ranks

    try:
        timeline = read_ranks(traces)
    except (ValueError, OSError) as error:
        raise ProfileError(str(error)) from None
    if not len(timeline):
        raise ProfileError("the trace is empty: the engine made no step in the window")
    return bounded(timeline, capture.instants, capture.by_steps)


def _write(timeline: Timeline, path: Path) -> None:
    try:
        timeline.write(path)
    except OSError as error:
        raise ProfileError(f"{path} cannot be written: {error.strerror or error}") from None


def _plain(window: str) -> str:
    """The window's name as vLLM allows it in the name of a file."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", window).strip("._-")[:PREFIX_LENGTH] or "window"


def _switch(key: str, value: str) -> bool:
    if value not in ("yes", "no"):
        raise UsageError(f'--profile-option {key}: "{value}": expected yes or no')
    return value == "yes"


def _word(value: bool) -> str:
    return "true" if value else "false"


def _patience(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--profile-option patience: {error}") from None
    if seconds <= 0:
        raise UsageError(f'--profile-option patience: "{text}": expected more than 0s')
    return seconds
