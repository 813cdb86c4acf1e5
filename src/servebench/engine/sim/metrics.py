"""What the simulated engine counts, named and bucketed as vLLM V1 does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from servebench.engine.sim.request import Finish, Request, State
from servebench.engine.sim.scheduler import Step

_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_TOKEN_GAP = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_PREEMPTIONS = (0, 1, 2, 5, 10, 20, 50, 100)


class Histogram:
    """Counts by upper bound, with their sum, as Prometheus wants them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Observations in all."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count one value; a bound belongs to its own bucket."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class EngineMetrics:
    """Counters and histograms since the engine started; times in seconds."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.finished_by = dict.fromkeys(Finish, 0)
        self.step_tokens = Histogram(_STEP_TOKENS)
        self.time_to_first_token = Histogram(_FIRST_TOKEN)
        self.inter_token_latency = Histogram(_TOKEN_GAP)
        self.time_per_output_token = Histogram(_TOKEN_GAP)
        self.e2e_latency = Histogram(_REQUEST)
        self.queue_time = Histogram(_REQUEST)
        self.prefill_time = Histogram(_REQUEST)
        self.decode_time = Histogram(_REQUEST)
        self.inference_time = Histogram(_REQUEST)
        self.request_prompt_tokens = Histogram(_COUNTS)
        self.request_generation_tokens = Histogram(_COUNTS)
        self.request_preemptions = Histogram(_PREEMPTIONS)

    def stepped(self, step: Step, emitted: Sequence[tuple[Request, int]], now: float) -> None:
        """Account for a step that ended `now`."""
        self.preemptions += len(step.preempted)
        self.generation_tokens += len(emitted)
        self.step_tokens.observe(step.tokens)
        for request, _ in emitted:
            self._stamp(request, now)
            if request.state is State.FINISHED:
                self.finished(request, now)

    def _stamp(self, request: Request, now: float) -> None:
        if request.last_token is None:
            request.first_token = now
            self.prompt_tokens += request.prompt_tokens
            self.time_to_first_token.observe(now - request.arrived)
        else:
            self.inter_token_latency.observe(now - request.last_token)
        request.last_token = now

    def finished(self, request: Request, now: float) -> None:
        """Account for a request that ended `now`, by itself or aborted; phases it did not reach are not observed."""
        assert request.finish is not None
        self.finished_by[request.finish] += 1
        self.e2e_latency.observe(now - request.arrived)
        self.request_prompt_tokens.observe(request.prompt_tokens)
        self.request_generation_tokens.observe(request.output_tokens)
        self.request_preemptions.observe(request.preemptions)
        if request.scheduled is not None:
            self.queue_time.observe(request.scheduled - request.arrived)
        if request.scheduled is not None and request.first_token is not None and request.last_token is not None:
            self._observe_phases(request.scheduled, request.first_token, request.last_token, request.output_tokens)

    def _observe_phases(self, scheduled: float, first: float, last: float, tokens: int) -> None:
        self.prefill_time.observe(first - scheduled)
        self.decode_time.observe(last - first)
        self.inference_time.observe(last - scheduled)
        if tokens > 1:
            self.time_per_output_token.observe((last - first) / (tokens - 1))
