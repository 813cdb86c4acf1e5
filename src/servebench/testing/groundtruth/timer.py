"""Ticks at a fixed rate from the kernel's timerfd, which unlike a loop of sleeps does not drift."""

from __future__ import annotations

import ctypes
import os
import time

NONBLOCK = os.O_NONBLOCK
ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class Ticks:
    """A pollable clock; `os.timerfd_create` exists from Python 3.13 on, hence ctypes.

    Args:
        period_ns: time from tick to tick; the first one comes after one period.
    """

    def __init__(self, period_ns: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.timerfd_create(time.CLOCK_MONOTONIC, NONBLOCK)
        first = time.monotonic_ns() + period_ns
        spec = _Itimerspec(_timespec(period_ns), _timespec(first))
        if self._fd < 0 or libc.timerfd_settime(self._fd, ABSOLUTE, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd")

    def fileno(self) -> int:
        """The file descriptor, readable when a tick is due."""
        return self._fd

    def read(self) -> int:
        """How many ticks have passed since the last read; more than 1 says that the reader was late."""
        return int.from_bytes(os.read(self._fd, 8), "little")


def _timespec(ns: int) -> _Timespec:
    return _Timespec(ns // 1_000_000_000, ns % 1_000_000_000)
