"""The windows of a run: captured after its own load, on the same server, and stored beside its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from servebench.dispatch.conductor import Interrupts
from servebench.errors import ServebenchError, UsageError
from servebench.profile.loads import Seen, begin_s, decoding_requests, load_of
from servebench.profile.masking import mask
from servebench.profile.server import Server
from servebench.profile.tool import FOLDER, TIMELINE, WINDOW, WINDOW_SCHEMA, Bounds, Launch, ProfileError
from servebench.profile.tools import make_tool
from servebench.profile.windows import ProfileRequest, Window, parse_windows
from servebench.record.document import replace_document
from servebench.record.redaction import without_in
from servebench.run.asking import client_for
from servebench.run.options import Observer
from servebench.run.watching import NOT_REACHED, Instants, StepCounter, Watch

if TYPE_CHECKING:
    from servebench.record.rundir import RunDir
    from servebench.run.execution import Execution
    from servebench.run.target import Target
    from servebench.scenario.schema import Scenario

NOT_READ = "interrupted before what was captured was read"


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


Runner = Callable[..., "RunDir"]  # `run`, handed over since it imports this module


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
        self._interrupted = False
        rundir.manifest["profile"] = self._mark()

    def _mark(self, window: str | None = None) -> dict[str, Any]:
        mark = {"tool": self._tool.name, "version": self._version, "settings": self._tool.settings}
        return {**mark, "window": window} if window else {**mark, "windows": []}

    def attach(self, execution: Execution, target: Target) -> None:
        """Make sure, before any load, that the server can be captured. Raises UsageError when it cannot."""
        from servebench.engine.reach import is_loopback

        launched = (target.server or {}).get("engine")
        if launched == "sim" and self.launch.prefix:
            raise UsageError(f"{self._tool.name} launches the server, which the simulated engine is not made for")
        self._loopback = is_loopback(target.url)
        self._server = Server(
            url=target.url,
            engine=launched or "unknown",
            pid=target.pid if target.pid is not None else _listener(target.url),
            client=lambda timeout: client_for(execution.scenario, execution.options, target.url, timeout),
            log_path=self._rundir.log_path("server") if target.server else None,
            ours=launched == "vllm",
        )
        try:
            self._tool.attach(self._server)
        except ProfileError as error:
            raise UsageError(f"{self._tool.name} cannot capture this server: {error}") from error

    def capture(self, run: Runner, execution: Execution) -> None:
        """Capture each window. What goes wrong with one is written into it; the run's own results are safe already."""
        windows = [(window, window.bounds(self._request.bounds(self._tool.bounds))) for window in self._windows]
        for window, bounds in windows:
            self._note(window, bounds, Instants(), NOT_REACHED)  # stands where a kill leaves no time for more
        seen = Seen() if execution.interrupts.count else _seen(execution)
        for window, bounds in windows:
            if not execution.interrupts.count:
                self._one(run, execution, window, bounds, seen)
        self._interrupted = execution.interrupts.count > 0

    def _one(self, run: Runner, execution: Execution, window: Window, bounds: Bounds, seen: Seen) -> None:
        assert execution.plan is not None
        folder, observer = self._folder(window), execution.observer
        concurrency = decoding_requests(self._request.concurrency, seen)
        steps = StepCounter(self._server)
        begin = begin_s(window, execution.scenario, execution.plan)
        watch = Watch(observer, window, self._tool, folder, bounds, concurrency, begin, steps, execution.interrupts)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            load = load_of(window, execution.scenario, execution.plan, bounds, concurrency, seen)
            if window.is_isolating:
                self._run(run, execution, window, load, "plain", _Plain(observer, window))
            self._run(run, execution, window, load, "captured", watch)
        except KeyboardInterrupt:  # before its load; counted, so that no other window begins
            watch.reason = watch.reason or NOT_REACHED
        except ServebenchError as error:
            watch.reason = watch.reason or str(error)
        except OSError as error:
            watch.reason = watch.reason or f"the window's run could not be stored: {error.strerror or error}"
        finally:
            steps.close()
            self._note(window, bounds, watch.instants, watch.reason)

    def _run(
        self, run: Runner, execution: Execution, window: Window, load: Scenario, name: str, observer: Observer
    ) -> None:
        assert execution.target is not None
        options = replace(execution.options, endpoint=execution.target.url, out=self._folder(window) / name)
        options = replace(options, profile=None, probes=0, reset_caches=False, keep_raw=False)
        if options.workers is not None and load.load.closed is not None:  # an isolating load may be of two requests
            options = replace(options, workers=min(options.workers, load.load.closed.concurrency))
        within = Within(execution.target, execution.interrupts, self._mark(window.name))
        rundir = run(load, options, observer, within=within)
        if rundir.manifest["status"] == "interrupted" and name == "plain":
            raise ServebenchError(NOT_REACHED)
        if any(worker["exit"] == "died" for worker in rundir.manifest["workers"]):
            raise ServebenchError(f"not all of its load ran: a worker died ({name})")

    def _folder(self, window: Window) -> Path:
        return self._rundir.path / FOLDER / window.name

    def _note(self, window: Window, bounds: Bounds, instants: Instants, reason: str | None) -> None:
        self._documents[window.name] = {
            "schema": WINDOW_SCHEMA,
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
        with suppress(OSError):  # `collect` writes it again, and says so if it cannot
            unread = None if instants.start_ns is None else NOT_READ
            self._store(window.name, self._documents[window.name] | {"reason": reason or unread})

    def _store(self, name: str, document: dict[str, Any]) -> None:
        folder = self._rundir.path / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        replace_document(folder / WINDOW, without_in(document, self._rundir.secrets))

    def close(self) -> None:
        """Let the tool go, once the server has ended; also when the run came to nothing."""
        self._tool.close()

    def collect(self, observer: Observer) -> None:
        """Turn what the tool left into timelines, and write what became of each window.

        A signal ends the reading, and what was not read says so.

        Raises:
            UsageError: the disk takes no more; the run's own results are stored already.
        """
        with Interrupts() as interrupts:
            for name, document in self._documents.items():
                if document["start_ns"] is not None:
                    observer.status(f"window {name}: reading the capture")
                    self._read(self._rundir.path / FOLDER / name, document, interrupts)
                try:
                    self._store(name, document)
                except OSError as error:
                    document["reason"] = document["reason"] or f"it could not be stored: {error.strerror or error}"
            self._interrupted |= interrupts.count > 0
            self._rundir.manifest["warnings"] += mask(self._rundir.path / FOLDER, self._rundir.secrets)
            self._save()

    def _save(self) -> None:
        self._rundir.manifest["profile"]["interrupted"] = self._interrupted
        self._rundir.manifest["profile"]["windows"] = [
            {"name": name, "status": "failed" if d["reason"] else "captured", "reason": d["reason"]}
            for name, d in self._documents.items()
        ]
        try:
            self._rundir.save_manifest()
        except OSError as error:
            why = f"what became of the windows cannot be stored: {error.strerror or error}"
            raise UsageError(f"{why}; the run's own results in {self._rundir.path} are whole") from error

    def _read(self, folder: Path, document: dict[str, Any], interrupts: Interrupts) -> None:
        try:
            with interrupts.raising():
                document["facts"] = self._tool.collect(folder)
                _align(folder, document, self._loopback)
        except KeyboardInterrupt:
            reason = NOT_READ
        except (ServebenchError, ValueError) as error:
            reason = str(error)
        except OSError as error:
            reason = f"the capture could not be read: {error.strerror or error}"
        except Exception as error:  # noqa: BLE001 - whatever lies in a profiler's file, the run is to have its report
            reason = f"the capture could not be read: {type(error).__name__}: {error}"
        else:
            return
        document["reason"] = document["reason"] or reason


class _Plain(Observer):
    """Says which window's load runs without a capture."""

    def __init__(self, outer: Observer, window: Window) -> None:
        self._outer, self._name = outer, window.name

    def status(self, text: str) -> None:
        self._outer.status(f"window {self._name}, first without the capture: {text}")


def _seen(execution: Execution) -> Seen:
    """What the run's own load has shown."""
    from servebench.analysis.data import load
    from servebench.analysis.facts import gather

    assert execution.facts is not None
    found = gather(load(execution.rundir))
    itl, window = found.metrics["itl"].at("p50"), found.window
    return Seen(
        decoding=found.steps["decode_concurrency"].mean(window.warmup_end, window.throughput_end),
        itl_s=None if itl is None else itl / 1e9,
        max_model_len=execution.facts.max_model_len,
    )


def _listener(url: str) -> int | None:
    """The process of this machine that serves at `url`; None where it is not known."""
    from servebench.engine.reach import is_loopback
    from servebench.telemetry.listeners import listening_pids

    port = urlsplit(url).port
    found = listening_pids(port) if port is not None and is_loopback(url) else []
    return found[0] if found else None


def _align(folder: Path, document: Mapping[str, Any], loopback: bool) -> None:
    """Bound the clock of a window's timeline by the client's own stamps of the same seconds."""
    from servebench.analysis.profile.alignment import align
    from servebench.analysis.profile.stepping import find_steps
    from servebench.profile.timeline import Timeline
    from servebench.record.rundir import RunDir

    if not (folder / TIMELINE).exists():
        return
    arrivals = RunDir.open(folder / "captured").chunks()["arrival_ns"].to_numpy()
    timeline = Timeline.read(folder / TIMELINE)
    aligned = align(
        timeline,
        arrivals,
        loopback=loopback,
        step_ends=find_steps(timeline, *timeline.span).until,
        bracket=(document["start_asked_ns"], document["stop_ns"] or document["stop_asked_ns"]),
    )
    known = timeline.alignment.residual_ns if timeline.alignment else None
    found = aligned.alignment.residual_ns if aligned.alignment else None
    if found is not None and (known is None or found < known):
        aligned.write(folder / TIMELINE)
