"""The windows of a run: captured after its own load, on the same server, and stored beside its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from servebench.errors import ServebenchError, UsageError
from servebench.profile.loads import Seen, decoding_requests, load_of
from servebench.profile.server import Server
from servebench.profile.tool import TIMELINE, Bounds, Launch, ProfileError
from servebench.profile.tools import make_tool
from servebench.profile.windows import ProfileRequest, Window, parse_windows
from servebench.record.document import replace_document
from servebench.record.redaction import without_in
from servebench.run.asking import client_for
from servebench.run.options import Observer
from servebench.run.watching import Instants, StepCounter, Watch

if TYPE_CHECKING:
    from servebench.dispatch.conductor import Interrupts
    from servebench.record.rundir import RunDir
    from servebench.run.options import RunOptions
    from servebench.run.target import Target
    from servebench.scenario.schema import Scenario
    from servebench.workload.plan import Plan

SCHEMA = 1
FOLDER = "profile"
WINDOW = "window.json"
NOT_REACHED = "interrupted before it was captured"


@dataclass(frozen=True, slots=True)
class Within:
    """What the run of a window's load shares with the run that the window belongs to.

    Attributes:
        target: the server, up already.
        interrupts: one count of signals for both.
        profile: what its manifest says of the profiler that is attached to the server.
    """

    target: Target
    interrupts: Interrupts
    profile: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Occasion:
    """The run that the windows belong to, its own load done and stored.

    Attributes:
        run: `servebench.run.run`, given here since this module is imported by it.
        plan: of the scenario.
        max_model_len: the server's context, tokens; None where it does not say.
    """

    run: Callable[..., RunDir]
    scenario: Scenario
    options: RunOptions
    plan: Plan
    target: Target
    max_model_len: int | None
    interrupts: Interrupts
    observer: Observer


class Profiling:
    """A profiler for one run. `attach` before the load; `capture` after it; `collect` once the server has ended.

    Attributes:
        launch: how a server that is started for the run must be launched.

    Raises:
        UsageError: no such tool or option, or the tool is not there.
    """

    def __init__(self, request: ProfileRequest, rundir: RunDir) -> None:
        self._request = request
        self._rundir = rundir
        self._tool = make_tool(request.tool, rundir.path / FOLDER, request.settings)
        self._version = self._tool.check()
        self.launch: Launch = self._tool.launch()
        self._windows = request.windows or parse_windows(self._tool.windows)
        self._documents: dict[str, dict[str, Any]] = {}
        rundir.manifest["profile"] = self._mark()

    def _mark(self, window: str | None = None) -> dict[str, Any]:
        mark = {"tool": self._tool.name, "version": self._version, "settings": self._tool.settings}
        return {**mark, "window": window} if window else {**mark, "windows": []}

    def attach(self, scenario: Scenario, options: RunOptions, target: Target) -> None:
        """Make sure, before any load, that the server can be captured. Raises UsageError when it cannot."""
        self._server = Server(
            url=target.url,
            engine=(target.server or {}).get("engine", "unknown"),
            pid=target.pid if target.pid is not None else _listener(target.url),
            client=lambda timeout: client_for(scenario, options, target.url, timeout),
            log_path=self._rundir.log_path("server") if target.server else None,
            ours=target.server is not None,
        )
        try:
            self._tool.attach(self._server)
        except ProfileError as error:
            raise UsageError(f"{self._tool.name} cannot capture this server: {error}") from error

    def capture(self, occasion: Occasion) -> None:
        """Capture each window. What goes wrong with one is written into it; the run's own results are safe already."""
        seen = _seen(self._rundir, occasion.max_model_len)
        for window in self._windows:
            bounds = window.bounds(self._request.bounds(self._tool.bounds))
            if occasion.interrupts.count:
                self._note(window, bounds, Instants(), NOT_REACHED)
            else:
                self._one(occasion, window, bounds, seen)

    def _one(self, occasion: Occasion, window: Window, bounds: Bounds, seen: Seen) -> None:
        folder = self._folder(window)
        concurrency = decoding_requests(self._request.concurrency, seen)
        steps = StepCounter(self._server)
        watch = Watch(occasion.observer, window, self._tool, folder, bounds, concurrency, steps)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            load = load_of(window, occasion.scenario, occasion.plan, bounds, concurrency, seen)
            if window.is_isolating:
                self._run(occasion, window, load, "plain", _Plain(occasion.observer, window))
            self._run(occasion, window, load, "captured", watch)
        except ServebenchError as error:
            watch.reason = watch.reason or str(error)
        except OSError as error:
            watch.reason = watch.reason or f"the window's run could not be stored: {error.strerror or error}"
        finally:
            steps.close()
            self._note(window, bounds, watch.instants, watch.reason)

    def _run(self, occasion: Occasion, window: Window, load: Scenario, name: str, observer: Observer) -> None:
        options = replace(occasion.options, endpoint=occasion.target.url, out=self._folder(window) / name)
        options = replace(options, profile=None, probes=0, reset_caches=False, keep_raw=False)
        within = Within(occasion.target, occasion.interrupts, self._mark(window.name))
        rundir = occasion.run(load, options, observer, within=within)
        if rundir.manifest["status"] == "interrupted":
            raise ServebenchError(NOT_REACHED)

    def _folder(self, window: Window) -> Path:
        return self._rundir.path / FOLDER / window.name

    def _note(self, window: Window, bounds: Bounds, instants: Instants, reason: str | None) -> None:
        self._documents[window.name] = {
            "schema": SCHEMA,
            "name": window.name,
            "kind": window.kind,
            "tool": self._tool.name,
            "version": self._version,
            "settings": self._tool.settings,
            "bounds": {"seconds": bounds.seconds, "steps": bounds.steps},
            "range": None if window.begin_s is None else {"begin_s": window.begin_s, "end_s": window.end_s},
            "plain": "plain" if window.is_isolating else None,  # None: the run's own load is the same
            **asdict(instants),
            "reason": reason,
            "facts": {},
        }

    def collect(self, observer: Observer) -> None:
        """Turn what the tool left into timelines, and write what became of each window."""
        for name, document in self._documents.items():
            folder = self._rundir.path / FOLDER / name
            if document["start_ns"] is not None:
                observer.status(f"window {name}: reading the capture")
                self._read(folder, document)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                replace_document(folder / WINDOW, without_in(document, self._rundir.secrets))
            except OSError as error:
                document["reason"] = document["reason"] or f"it could not be stored: {error.strerror or error}"
        self._rundir.manifest["profile"]["windows"] = [
            {"name": name, "status": "failed" if d["reason"] else "captured", "reason": d["reason"]}
            for name, d in self._documents.items()
        ]
        self._rundir.save_manifest()

    def _read(self, folder: Path, document: dict[str, Any]) -> None:
        try:
            document["facts"] = self._tool.collect(folder)
            _align(folder, document)
        except (ProfileError, ValueError) as error:
            document["reason"] = document["reason"] or str(error)
        except OSError as error:
            document["reason"] = document["reason"] or f"the capture could not be read: {error.strerror or error}"


