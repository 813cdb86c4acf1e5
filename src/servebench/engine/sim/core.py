"""The engine between its scheduler and a clock: which step is under way, and what the server may report of it.

The driver brings the clock: `virtual.simulate` jumps from event to event, `engine.LiveEngine` waits for real.
"""

from __future__ import annotations

from servebench.engine.sim.metrics import EngineMetrics
from servebench.engine.sim.request import Request, State
from servebench.engine.sim.scheduler import Scheduler, Step
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.steptime import step_seconds


class EngineCore:
    """One engine: `submit` and `abort` at any time, `begin` and `end` by turns; instants are seconds on one clock."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        self.scheduler = Scheduler(settings)
        self.metrics = EngineMetrics()
        self._step: Step | None = None

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return self._step is not None

    @property
    def step(self) -> Step | None:
        """The step under way."""
        return self._step

    def submit(self, request: Request, now: float) -> None:
        """Queue a request that arrived `now`; it can be part of the next step, not of the one under way.

        Raises:
            TooLongError: it exceeds the KV cache.
        """
        self.scheduler.add(request)
        request.arrived = now

    def abort(self, request: Request, now: float) -> None:
        """End a request early; its blocks are free at once. A finished one is left alone."""
        if request.state is not State.FINISHED:
            self.scheduler.abort(request)
            self.metrics.finished(request, now)

    def begin(self, now: float) -> float | None:
        """Start a step and return the seconds it takes, or None where there is nothing to compute."""
        if not self.scheduler.has_work:
            return None
        step = self.scheduler.schedule()
        for request in step.admitted:
            if request.scheduled is None:
                # A step counts from the deadline of the last one, which a late wake-up lets an arrival overtake.
                request.scheduled = max(now, request.arrived)
        self._step = step
        return step_seconds(step, self.settings)

    def end(self, now: float) -> list[tuple[Request, int]]:
        """Finish the step under way and return the token that each emitting request gets."""
        assert self._step is not None, "end() without begin()"
        step, self._step = self._step, None
        emitted = self.scheduler.complete(step)
        self.metrics.stepped(step, emitted, now)
        return emitted
