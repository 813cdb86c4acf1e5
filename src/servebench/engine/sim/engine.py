"""The simulated engine in real time: steps end on absolute deadlines, and all tokens of a step leave together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from servebench.alarm import make_alarm
from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.request import Request
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.steplog import StepLog


class LiveEngine:
    """Runs an `EngineCore` on the monotonic clock inside an event loop.

    The next step counts from the deadline of the last, not from when its tokens were handed out, so that the cost of
    this Python does not add to the step time. Where that cost exceeds a whole step the engine is behind: it starts
    afresh from now and adds the loss to `overrun`, never running steps back to back to catch up.

    Attributes:
        late: seconds, summed, between the deadlines of steps and the instants at which they were ended.
        late_max: the largest of these.
        overrun: seconds lost to steps that this process could not keep up with.
        step_log: told of every step, if there is one; closed with the engine.
    """

    def __init__(
        self,
        settings: SimSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = EngineCore(settings)
        self.late = 0.0
        self.late_max = 0.0
        self.overrun = 0.0
        self.step_log: StepLog | None = None
        self._clock = clock
        self._alarm = make_alarm(loop, self._deadline_passed)
        self._start = self._deadline = 0.0

    def submit(self, request: Request) -> None:
        """Take a request; an idle engine starts a step at once.

        Raises:
            TooLongError: it exceeds the KV cache.
        """
        now = self._clock()
        self.core.submit(request, now)
        if not self.core.busy:
            self._begin(now)

    def abort(self, request: Request) -> None:
        """End a request whose client has gone."""
        self.core.abort(request, self._clock())
        request.listener = None

    def close(self) -> None:
        """Stop the clockwork."""
        self._alarm.close()
        if self.step_log is not None:
            self.step_log.close()

    def _begin(self, start: float) -> None:
        seconds = self.core.begin(start)
        if seconds is None:
            return
        now = self._clock()
        if start + seconds < now:
            self.overrun += now - start
            start = now
        self._start, self._deadline = start, start + seconds
        self._alarm.at(round(self._deadline * 1e9))

    def _deadline_passed(self) -> None:
        now = self._clock()
        self.late += now - self._deadline
        self.late_max = max(self.late_max, now - self._deadline)
        step, start, deadline = self.core.step, self._start, self._deadline
        for request, token in self.core.end(now):
            listener = request.listener
            if request.finish is not None:
                request.listener = None  # they refer to each other: free both without the cyclic collector
            if listener is not None:
                listener.token(token, request.finish)
        if self.step_log is not None and step is not None:
            self.step_log.add(step, start, deadline, len(self.core.scheduler.waiting))
        if not self.core.busy:
            self._begin(self._deadline)
