"""Waking up on time: event-loop timers are 0.6 to 1.8 ms late, a kernel timer about 0.05 ms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from servebench.timerfd import TimerFd, has_timerfd

_COARSE_NS = 2_000_000


class Alarm(Protocol):
    """Calls back once at an instant of CLOCK_MONOTONIC."""

    def at(self, monotonic_ns: int) -> None:
        """Ring at `monotonic_ns`; replaces an earlier setting. A past instant rings at once."""
        ...

    def close(self) -> None:
        """Ring no more and free the timer."""
        ...


def make_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Alarm:
    """Return the most punctual alarm of this platform."""
    return TimerfdAlarm(loop, ring) if has_timerfd() else HybridAlarm(loop, ring)


class TimerfdAlarm:
    """A Linux timerfd that the event loop watches like a socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._timer = TimerFd()
        self._loop = loop
        self._ring = ring
        self._at = 0
        loop.add_reader(self._timer.fd, self._expired)

    def at(self, monotonic_ns: int) -> None:
        """See `Alarm.at`."""
        self._at = monotonic_ns
        self._timer.at(monotonic_ns)

    def close(self) -> None:
        """See `Alarm.close`."""
        self._loop.remove_reader(self._timer.fd)
        self._timer.close()

    def _expired(self) -> None:
        if time.monotonic_ns() >= self._at:  # else set anew between the expiry and this call
            self._timer.clear()
            self._ring()


class HybridAlarm:
    """A loop timer until shortly before, then one look at the clock in each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.Handle | None = None

    def at(self, monotonic_ns: int) -> None:
        """See `Alarm.at`."""
        self._cancel()
        self._wait(monotonic_ns)

    def close(self) -> None:
        """See `Alarm.close`."""
        self._cancel()

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self, at: int) -> None:
        left = at - time.monotonic_ns()
        if left <= 0:
            self._handle = self._loop.call_soon(self._ring)
        elif left <= _COARSE_NS:
            self._handle = self._loop.call_soon(self._wait, at)
        else:
            self._handle = self._loop.call_later((left - _COARSE_NS) / 1e9, self._wait, at)
