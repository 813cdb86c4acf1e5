"""Readiness of many sockets: on Linux through one file descriptor, drained in batches.

The kernel stamps each packet as it arrives, so reading a little later costs no accuracy. The reactor uses that: after a
wake-up it holds off for `hold_ns` and then drains everything that has become ready, instead of paying one trip through
the event loop for each token. A hold must stay well below the gap between two tokens of one stream, or reads coalesce.
It is made only while it gathers something: tokens that come one by one are cheaper to read one by one.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import Protocol

from servebench.timerfd import TimerFd, has_timerfd

READ = 0x001  # EPOLLIN
WRITE = 0x004  # EPOLLOUT
HOLD_NS = 800_000
_BATCH = 128
_TURN_NS = 2_000_000  # a drain gives way to the event loop after about this long

Handler = Callable[[int], None]


class Reactor(Protocol):
    """Calls a handler for each ready descriptor; belongs to one running event loop."""

    wakeups: int

    def register(self, fd: int, mask: int, handler: Handler) -> None:
        """Call `handler(mask)` whenever `fd` is ready for what `mask` names (or has failed)."""
        ...

    def modify(self, fd: int, mask: int, handler: Handler | None = None) -> None:
        """Change what is waited for, and optionally who is called."""
        ...

    def unregister(self, fd: int) -> None:
        """Forget `fd`; call it before the descriptor is closed."""
        ...

    def close(self) -> None:
        """Stop waking; registered descriptors stay open."""
        ...


def make_reactor(loop: asyncio.AbstractEventLoop, hold_ns: int = HOLD_NS) -> Reactor:
    """The cheapest reactor of this platform; `hold_ns` is as in `EpollReactor`."""
    return EpollReactor(loop, hold_ns) if hasattr(select, "epoll") and has_timerfd() else LoopReactor(loop)


class LoopReactor:
    """Leaves readiness to the event loop, one callback a descriptor; for systems without epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handlers: dict[int, Handler] = {}
        self._masks: dict[int, int] = {}
        self.wakeups = 0

    def register(self, fd: int, mask: int, handler: Handler) -> None:
        """See `Reactor.register`."""
        self._handlers[fd] = handler
        self._watch(fd, mask)

    def modify(self, fd: int, mask: int, handler: Handler | None = None) -> None:
        """See `Reactor.modify`."""
        if handler is not None:
            self._handlers[fd] = handler
        self._watch(fd, mask)

    def unregister(self, fd: int) -> None:
        """See `Reactor.unregister`."""
        if self._handlers.pop(fd, None) is not None:
            self._watch(fd, 0)
            del self._masks[fd]

    def close(self) -> None:
        """See `Reactor.close`."""
        for fd in list(self._handlers):
            self.unregister(fd)

    def _watch(self, fd: int, mask: int) -> None:
        before, self._masks[fd] = self._masks.get(fd, 0), mask
        if (before ^ mask) & READ:
            (self._loop.add_reader(fd, self._ready, fd, READ) if mask & READ else self._loop.remove_reader(fd))
        if (before ^ mask) & WRITE:
            (self._loop.add_writer(fd, self._ready, fd, WRITE) if mask & WRITE else self._loop.remove_writer(fd))

    def _ready(self, fd: int, mask: int) -> None:
        self.wakeups += 1
        handler = self._handlers.get(fd)
        if handler is not None:
            handler(mask)


class EpollReactor:
    """Calls a handler for each ready descriptor; belongs to one running event loop.

    Args:
        loop: the event loop that wakes it.
        hold_ns: how long to gather readiness after a wake-up; 0 reacts to each event at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, hold_ns: int = HOLD_NS) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timer = TimerFd()
        self._holding = False
        self._gathered = 0  # descriptors that the last holds found ready
        self._woken_ns = 0
        self._draining = False
        self._newcomers: dict[int, Handler] = {}
        self.hold_ns = hold_ns
        self.wakeups = 0
        loop.add_reader(self._epoll.fileno(), self._woken)
        loop.add_reader(self._timer.fd, self._expired)

    def register(self, fd: int, mask: int, handler: Handler) -> None:
        """Call `handler(mask)` whenever `fd` is ready for what `mask` names (or has failed)."""
        self._handlers[fd] = handler
        if self._draining:
            # The batch may hold an event of the number's last owner; the kernel tells again when the newcomer is ready.
            self._handlers[fd], self._newcomers[fd] = _ignore, handler
        self._epoll.register(fd, mask)

    def modify(self, fd: int, mask: int, handler: Handler | None = None) -> None:
        """Change what is waited for, and optionally who is called."""
        if handler is not None:
            (self._newcomers if fd in self._newcomers else self._handlers)[fd] = handler
        self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Forget `fd`; call it before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._newcomers.pop(fd, None)
            self._epoll.unregister(fd)

    def drain(self) -> int:
        """Handle what is ready now, without waiting, for a turn at most; returns how many descriptors were handled."""
        total = 0
        end = 0
        while True:
            ready = self._epoll.poll(0, _BATCH)
            self._handle(ready)
            total += len(ready)
            if len(ready) < _BATCH:
                return total
            now = time.monotonic_ns()
            end = end or now + _TURN_NS
            if now >= end:
                return total

    def _handle(self, ready: list[tuple[int, int]]) -> None:
        handlers = self._handlers
        self._draining = True
        try:
            for fd, mask in ready:
                handler = handlers.get(fd)
                if handler is not None:
                    handler(mask)
        finally:
            self._draining = False
            if self._newcomers:
                handlers.update(self._newcomers)
                self._newcomers.clear()

    def close(self) -> None:
        """Stop waking; registered descriptors stay open."""
        if not self._holding:
            self._loop.remove_reader(self._epoll.fileno())
        self._loop.remove_reader(self._timer.fd)
        self._timer.close()
        self._epoll.close()

    def _woken(self) -> None:
        self.wakeups += 1
        self.drain()
        now = time.monotonic_ns()
        crowded = self._gathered > 1 or now - self._woken_ns < self.hold_ns
        self._woken_ns = now
        if crowded and self.hold_ns > 0:
            self._loop.remove_reader(self._epoll.fileno())
            self._holding = True
            self._timer.after(self.hold_ns)

    def _expired(self) -> None:
        self._timer.clear()
        self.wakeups += 1
        try:
            self._gathered = self.drain()
        finally:  # a handler may have failed, and the others must still be heard
            self._holding = False
            self._loop.add_reader(self._epoll.fileno(), self._woken)


def _ignore(mask: int) -> None:
    """Stand for a handler that was registered within the batch that is being handled."""