class _Plain(Observer):
    """Says which window's load runs without a capture."""

    def __init__(self, outer: Observer, window: Window) -> None:
        self._outer, self._name = outer, window.name

    def status(self, text: str) -> None:
        self._outer.status(f"window {self._name}, first without the capture: {text}")


def _seen(rundir: RunDir, max_model_len: int | None) -> Seen:
    """What the run's own load has shown."""
    from servebench.analysis.data import load
    from servebench.analysis.facts import gather

    found = gather(load(rundir))
    itl, window = found.metrics["itl"].at("p50"), found.window
    return Seen(
        decoding=found.steps["decode_concurrency"].mean(window.warmup_end, window.throughput_end),
        itl_s=None if itl is None else itl / 1e9,
        max_model_len=max_model_len,
    )


def _listener(url: str) -> int | None:
    """The process of this machine that serves at `url`; None where it is not known."""
    from servebench.engine.reach import is_loopback
    from servebench.telemetry.listeners import listening_pids

    port = urlsplit(url).port
    found = listening_pids(port) if port is not None and is_loopback(url) else []
    return found[0] if found else None


def _align(folder: Path, document: dict[str, Any]) -> None:
    """Bound the clock of a window's timeline by the client's own stamps of the same seconds."""
    from servebench.analysis.profile.alignment import align
    from servebench.profile.timeline import Timeline
    from servebench.record.rundir import RunDir

    if not (folder / TIMELINE).exists():
        return
    arrivals = RunDir.open(folder / "captured").chunks()["arrival_ns"].to_numpy()
    timeline = Timeline.read(folder / TIMELINE)
    align(timeline, arrivals).write(folder / TIMELINE)
