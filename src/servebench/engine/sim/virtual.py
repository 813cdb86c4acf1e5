"""The simulated engine in virtual time: a list of arrivals run to its end, without sockets and without waiting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.request import Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to come: when (seconds), its prompt's token ids, and how many tokens it asks for."""

    at: float
    prompt: list[int]
    max_tokens: int


@dataclass(slots=True)
class Trace:
    """What became of an arrival: the request, and the instant (seconds) of each of its tokens."""

    request: Request
    token_times: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive tokens."""
        return [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]

    @property
    def ttft(self) -> float:
        """Seconds from arrival to first token."""
        return self.token_times[0] - self.request.arrived


def simulate(core: EngineCore, arrivals: Iterable[Arrival]) -> list[Trace]:
    """Run `arrivals`, which are in time order, to completion and return their traces in the same order.

    A request that arrives at the very instant a step ends is part of the next step.

    Raises:
        TooLongError: a request exceeds the KV cache.
    """
    plan = list(arrivals)
    traces = [Trace(Request(arrival.prompt, arrival.max_tokens)) for arrival in plan]
    by_request = {id(trace.request): trace for trace in traces}
    position = 0
    now = plan[0].at if plan else 0.0
    while position < len(plan) or core.scheduler.has_work:
        if not core.scheduler.has_work:
            now = max(now, plan[position].at)
        position = _submit_due(core, plan, traces, position, now)
        now, position = _run_step(core, plan, traces, position, now, by_request)
    return traces


def _submit_due(core: EngineCore, plan: list[Arrival], traces: list[Trace], position: int, now: float) -> int:
    while position < len(plan) and plan[position].at <= now:
        core.submit(traces[position].request, plan[position].at)
        position += 1
    return position


def _run_step(
    core: EngineCore, plan: list[Arrival], traces: list[Trace], position: int, now: float, by_request: dict[int, Trace]
) -> tuple[float, int]:
    seconds = core.begin(now)
    assert seconds is not None, "a step without work"
    end = now + seconds
    position = _submit_due(core, plan, traces, position, end)
    for request, _ in core.end(end):
        by_request[id(request)].token_times.append(end)
    return end, position
