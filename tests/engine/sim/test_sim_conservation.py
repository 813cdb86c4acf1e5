"""Nothing is lost and nothing is made up, whatever the workload."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.request import Finish
from servebench.engine.sim.scheduler import Scheduler, Step
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.virtual import Arrival, simulate

SETTINGS = st.builds(
    SimSettings,
    max_num_batched_tokens=st.integers(1, 300),
    max_num_seqs=st.integers(1, 12),
    kv_tokens=st.integers(120, 600),
    block_size=st.sampled_from([1, 4, 16]),
    enable_prefix_caching=st.booleans(),
)
# Few distinct tokens, so that prefixes are shared; at most 100 tokens in all, so that each request fits.
REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 0.5), st.lists(st.integers(0, 1), min_size=1, max_size=60), st.integers(1, 40)
    ).map(lambda parts: Arrival(*parts)),
    min_size=1,
    max_size=25,
)  # fmt: skip


class Watched(EngineCore):
    """Checks each step as it is made."""

    def __init__(self, limits: SimSettings) -> None:
        super().__init__(limits)
        self.prefilled = 0
        self.scheduler = WatchedScheduler(limits)


class WatchedScheduler(Scheduler):
    def schedule(self) -> Step:
        step = super().schedule()
        assert 1 <= step.tokens <= self._settings.max_num_batched_tokens
        assert not (step.preempted and step.admitted)
        assert len(self.running) <= self._settings.max_num_seqs
        held: set[int] = set()
        for request in self.running:
            assert len(request.blocks) == -(-request.computed // self._size)
            held.update(request.blocks)
        assert len(held) == self.pool.used
        return step


@settings(max_examples=100, deadline=None)
@given(SETTINGS, REQUESTS)
def test_every_request_gets_exactly_its_tokens_and_gives_all_blocks_back(limits: SimSettings, plan: list[Arrival]):
    plan = sorted(plan, key=lambda arrival: arrival.at)
    core = Watched(limits)
    traces = simulate(core, plan)
    for arrival, trace in zip(plan, traces, strict=True):
        assert len(trace.token_times) == trace.request.output_tokens == arrival.max_tokens
        assert trace.request.finish is Finish.LENGTH
        assert trace.token_times[0] > arrival.at
        assert all(gap > 0 for gap in trace.gaps)
    assert core.scheduler.pool.used == 0
    assert core.metrics.generation_tokens == sum(arrival.max_tokens for arrival in plan)
    assert core.metrics.prompt_tokens == sum(len(arrival.prompt) for arrival in plan)
    assert core.metrics.preemptions == sum(trace.request.preemptions for trace in traces)


@settings(max_examples=60, deadline=None)
@given(SETTINGS, REQUESTS)
def test_computed_tokens_are_those_asked_less_those_cached_plus_those_lost_to_preemption(
    limits: SimSettings, plan: list[Arrival]
):
    plan = sorted(plan, key=lambda arrival: arrival.at)
    core = EngineCore(limits)
    traces = simulate(core, plan)
    cached = sum(trace.request.cached_tokens or 0 for trace in traces)
    asked = sum(len(arrival.prompt) + arrival.max_tokens - 1 for arrival in plan)  # nobody computes the last token
    computed = core.metrics.step_tokens.sum
    if core.metrics.preemptions == 0:
        assert computed == asked - cached
    elif not limits.enable_prefix_caching:
        assert computed > asked
    assert cached == core.scheduler.cache_hits


@settings(max_examples=30, deadline=None)
@given(SETTINGS, REQUESTS)
def test_two_runs_of_one_workload_are_identical(limits: SimSettings, plan: list[Arrival]):
    plan = sorted(plan, key=lambda arrival: arrival.at)
    first, second = (simulate(EngineCore(limits), plan) for _ in range(2))
    assert [trace.token_times for trace in first] == [trace.token_times for trace in second]
    assert [trace.request.tokens for trace in first] == [trace.request.tokens for trace in second]
