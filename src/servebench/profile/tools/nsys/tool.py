"""Nsight Systems as a tool of a run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from servebench.profile.tool import TIMELINE, Bounds, Launch, ProfileError, Scalar, Tool
from servebench.profile.tools.nsys import reports, supervise
from servebench.profile.tools.nsys.command import last_words
from servebench.profile.tools.nsys.installation import Installation, find_nsys
from servebench.profile.tools.nsys.options import MEANINGS, Options, has_gpu
from servebench.profile.tools.nsys.sessions import Session
from servebench.profile.tools.routes import Routes

if TYPE_CHECKING:
    from servebench.profile.server import Server

NO_GPU = "no NVIDIA GPU on this machine, so nothing of one is in the capture: OS-runtime calls and NVTX ranges only"
RANGES = ("--capture-range=cudaProfilerApi",)  # what vLLM's workers call
ADVICE = "start vLLM with --profiler-config.profiler cuda"
NAME = "capture"  # of a window's files, before their endings


class NsysTool(Tool):
    """NVIDIA Nsight Systems.

    In mode "session" the server is launched under `nsys launch`, and `nsys start` and `nsys stop` bracket each window
    while it runs on. In mode "range" it is launched under `nsys profile`, vLLM's profile routes bracket each window, to
    the step, and all reports are written when the server has ended.
    """

    name: ClassVar[str] = "nsys"
    options: ClassVar[Mapping[str, str]] = MEANINGS

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self.chosen = Options.read(self.settings, has_gpu())
        self._found: Installation | None = None
        self._session: Session | None = None
        self._server: Server | None = None
        self._windows: list[Path] = []  # folders, in the order of their captures
        self._naming = False  # whether vLLM names its steps now
        # a session is found through this folder: all of its commands and its server must agree on it
        self._shared = {"TMPDIR": tempfile.gettempdir()}

    def check(self) -> str:
        return self._nsys.version

    @property
    def _nsys(self) -> Installation:
        self._found = self._found or find_nsys()
        return self._found

    @property
    def _ranges(self) -> bool:
        return self.chosen.mode == "range"

    @property
    def pid_file(self) -> Path:
        """Holds the process id of the server itself, which is a descendant of the process that was launched."""
        return self.folder / "nsys-server.pid"

    def launch(self) -> Launch:
        self.folder.mkdir(parents=True, exist_ok=True)
        pid_file = str(self.pid_file.resolve())
        ours = (sys.executable, "-I", "-S", supervise.__file__, pid_file, str(self._nsys.path))
        flags: dict[str, Scalar] = {"profiler-config.profiler": "cuda"} if self.chosen.gpu else {}
        return Launch(
            prefix=(*ours, *self._command(), *supervise.SHELL, pid_file),
            flags=flags,
            env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn", **self._shared},
            after_exit=self._ranges,
        )

    def _command(self) -> tuple[str, ...]:
        if self._ranges:
            until = (*RANGES, "--capture-range-end=repeat", "--kill=none")
            output = str((self.folder / NAME).resolve()).replace("%", "%%")
            outputs = (f"--output={output}", "--force-overwrite=true")
            return ("profile", *outputs, *until, *self.chosen.launching, *self.chosen.collecting)
        self._session = Session.new(self._nsys.path, self._shared)
        return ("launch", f"--session-new={self._session.name}", *self.chosen.launching)

    def attach(self, server: Server) -> None:
        self._server = server
        if self._ranges:
            if not server.ours:
                raise ProfileError("nsys option mode=range needs a server that servebench launches")
            return
        if not server.ours:
            self._session = self._users_session()
        self._running.must_be_idle()

    def _users_session(self) -> Session:
        if self.chosen.session is None:
            raise ProfileError(
                "nsys cannot attach to a running server: launch it with `nsys launch --session-new NAME "
                f"{' '.join(self.chosen.launching)} ...` and add --profile-option session=NAME, or let servebench do it"
            )
        return Session(self._nsys.path, self.chosen.session, self._shared)

    @property
    def _running(self) -> Session:
        if self._session is None:
            raise ProfileError("nsys has no session: the server was not launched for it")
        return self._session

    def start(self, window: str, folder: Path, bounds: Bounds) -> None:
        if self._ranges:
            self._routes.start({} if bounds.steps is None else {"max_iterations": bounds.steps})
        else:
            self._start_collecting(folder)
        self._windows.append(folder)

    @property
    def _attached(self) -> Server:
        if self._server is None:
            raise ProfileError("nsys is not attached to a server")
        return self._server

    def _start_collecting(self, folder: Path) -> None:
        try:
            self._running.start(folder / NAME, self.chosen.collecting)
        except ProfileError as error:
            raise ProfileError(f"{error}{reports.full_disk(Path(self._shared['TMPDIR']))}") from None
        self._name_steps()

    @property
    def _routes(self) -> Routes:
        return Routes(self._attached, ADVICE, self.chosen.limit_s)

    def _name_steps(self) -> None:
        """Have vLLM's workers name their steps, where they can; a timeline without the names is worth having, too."""
        if self.chosen.gpu and self._attached.engine == "vllm":
            with suppress(ProfileError):
                self._routes.start({})
                self._naming = True

    def stop(self) -> None:
        if self._ranges:
            self._routes.stop()
            return
        if self._naming:
            self._naming = False
            with suppress(ProfileError):
                self._routes.stop()
        self._stop_collecting(self._windows[-1])

    def _stop_collecting(self, folder: Path) -> None:
        try:
            said = self._running.stop(self.chosen.limit_s)
        except ProfileError as error:
            raise ProfileError(f"{error}{reports.full_disk(folder)}") from None
        report = folder / f"{NAME}{reports.SUFFIX}"
        if not report.is_file():
            reports.remove_raw(said)
            raise ProfileError(f"nsys wrote no {report.name}: {last_words(said)}{reports.full_disk(folder)}")

    def collect(self, folder: Path) -> dict[str, Any]:
        report = self._report(folder)
        sqlite = reports.export(self._nsys.path, report, self.chosen.limit_s)
        timeline = reports.to_timeline(sqlite)
        if not len(timeline):
            raise ProfileError(f"nsys captured nothing of {','.join(self.chosen.trace)}: {self._why_empty()}")
        facts: dict[str, Any] = {"files": [report.name, sqlite.name, TIMELINE], "tool": self.name}
        facts |= {"version": self._nsys.version, "mode": self.chosen.mode, "trace": list(self.chosen.trace)}
        return facts | {"rows": len(timeline), "note": None if self.chosen.gpu else NO_GPU}

    def _report(self, folder: Path) -> Path:
        if not self._ranges:
            report = folder / f"{NAME}{reports.SUFFIX}"
            if not report.is_file():
                raise ProfileError(f"there is no {report.name} in {folder}: the capture did not end well")
            return report
        number = 1 + self._windows.index(folder)
        written = self.folder / f"{NAME}.{number}{reports.SUFFIX}"
        return reports.await_report(written, self.chosen.limit_s).replace(folder / f"{NAME}{reports.SUFFIX}")

    def _why_empty(self) -> str:
        if not self.chosen.gpu:
            return "no NVIDIA GPU is here, and the server has no NVTX ranges; add --profile-option trace=nvtx,osrt"
        return "the server neither used the GPU nor marked a range in the window"

    def close(self) -> None:
        """After the server was told to end: leave no session of ours and no file that only mattered while it ran."""
        if self._session is not None and self._session.name != self.chosen.session:
            self._session.shut_down()
            self._session = None
        self.pid_file.unlink(missing_ok=True)
