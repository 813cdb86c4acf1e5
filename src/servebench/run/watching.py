"""Watches the load of a window and captures it: armed by what is observed, ended by the window's bounds."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from servebench.errors import ServebenchError
from servebench.profile.windows import Window
from servebench.record.counters import Command, LiveCounters, Slot, Snapshot
from servebench.run.options import Observer

if TYPE_CHECKING:
    from servebench.dispatch.conductor import Interrupts
    from servebench.profile.server import Server
    from servebench.profile.tool import Bounds, Tool
    from servebench.run.target import Target
    from servebench.scenario.schema import Scenario

POLL_S = 0.02
STEPS_PATIENCE_S = 1.0
PATIENCE_S, PATIENCE = 60.0, 4.0  # for the answers that outlast a window: so long, and so many times the window
NOT_REACHED = "interrupted before it was captured"
STEPS = re.compile(rb"^vllm:iteration_tokens_total_count(?:\{[^}]*\})? ([0-9.e+]+)", re.MULTILINE)


@dataclass(slots=True)
class Instants:
    """When what happened, CLOCK_REALTIME ns; None where it did not come to that."""

    start_asked_ns: int | None = None
    start_ns: int | None = None
    stop_asked_ns: int | None = None
    stop_ns: int | None = None


class StepCounter:
    """How many steps the engine has made, by its own metrics."""

    def __init__(self, server: Server) -> None:
        self._client = server.client(STEPS_PATIENCE_S)
        self._url = f"{server.url}/metrics"

    def __call__(self) -> int | None:
        """The count; None where the server does not tell, now or ever."""
        try:
            found = STEPS.findall(self._client.get(self._url).content)
        except httpx.HTTPError:
            return None
        return round(sum(map(float, found))) if found else None

    def close(self) -> None:
        """Close its connection."""
        self._client.close()


class Watch(Observer):
    """The observer of a window's load. Whatever goes wrong with the capture becomes `reason`; the load goes on.

    Attributes:
        instants: of the capture.
        reason: why there is no capture, or not a whole one.
    """

    def __init__(
        self,
        outer: Observer,
        window: Window,
        tool: Tool,
        folder: Path,
        bounds: Bounds,
        concurrency: int,
        begin_s: float,
        steps: Callable[[], int | None],
        interrupts: Interrupts,
    ) -> None:
        self.instants = Instants()
        self.reason: str | None = None
        self._outer, self._window, self._tool, self._folder = outer, window, tool, folder
        self._bounds, self._concurrency, self._begin_s, self._steps = bounds, concurrency, begin_s, steps
        self._interrupts = interrupts
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = "no request was in flight"

    def status(self, text: str) -> None:
        """Say which window it is about."""
        self._outer.status(f"window {self._window.name}: {text}")

    def load(self, scenario: Scenario, target: Target, counters: LiveCounters, rows: int) -> None:
        """Begin to watch."""
        self._thread = threading.Thread(target=self._follow, args=(counters,), name="capture", daemon=True)
        self._thread.start()

    def done(self) -> None:
        """The load is over: end a capture that still goes on, and wait until it is stored, or for a second signal."""
        self._over.set()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(POLL_S)
            if self._interrupts.count > 1:
                self._give_up()

    def _give_up(self) -> None:
        """Leave the thread to itself: a profiler may take minutes for what it has, and nobody wants it any more."""
        self._thread = None
        self.instants = Instants(self.instants.start_asked_ns)
        self.reason = f"interrupted twice, and so before {self._tool.name} had stored what it had"

    def _follow(self, counters: LiveCounters) -> None:
        try:
            while not self._is_met(counters.snapshot()):
                if self._over.wait(POLL_S) or self._interrupts.count:
                    self.reason = self._why_never()
                    return
            self._capture()
        except ServebenchError as error:
            self.reason = str(error)
        except OSError as error:
            self.reason = f"the capture could not be stored: {error.strerror or error}"
        except Exception as error:  # noqa: BLE001 - in a thread of its own nobody else would hear of it
            self.reason = f"the capture failed: {type(error).__name__}: {error}"
        finally:
            counters.stop_load()
            self._end(counters)

    def _end(self, counters: LiveCounters) -> None:
        """Give up what is still in flight a while after the capture: a server may hang, and the load has patience."""
        deadline = time.monotonic() + PATIENCE_S + PATIENCE * self._bounds.seconds
        while time.monotonic() < deadline and not self._interrupts.count:
            if self._over.wait(POLL_S):
                return
        counters.command(Command.STOP)

    def _why_never(self) -> str:
        if self._interrupts.count:
            return NOT_REACHED
        return f"the load ended before the window could be armed: {self._seen}"

    def _is_met(self, now: Snapshot) -> bool:
        """Whether the load is as the window wants it."""
        if now.start_monotonic_ns is None:
            return False
        elapsed = (now.monotonic_ns - now.start_monotonic_ns) / 1e9
        flying, answering = now.total(Slot.IN_FLIGHT), now.total(Slot.ANSWERING)
        self._seen = f"after {elapsed:.1f} s {flying} requests were in flight, {answering} of them with a token"
        match self._window.kind:
            case "prefill":
                return flying > 0 and now.total(Slot.FINISHED) > 0
            case "decode":
                return answering >= self._concurrency
            case "mixed":
                return elapsed >= self._begin_s and flying > 0
        return elapsed >= self._begin_s

    def _capture(self) -> None:
        self.status(f"{self._tool.name} captures")
        instants = self.instants
        instants.start_asked_ns = time.time_ns()
        self._tool.start(self._window.name, self._folder, self._bounds)
        instants.start_ns = time.time_ns()
        try:
            self._await_end()
        finally:
            instants.stop_asked_ns = time.time_ns()
            self.status(f"waiting for {self._tool.name} to store what it has")
            self._tool.stop()
            instants.stop_ns = time.time_ns()

    def _await_end(self) -> None:
        deadline = time.monotonic() + self._bounds.seconds
        wanted = self._bounds.steps
        first = self._steps() if wanted is not None else None
        while (left := deadline - time.monotonic()) > 0 and not self._over.wait(min(POLL_S, left)):
            if self._interrupts.count:
                break
            if wanted is None or first is None:
                continue
            now = self._steps()
            if now is not None and now - first >= wanted:
                return
        if self._interrupts.count and time.monotonic() < deadline:
            self.reason = "interrupted while it was captured: it is shorter than was asked for"
