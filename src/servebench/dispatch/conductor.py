"""Leads the workers through a run: start, measured window, cool-down, drain, and interruption at any moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Self

from servebench.clock import Anchor
from servebench.dispatch.crew import END_LIMIT_S, Crew
from servebench.record.counters import Command, LiveCounters, Slot, State

POLL_S = 0.04
LEAD_NS = 20_000_000  # from the start signal to the zero of the plan
SETTLE_NS = 30_000_000  # what a worker may need to notice that the window has ended


class Interrupts:
    """Counts SIGINT and SIGTERM while it is entered; inside `raising` the first of them raises KeyboardInterrupt.

    In another thread than the main one, which alone gets signals, it leaves them to whoever has that one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._raises = False
        self._before: dict[int, object] = {}

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self._raises:
            self._raises = False  # a second one shall not cut the cleaning up short
            raise KeyboardInterrupt

    @contextmanager
    def raising(self) -> Iterator[None]:
        """For what may be given up at any point, and may take long: nothing is recorded yet."""
        if self.count:
            raise KeyboardInterrupt
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if main else ():
            self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


@dataclass(slots=True)
class Course:
    """How the run went. Instants are CLOCK_REALTIME ns, None where not reached.

    Attributes:
        start_ns: zero of the plan.
        warmup_end_ns, measured_end_ns: the measured window; its end is None for a run bounded by a request count.
        load_end_ns: no request was sent any more.
        end_ns: all workers had ended.
        anchors: the two clocks at the start, every second, and at the end.
        interrupted: a signal ended it early.
        overran: the drain limit was reached with requests still in flight.
    """

    start_ns: int | None = None
    warmup_end_ns: int | None = None
    measured_end_ns: int | None = None
    load_end_ns: int | None = None
    end_ns: int | None = None
    anchors: list[Anchor] = field(default_factory=list)
    interrupted: bool = False
    overran: bool = False


def conduct(
    crew: Crew,
    counters: LiveCounters,
    window_ns: tuple[int, int | None],
    drain_s: float,
    interrupts: Interrupts,
) -> Course:
    """Run the load to its end.

    Args:
        crew: the workers, ready.
        counters: the memory shared with them.
        window_ns: the measured window, ns after the start; its end is None for a run bounded by a request count.
        drain_s: how long requests may still take after the window (or after the last one was sent).
        interrupts: a first signal ends the sending, a second one the waiting, a third one the workers.
    """
    course = Course()
    anchor = Anchor.now()
    zero = anchor.monotonic_ns + LEAD_NS
    counters.start_at(zero)
    course.anchors.append(anchor)
    course.start_ns = anchor.to_realtime(zero)
    course.warmup_end_ns = course.start_ns + window_ns[0]
    course.measured_end_ns = course.start_ns + window_ns[1] if window_ns[1] is not None else None
    leader = _Leader(course, crew, counters, window_ns[1], int(drain_s * 1e9), zero, interrupts)
    next_second = zero
    while not crew.all_ended():
        now = time.monotonic_ns()
        leader.step(now)
        if now >= next_second:
            next_second = now + 1_000_000_000
            course.anchors.append(Anchor.now())
        time.sleep(POLL_S)
    course.anchors.append(Anchor.now())
    course.end_ns = time.time_ns()
    course.load_end_ns = course.load_end_ns or course.end_ns
    return course


class _Leader:
    """Decides, fifty times a second, whether the workers are to stop sending or waiting."""

    def __init__(
        self,
        course: Course,
        crew: Crew,
        counters: LiveCounters,
        end: int | None,
        drain_ns: int,
        zero: int,
        interrupts: Interrupts,
    ) -> None:
        self._course = course
        self._crew = crew
        self._counters = counters
        self._window_end = None if end is None else zero + end
        self._drain_ns = drain_ns
        self._deadline: int | None = None if end is None else zero + end + drain_ns
        self._interrupts = interrupts
        self._patience_end: int | None = None  # for workers that were told to stop

    def step(self, now: int) -> None:
        """Look at the clock, the counters and the signals."""
        snapshot = self._counters.snapshot()
        living = self._living(snapshot.states)
        sending = any(snapshot.states[number] < State.DRAINING for number in living)
        if self._interrupts.count and not self._course.interrupted:
            self._course.interrupted = True
            self._end_load()
            self._deadline = min(self._deadline or (1 << 62), now + self._drain_ns)
        if not sending and self._course.load_end_ns is None:
            self._load_ended()
            self._deadline = self._deadline or now + self._drain_ns
        elif sending and self._window_end is not None and now > self._window_end + SETTLE_NS:
            cohort_open = sum(int(snapshot.workers[number, Slot.COHORT_OPEN]) for number in living)
            if cohort_open == 0 or now > self._window_end + self._drain_ns:
                self._end_load()
        late = self._deadline is not None and now > self._deadline
        if self._patience_end is None and (late or self._interrupts.count > 1):
            self._patience_end = now + int(END_LIMIT_S * 1e9)
            self._course.overran = late and snapshot.total(Slot.IN_FLIGHT) > 0
            self._counters.command(Command.STOP)
        elif self._patience_end is not None and (now > self._patience_end or self._interrupts.count > 2):
            self._crew.kill()

    def _living(self, states: list[State]) -> list[int]:
        dead = set(self._crew.dead(self._counters))
        return [number for number in range(len(states)) if number not in dead]

    def _load_ended(self) -> None:
        assert self._course.start_ns is not None
        self._course.load_end_ns = max(time.time_ns(), self._course.start_ns)

    def _end_load(self) -> None:
        if self._course.load_end_ns is None:
            self._load_ended()
        self._counters.stop_load()
        self._counters.command(Command.DRAIN)
