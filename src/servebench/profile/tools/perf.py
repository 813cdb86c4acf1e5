"""perf: samples of what the server's processes do on the CPUs, as folded stacks and a flame graph."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from servebench.clock import Anchor
from servebench.errors import UsageError, did_you_mean
from servebench.profile.flame_graph import flame_svg
from servebench.profile.modules import PYTHON, interpreter_of
from servebench.profile.perf_program import GONE, environment, find_perf, perf_version, refusal
from servebench.profile.readers.perf_script import read_perf
from servebench.profile.server import Server
from servebench.profile.stacks import Stacks
from servebench.profile.tool import FLAME_GRAPH, STACKS, Bounds, Launch, ProfileError, Tool
from servebench.profile.tools.perf_counters import counters_of, stat_arguments
from servebench.profile.tools.recording import Recording

DATA = "perf.data"
LOG = "perf.log"
COUNTS = "perf-stat.csv"
COUNTS_LOG = "perf-stat.log"
CALL_GRAPHS = {"fp": "fp", "dwarf": "dwarf,32768", "lbr": "lbr"}
FREQUENCY = 99  # not 100: in step with nothing that a program does by the clock
TRIAL_S = 20.0
NAMED = "named by the interpreter"
NO_PYTHON = "no interpreter in the stacks"
PERF_MAP_SINCE = (3, 12)  # CPython that can name its functions to perf


@dataclass(slots=True)
class _Capture:
    """When a window was recorded: the clocks at its start and at its end."""

    start: Anchor
    stop: Anchor | None = None
    processes: int = 0


class PerfTool(Tool):
    """Samples the CPUs' stacks of a server that runs on this machine, by Linux's perf.

    Stacks are found by debug data: neither CPython nor torch's wheels keep frame pointers, so by those two thirds of a
    vLLM's samples end in the unknown. That costs 32 KiB a sample, and some seconds when it is collected. A Python from
    3.12 on that is launched for the run is told to name its functions to perf; older ones show the interpreter's own.
    """

    name: ClassVar[str] = "perf"
    options: ClassVar[Mapping[str, str]] = {
        "frequency": f"samples a second and CPU (default {FREQUENCY})",
        "call-graph": "how stacks are found: dwarf (debug data, default), fp (frame pointers: smaller files), lbr",
        "counters": "yes (default) or no: perf stat beside it",
        "python-frames": "yes (default) or no: a Python from 3.12 on, launched for the run, names its functions",
    }

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._frequency = _frequency(settings.get("frequency", str(FREQUENCY)))
        self._call_graph = _choice("call-graph", settings.get("call-graph", "dwarf"), CALL_GRAPHS)
        self._counters = _choice("counters", settings.get("counters", "yes"), ("yes", "no")) == "yes"
        self._python = _choice("python-frames", settings.get("python-frames", "yes"), ("yes", "no")) == "yes"
        self._program = ""
        self._version = ""
        self._server: Server | None = None
        self._recorder: Recording | None = None
        self._counter_run: Recording | None = None
        self._current: _Capture | None = None
        self._captures: dict[Path, _Capture] = {}

    def check(self) -> str:
        """Find perf and record a trial, of a process that ends at once. Returns perf's version."""
        self._program = find_perf()
        self._version = perf_version(self._program)
        with tempfile.TemporaryDirectory() as folder:
            command = [self._program, "record", *self._how(), "-o", f"{folder}/{DATA}", "--", "true"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=TRIAL_S)
            except subprocess.TimeoutExpired:
                raise UsageError(f"perf: a trial did not end within {TRIAL_S:.0f} s") from None
        if done.returncode:
            raise UsageError(f"perf: {refusal(done.stderr)}")
        return self._version

    def launch(self) -> Launch:
        """Ask CPython to name its functions to perf (-X perf); before 3.12 it does not know that variable."""
        return Launch(env={"PYTHONPERFSUPPORT": "1"} if self._python else {})

    def attach(self, server: Server) -> None:
        self._server = server
        self._living()

    def start(self, window: str, folder: Path, bounds: Bounds) -> None:
        try:
            self._begin(folder)
        except ProfileError as error:
            if GONE not in str(error):
                raise
            self._begin(folder)  # for one that ended while perf attached to it, perf refuses them all

    def _begin(self, folder: Path) -> None:
        pids = self._living()
        program = self._program or find_perf()
        target = ["-o", str(folder / DATA), "-p", ",".join(map(str, pids))]
        self._recorder = Recording(program, ["record", *self._how(), *target], folder / LOG)
        try:
            self._counter_run = self._counter(program, folder, pids) if self._counters else None
            self._recorder.enable()
        except BaseException:
            self.close()
            raise
        self._current = self._captures[folder] = _Capture(Anchor.now(), processes=len(pids))

    def stop(self) -> None:
        recorder, counter, capture = self._recorder, self._counter_run, self._current
        if recorder is None or capture is None:
            raise ProfileError("perf is not recording")
        capture.stop = Anchor.now()
        try:  # until they have ended, `close` must be able to end them
            if counter is not None:
                _stop_counting(counter)
            recorder.stop()
        finally:
            self._recorder = self._counter_run = self._current = None

    def close(self) -> None:
        for run in (self._recorder, self._counter_run):
            if run is not None:
                run.kill()
        self._recorder = self._counter_run = self._current = None

    def collect(self, folder: Path) -> dict[str, Any]:
        capture = self._captures.get(folder)
        stacks = self._stacks(folder, capture)
        counters = _counters(folder / COUNTS) if self._counters else None
        python = python_frames(stacks)
        stacks.write(folder / STACKS)
        svg = flame_svg(stacks, f"{folder.name}: on-CPU time", self._subtitle(stacks, capture))
        (folder / FLAME_GRAPH).write_text(svg, "utf-8")
        names = (DATA, COUNTS, STACKS, FLAME_GRAPH)
        return {
            "files": [name for name in names if (folder / name).exists()],
            "tool": self.name,
            "version": self._version or perf_version(find_perf()),
            "samples": stacks.total,
            "event": stacks.facts.get("event"),
            "frequency": self._frequency,
            "call_graph": self._call_graph,
            "processes": capture.processes if capture else None,
            "threads": [{"process": t.process, "name": t.name, "samples": n} for t, n in stacks.per_thread().items()],
            "python_frames": python,
            "counters": counters,
            "alignment": asdict(stacks.alignment) if stacks.alignment else None,
            "notes": [*stacks.notes, *_python_note(python)],
        }

    def _how(self) -> list[str]:
        """Arguments of `perf record`: -N keeps it from copying every library into a cache in the home folder."""
        rate = ["-F", str(self._frequency), "--call-graph", CALL_GRAPHS[self._call_graph]]
        return [*rate, "-k", "CLOCK_MONOTONIC", "-N"]

    def _living(self) -> list[int]:
        """The server's processes. Raises ProfileError if there are none here, or if they belong to another user."""
        if self._server is None:
            raise ProfileError("perf was not told which server to look at")
        pids = self._server.processes()
        if not pids:
            raise ProfileError(
                f"perf needs the server's processes, and those of {self._server.url} are not known to run on this "
                "machine: run servebench where the server runs, as its user or root, or let it launch the server"
            )
        if os.geteuid() and (foreign := [pid for pid in pids if _owner(pid) not in (os.geteuid(), None)]):
            text = f"the server's process {foreign[0]} is another user's: run servebench as that one, or as root"
            raise ProfileError(text)
        return pids

    def _counter(self, program: str, folder: Path, pids: list[int]) -> Recording | None:
        """Begin to count beside the samples; None if perf cannot, which `collect` then tells."""
        counter = Recording(program, stat_arguments(str(folder / COUNTS), pids), folder / COUNTS_LOG)
        try:
            counter.enable()
        except ProfileError:
            return None
        return counter

    def _stacks(self, folder: Path, capture: _Capture | None) -> Stacks:
        """The samples of the window. Raises ProfileError if there are none."""
        if not (folder / DATA).exists():
            raise ProfileError("perf recorded nothing")
        anchors = [each for each in (capture.start, capture.stop) if each] if capture else []
        try:
            stacks = read_perf(folder / DATA, anchors)
        except UsageError as error:
            raise ProfileError(str(error).replace(f"{folder}/", "")) from None  # a run may be moved
        if capture is None or capture.stop is None or stacks.alignment is None:
            return stacks
        inside = stacks.between(capture.start.realtime_ns, capture.stop.realtime_ns)
        if not inside.total:
            raise ProfileError("perf took no sample in the window: the server's processes did not run on a CPU")
        return inside

    def _subtitle(self, stacks: Stacks, capture: _Capture | None) -> str:
        told = f"{stacks.total} samples at {self._frequency} a second and CPU"
        if capture is not None and capture.stop is not None:
            told += f", in {(capture.stop.monotonic_ns - capture.start.monotonic_ns) / 1e9:.1f} s"
        return " · ".join([told, *_python_note(python_frames(stacks))])


