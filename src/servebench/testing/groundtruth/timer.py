"""Ticks at a fixed rate on absolute instants, which unlike a loop of sleeps do not drift."""

from __future__ import annotations

import time

from servebench.timerfd import TimerFd


class Ticks:
    """A pollable clock.

    Args:
        period_ns: time from tick to tick; the first one comes after one period.
    """

    def __init__(self, period_ns: int) -> None:
        self._period = period_ns
        self._due = time.monotonic_ns() + period_ns
        self._timer = TimerFd()
        self._timer.at(self._due)

    def fileno(self) -> int:
        """The file descriptor, readable when a tick is due."""
        return self._timer.fd

    def read(self) -> int:
        """How many ticks have passed since the last read; more than 1 says that the reader was late."""
        self._timer.clear()
        passed = 1 + max(0, time.monotonic_ns() - self._due) // self._period
        self._due += passed * self._period
        self._timer.at(self._due)
        return passed
