"""Work in small slices between two looks at the sockets, so that no backlog keeps the event loop from reading."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

SLICE_NS = 700_000

Task = Callable[[], None]


class Slices:
    """Runs queued tasks for at most `SLICE_NS` at a time; urgent ones (sending) before others (decoding).

    Args:
        loop: the event loop between whose turns it works.
        idle: called when both queues are empty; does a little background work and returns whether there is more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: Callable[[], bool] | None = None) -> None:
        self._loop = loop
        self._idle = idle
        self._urgent: deque[Task] = deque()
        self._normal: deque[Task] = deque()
        self._scheduled = False

    @property
    def backlog(self) -> int:
        """Tasks that wait."""
        return len(self._urgent) + len(self._normal)

    def urgent(self, task: Task) -> None:
        """Run `task` in the next slice."""
        self._urgent.append(task)
        self.wake()

    def later(self, task: Task) -> None:
        """Run `task` after the urgent ones and those queued before it."""
        self._normal.append(task)
        self.wake()

    def wake(self) -> None:
        """See to it that a slice runs."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._slice)

    def flush(self) -> None:
        """Run everything that waits, at once."""
        while self._urgent or self._normal:
            (self._urgent or self._normal).popleft()()

    def _slice(self) -> None:
        self._scheduled = False
        end = time.perf_counter_ns() + SLICE_NS
        urgent, normal = self._urgent, self._normal
        while True:
            if urgent:
                urgent.popleft()()
            elif normal:
                normal.popleft()()
            elif self._idle is None or not self._idle():
                return
            if time.perf_counter_ns() >= end:
                self.wake()
                return