def python_frames(stacks: Stacks) -> str:
    """Say whether Python's functions are in the stacks, and if not, why."""
    named = [sum(stacks.frames[frame].module == PYTHON for frame in path) for path in stacks.paths]
    if max(named, default=0) > 1:
        return NAMED
    if any(named):
        return (
            "the innermost is named: the debug data do not lead further out; a Python built with frame pointers "
            "and call-graph=fp show all"
        )
    versions = sorted({version for frame in stacks.frames if (version := interpreter_of(frame.module))})
    if not versions:
        return NO_PYTHON
    if versions[-1] < PERF_MAP_SINCE:
        return f"not named: Python {versions[-1][0]}.{versions[-1][1]} cannot (3.12 can); the interpreter's own are"
    return "not named: start the server with PYTHONPERFSUPPORT=1 (python -X perf)"


def _python_note(told: str) -> list[str]:
    return [] if told in (NO_PYTHON, NAMED) else [f"Python's functions: {told}"]


def _counters(path: Path) -> dict[str, Any]:
    """Counts of the window; all None, with the reason, where perf could not count."""
    try:
        return counters_of(path.read_text("utf-8", "replace"))
    except OSError:
        log = path.with_name(COUNTS_LOG)
        said = log.read_text("utf-8", "replace") if log.exists() else ""
        return {**counters_of(""), "reason": f"perf stat: {refusal(said)}"}


def _stop_counting(counter: Recording) -> None:
    try:
        counter.stop()
    except ProfileError:
        pass  # the samples are what the window is for; `collect` tells that there are no counts


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _frequency(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 50_000:
        raise UsageError(f"--profile-option frequency={text}: a whole number of samples a second, such as 99")
    return int(text)


def _choice(key: str, text: str, choices: Collection[str]) -> str:
    if text not in choices:
        raise UsageError(f"--profile-option {key}={text}: one of {', '.join(choices)}{did_you_mean(text, choices)}")
    return text
