"""Nsight Compute: one kernel of the server, replayed pass by pass, against the peaks of the GPU."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from servebench.errors import ServebenchError, UsageError
from servebench.profile.tool import Bounds, Launch, ProfileError, Tool
from servebench.profile.tools.cuda_program import CudaProgram, around
from servebench.profile.tools.routes import Routes
from servebench.profile.tools.top_kernels import function_name, longest_kernel

if TYPE_CHECKING:
    from servebench.profile.server import Server

NCU = CudaProgram("ncu", "Nsight Compute", ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"))
SECTIONS = (
    "SpeedOfLight",
    "SpeedOfLight_RooflineChart",
    "MemoryWorkloadAnalysis",
    "Occupancy",
    "LaunchStats",
    "WarpStateStats",
)
TABLE = "ncu.csv"
ROUTES_S = 300.0  # a step takes minutes where one of its kernels is replayed
NO_PERMISSION = "ERR_NVGPUCTRPERM"
ADVICE = "start vLLM with --profiler-config.profiler cuda, or add --profile-option within=start"


class NcuTool(Tool):
    """Launches the server under ncu, which replays the first launches of the chosen kernel in the window.

    All times of such a run are meaningless: a replayed kernel takes some forty passes, each with its memory restored.
    """

    name = "ncu"
    options: ClassVar[Mapping[str, str]] = {
        "kernel": "a regular expression of the names of the kernels' functions",
        "timeline": "a profiler's file, whose longest kernel is taken where no kernel is given",
        "count": "launches that are replayed, 5 by default",
        "skip": "launches of that name that are passed over before, 0 by default",
        "within": "window (by vLLM's profile routes; the default) or start (from the server's start on)",
    }
    windows: ClassVar[tuple[str, ...]] = ("decode",)
    bounds: ClassVar[Bounds] = Bounds(seconds=60.0)

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._count = _whole("count", settings.get("count", "5"), 1)
        self._skip = _whole("skip", settings.get("skip", "0"), 0)
        self._in_window = _choice("within", settings.get("within", "window"), ("window", "start")) == "window"
        self._kernel = _kernel(settings)
        self._routes: Routes | None = None

    def check(self) -> str:
        return NCU.version(NCU.find())

    def launch(self) -> Launch:
        self.folder.mkdir(parents=True, exist_ok=True)
        return Launch(
            prefix=around(NCU.find(), self.arguments(), self._pid_file),
            flags={"profiler-config.profiler": "cuda"} if self._in_window else {},
            env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
            after_exit=True,
        )

    def arguments(self) -> tuple[str, ...]:
        """Arguments of ncu, before the server's command."""
        sections = [word for section in SECTIONS for word in ("--section", section)]
        return (
            *("--target-processes", "all"),
            *("--profile-from-start", "off" if self._in_window else "on"),
            *("--graph-profiling", "node"),
            *("--kernel-name", f"regex:{self._kernel}"),
            *("--launch-skip", str(self._skip), "--launch-count", str(self._count)),
            *sections,
            *("--csv", "--page", "raw", "--print-units", "base"),
            *("--log-file", str(self._table.resolve()).replace("%", "%%")),
        )

    @property
    def _table(self) -> Path:
        return self.folder / TABLE

    @property
    def _pid_file(self) -> Path:
        return self.folder / "ncu-server.pid"

    def attach(self, server: Server) -> None:
        if not server.ours:
            raise ProfileError("ncu cannot attach to a running server: let servebench launch it (no --endpoint)")
        if self._in_window:
            self._routes = Routes(server, ADVICE, ROUTES_S)
            self._routes.check()

    def start(self, window: str, folder: Path, bounds: Bounds) -> None:
        if self._routes is not None:
            self._routes.start({} if bounds.steps is None else {"max_iterations": bounds.steps})

    def stop(self) -> None:
        if self._routes is not None:
            self._routes.stop()

    def close(self) -> None:
        self._pid_file.unlink(missing_ok=True)

    def collect(self, folder: Path) -> dict[str, Any]:
        from servebench.profile.readers.ncu_csv import read_ncu

        if not self._table.is_file():
            raise ProfileError(f"ncu has written no {self._table}: see the server's log")
        try:
            rows = read_ncu(self._table)
        except ProfileError as error:
            raise ProfileError(_explained(str(error), self._kernel)) from None
        shutil.copy(self._table, folder / TABLE)
        return {
            "files": [TABLE],
            "tool": self.name,
            "version": self.check(),
            "kernel_replay": {"kernel": self._kernel, "rows": rows},
            "notes": ["kernels were replayed: no time of this run says anything of the server's speed"],
        }


def _explained(reason: str, kernel: str) -> str:
    if NO_PERMISSION in reason:
        return (
            "the driver lets only administrators read the GPU's counters (ERR_NVGPUCTRPERM): run as root, or load the "
            "module nvidia with NVreg_RestrictProfilingToAdminUsers=0"
        )
    return f"{reason} (kernel={kernel})"


def _kernel(settings: Mapping[str, str]) -> str:
    """The expression that was given, or one of the longest kernel in the timeline that was given."""
    if "kernel" in settings:
        try:
            re.compile(settings["kernel"])
        except re.error as error:
            raise UsageError(f"--profile-option kernel={settings['kernel']}: {error}") from None
        return settings["kernel"]
    if "timeline" not in settings:
        raise UsageError(
            "ncu replays one kernel: --profile-option kernel=REGEX, or timeline=FILE for the longest one of a capture"
        )
    return f"^{re.escape(_longest(Path(settings['timeline'])))}$"


def _longest(path: Path) -> str:
    from servebench.profile.readers import open_file
    from servebench.profile.timeline import Timeline

    try:
        timeline = open_file(path)
    except ServebenchError as error:
        raise UsageError(f"--profile-option timeline={path}: {error}") from None
    kernel = longest_kernel(timeline) if isinstance(timeline, Timeline) else None
    if kernel is None:
        raise UsageError(f"--profile-option timeline={path}: no kernel of a GPU is in it")
    return function_name(kernel)


def _whole(key: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"--profile-option {key}={text}: a whole number from {least}")
    return int(text)


def _choice(key: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise UsageError(f"--profile-option {key}={text}: {' or '.join(choices)}")
    return text
