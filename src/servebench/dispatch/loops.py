"""The two load models: an open loop that follows due times, and a closed loop of slots."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from servebench.alarm import make_alarm
from servebench.clock import Anchor
from servebench.dispatch.call import Call
from servebench.dispatch.job import Job
from servebench.dispatch.sender import Sender
from servebench.dispatch.slices import SLICE_NS, Slices

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
LONGEST_WISH_S = 3600.0  # of a server's Retry-After
STAGGER_NS = 1_000_000
LATE_NS = 10_000_000  # a call overdue by more than this when the load ends is not sent any more

_monotonic = time.monotonic_ns


class Loop(Protocol):
    """Decides when the worker's next call is sent."""

    def start(self, anchor: Anchor, zero_ns: int) -> None:
        """Begin; `zero_ns` (CLOCK_MONOTONIC) is the zero of the plan, `anchor` pairs the clocks."""
        ...

    def stop(self) -> None:
        """Send no more; calls that were due and still wait are dropped."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to send."""
        ...

    @property
    def paused(self) -> int:
        """Slots that wait after a refusal."""
        ...


class OpenLoop:
    """Sends each call at its due time, whatever became of the others; a cap makes calls wait or drops them.

    Args:
        job: its limits.
        rows: this worker's rows of the plan.
        offsets_ns: their due times after the start.
        sender: sends.
        slices: runs what is queued.
        loop: the event loop.
    """

    def __init__(
        self,
        job: Job,
        rows: NDArray[np.int64],
        offsets_ns: NDArray[np.int64],
        sender: Sender,
        slices: Slices,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._job = job
        self._rows = rows
        self._offsets = offsets_ns
        self._sender = sender
        self._slices = slices
        self._loop = loop
        self._alarm = make_alarm(loop, self._rung)
        self._next = 0
        self._gated: deque[Call] = deque()  # due, before the throttle
        self._waiting: deque[Call] = deque()  # due and through the throttle, before a slot
        self._zero = 0
        self._zero_realtime = 0
        self._stopped = False
        self._gate = Gate(job.throttle, self._pass_gate, loop) if job.throttle else None
        sender.on_free = self._freed
        sender.owe(int(np.count_nonzero(self._in_cohort(offsets_ns))))
        self.paused = 0

    def start(self, anchor: Anchor, zero_ns: int) -> None:
        """Begin to follow the due times."""
        self._zero = zero_ns
        self._zero_realtime = anchor.to_realtime(zero_ns)
        self._arm()

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to send."""
        return (self._stopped or self._next >= len(self._rows)) and not self._waiting and not self._gated

    def _in_cohort(self, offsets_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        first, last = self._job.cohort
        return (offsets_ns >= first) & (offsets_ns < (1 << 62 if last is None else last))

    def stop(self) -> None:
        """Send no more; calls that were due and still wait are dropped, those that are overdue too."""
        if not self._stopped:
            self._stopped = True
            self._alarm.close()
            if self._gate is not None:
                self._gate.close()
            if self._zero:
                self._catch_up()
            for queue in (self._waiting, self._gated):  # in the order in which they were due
                while queue:
                    self._sender.drop(queue.popleft(), "the load ended before it could be sent")

    def _catch_up(self) -> None:
        """Take up what has become due unnoticed, so that the numbers add up: the end came before the timer's event."""
        now = _monotonic()
        too_late = False
        while self._next < len(self._rows) and (due := self._zero + int(self._offsets[self._next])) <= now:
            too_late = too_late or now - due > LATE_NS
            if too_late:
                self._waiting.append(self._call(self._next))  # to be dropped, and all behind it: payloads have an order
            else:
                self._due(self._next)
            self._next += 1

    def _arm(self) -> None:
        if self._next < len(self._rows):
            self._alarm.at(self._zero + int(self._offsets[self._next]))

    def _rung(self) -> None:
        end = _monotonic() + SLICE_NS
        now = _monotonic()
        while self._next < len(self._rows) and self._zero + int(self._offsets[self._next]) <= now:
            self._due(self._next)
            self._next += 1
            now = _monotonic()
            if now > end:
                break
        self._arm()

    def _call(self, position: int) -> Call:
        offset = int(self._offsets[position])
        first, last = self._job.cohort
        call = Call(int(self._rows[position]), self._zero_realtime + offset)
        call.cohort = first <= offset and (last is None or offset < last)
        self._sender.due()
        return call

    def _due(self, position: int) -> None:
        call = self._call(position)
        if self._gate is not None:
            self._gated.append(call)
            self._gate.ask()
        elif self._full():
            self._wait_or_drop(call)
        else:
            self._sender.send(call)
        self._slices.wake()  # to make the next payloads

    def _full(self) -> bool:
        limit = self._job.max_in_flight
        return limit is not None and (self._sender.in_flight >= limit or bool(self._waiting))

    def _wait_or_drop(self, call: Call) -> None:
        if self._job.drop_when_full:
            self._sender.drop(call, f"all {self._job.max_in_flight} slots of max_in_flight were taken")
        else:
            self._waiting.append(call)

    def _freed(self, call: Call) -> None:
        if self._waiting:
            self._slices.urgent(partial(self._send_waiting, time.time_ns()))

    def _send_waiting(self, freed_ns: int) -> None:
        limit = self._job.max_in_flight
        if self._waiting and (limit is None or self._sender.in_flight < limit):
            call = self._waiting.popleft()
            call.slot_ns = max(freed_ns, call.slot_ns or call.scheduled_ns)
            self._sender.send(call)

    def _pass_gate(self) -> None:
        """The throttle lets one call through, to wait for a slot if there is a cap as well."""
        if not self._gated:
            return
        call = self._gated.popleft()
        call.slot_ns = max(time.time_ns(), call.scheduled_ns)
        if self._full():
            self._wait_or_drop(call)
        else:
            self._sender.send(call)


class ClosedLoop:
    """Keeps a fixed number of slots busy; a slot sends its next call `think` seconds after its last one has ended.

    A slot whose call was refused pauses, as long as the server asks for or else longer each time up to a second, so
    that a failing server is never hammered.

    Args:
        job: concurrency, think time.
        rows: this worker's rows of the plan.
        sender: sends.
        slices: runs what is queued.
        loop: the event loop.
    """

    def __init__(
        self,
        job: Job,
        rows: NDArray[np.int64],
        sender: Sender,
        slices: Slices,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._job = job
        self._rows = rows
        self._sender = sender
        self._slices = slices
        self._loop = loop
        self._next = 0
        self._stopped = False
        self._zero = 0
        self._window = (0, 0)
        self._pauses: dict[int, float] = {}
        self._gate = Gate(job.throttle, self._pass_gate, loop) if job.throttle else None
        self._asking: deque[tuple[int, int]] = deque()
        self.paused = 0
        self.pauses = 0
        sender.on_free = self._freed

    def start(self, anchor: Anchor, zero_ns: int) -> None:
        """Fill the slots, a millisecond apart, so that their connections do not all open at one instant."""
        self._zero = zero = anchor.to_realtime(zero_ns)
        first, last = self._job.cohort
        self._window = (zero + first, zero + last if last is not None else 1 << 62)
        now = _monotonic()
        for slot in range(self._job.concurrency or 0):
            wait = (zero_ns - now + slot * STAGGER_NS) / 1e9
            self._loop.call_later(max(0.0, wait), self._begin, slot)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to send."""
        return self._stopped or self._next >= len(self._rows)

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True
        if self._gate is not None:
            self._gate.close()

    def _begin(self, slot: int) -> None:
        """A slot is free for the first time; the loop's timers fire up to a millisecond early, the zero is exact."""
        if time.time_ns() < self._zero:
            self._loop.call_later(0.001, self._begin, slot)
        else:
            self._free(slot)

    def _free(self, slot: int) -> None:
        """A slot may send from now on."""
        now = time.time_ns()
        if self._gate is not None:
            self._asking.append((slot, now))
            self._gate.ask()
        else:
            self._slices.urgent(partial(self._send, slot, now))

    def _pass_gate(self) -> None:
        if self._asking:
            slot, freed_ns = self._asking.popleft()
            self._send(slot, freed_ns, time.time_ns())

    def _send(self, slot: int, freed_ns: int, gate_ns: int | None = None) -> None:
        if self.exhausted:
            return
        call = Call(int(self._rows[self._next]), freed_ns, slot)
        call.slot_ns = gate_ns
        call.cohort = self._window[0] <= freed_ns < self._window[1]
        self._next += 1
        self._sender.due()
        if call.cohort:
            self._sender.owe(1)
        self._sender.send(call)

    def _freed(self, call: Call) -> None:
        if self._stopped:
            return
        wait = self._job.think
        asked = self._sender.retry_pause(call)
        if asked is None:
            self._pauses.pop(call.slot, None)
        else:
            wait += self._pause(call.slot, asked)
        if wait > 0:
            self._loop.call_later(wait, self._resume, call.slot, asked is not None)
        else:
            self._free(call.slot)

    def _pause(self, slot: int, asked: float) -> float:
        """How long a refused slot waits: what the server asked for, or twice as long as the last time."""
        pause = min(self._pauses.get(slot, FIRST_PAUSE_S / 2) * 2, LONGEST_PAUSE_S)
        self._pauses[slot] = pause
        self.paused += 1
        self.pauses += 1
        return max(min(asked, LONGEST_WISH_S), pause)

    def _resume(self, slot: int, was_paused: bool) -> None:
        self.paused -= was_paused
        self._free(slot)


class Gate:
    """Lets calls through at no more than a given number in a given time; asyncio-throttle keeps the count."""

    def __init__(
        self, limit: tuple[int, float], let_through: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        from asyncio_throttle.throttler import Throttler

        self._let_through = let_through
        self._throttler = Throttler(rate_limit=limit[0], period=limit[1], retry_interval=0.005)
        self._asked: asyncio.Queue[None] = asyncio.Queue()
        self._pump = loop.create_task(self._run())

    def ask(self) -> None:
        """Queue for one passage."""
        self._asked.put_nowait(None)

    def close(self) -> None:
        """Let nothing more through."""
        self._pump.cancel()

    async def _run(self) -> None:
        while True:
            await self._asked.get()
            async with self._throttler:
                self._let_through()
