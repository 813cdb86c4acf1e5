"""A Linux timerfd: wakes an event loop to within tens of microseconds, where its own timers are a millisecond late."""

from __future__ import annotations

import ctypes
import os
import time
from types import TracebackType
from typing import Self

_CLOCK_MONOTONIC = time.CLOCK_MONOTONIC
_TFD_TIMER_ABSTIME = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


_libc = ctypes.CDLL(None, use_errno=True)


def has_timerfd() -> bool:
    """Whether this system has them; only Linux does."""
    return hasattr(_libc, "timerfd_create")


class TimerFd:
    """A one-shot timer on CLOCK_MONOTONIC whose file descriptor becomes readable when it expires.

    Raises OSError where the kernel has no timerfd (anything but Linux).
    """

    def __init__(self) -> None:
        if not has_timerfd():
            raise OSError("this system has no timerfd")
        self.fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = _TimerSpec()
        self._value = self._spec.value
        self._reference = ctypes.byref(self._spec)
        self._settime = _libc.timerfd_settime

    def at(self, monotonic_ns: int) -> None:
        """Expire at `monotonic_ns` (CLOCK_MONOTONIC, ns); an instant that has passed expires at once."""
        self._value.seconds, self._value.nanoseconds = divmod(max(1, monotonic_ns), 1_000_000_000)
        self._settime(self.fd, _TFD_TIMER_ABSTIME, self._reference, None)

    def after(self, ns: int) -> None:
        """Expire `ns` nanoseconds from now."""
        self._value.seconds, self._value.nanoseconds = divmod(max(1, ns), 1_000_000_000)
        self._settime(self.fd, 0, self._reference, None)

    def clear(self) -> None:
        """Consume the expiry, so that the descriptor is no longer readable."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Free the descriptor; safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
