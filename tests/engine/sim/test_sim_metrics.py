"""What the engine counts."""

from __future__ import annotations

import pytest

from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.metrics import Histogram
from servebench.engine.sim.request import Finish, Request
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.virtual import Arrival, simulate

CONSTANT = SimSettings(base=0.010, per_prefill_token=0, per_sequence=0, per_context_token=0)


def test_a_bound_belongs_to_its_own_bucket_and_what_lies_beyond_the_last_is_kept():
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 99):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.sum) == (5, 104)


def test_the_phases_of_a_request():
    core = EngineCore(CONSTANT)
    simulate(core, [Arrival(0.0, [1], 3), Arrival(0.004, [2], 5)])
    metrics = core.metrics
    assert metrics.queue_time.sum == pytest.approx(0.006)
    assert metrics.prefill_time.sum == pytest.approx(0.020)
    assert metrics.decode_time.sum == pytest.approx(0.020 + 0.040)
    assert metrics.inference_time.sum == pytest.approx(0.080)
    assert metrics.e2e_latency.sum == pytest.approx(0.086)
    assert metrics.time_to_first_token.sum == pytest.approx(0.026)
    assert metrics.time_per_output_token.sum == pytest.approx(0.020)
    assert (metrics.inter_token_latency.count, metrics.step_tokens.count) == (6, 6)


def test_a_request_aborted_in_the_queue_has_no_phases():
    core = EngineCore(CONSTANT)
    request = Request([1], 3)
    core.submit(request, 1.0)
    core.abort(request, 1.5)
    metrics = core.metrics
    assert metrics.finished_by[Finish.ABORT] == 1
    assert metrics.e2e_latency.sum == 0.5
    assert metrics.queue_time.count == metrics.prefill_time.count == 0
    core.abort(request, 2.0)
    assert metrics.finished_by[Finish.ABORT] == 1
