"""The simulated engine against queueing theory: one server, constant service time, poisson arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.virtual import Arrival, simulate

SERVICE = 0.010
WARM_UP = 500


def waits(rho: float, requests: int, seed: int) -> np.ndarray:
    """Return the time from arrival to the start of service of each request, in seconds."""
    settings = SimSettings(base=SERVICE, per_prefill_token=0, per_sequence=0, per_context_token=0, max_num_seqs=1)
    gaps = np.random.default_rng(seed).exponential(SERVICE / rho, requests)
    arrivals = [Arrival(float(at), [1], 1) for at in np.cumsum(gaps)]
    return np.array([trace.ttft - SERVICE for trace in simulate(EngineCore(settings), arrivals)])


@pytest.mark.parametrize("rho", [0.3, 0.7])
def test_mean_wait_is_that_of_an_m_d_1_queue(rho: float):
    theory = rho * SERVICE / (2 * (1 - rho))  # Pollaczek-Khinchine with no service variance
    means = np.array([waits(rho, 4000, seed)[WARM_UP:].mean() for seed in range(16)])
    half_width = stats.t.ppf(0.995, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    assert half_width < 0.1 * theory  # else the next line could not fail
    assert abs(means.mean() - theory) < half_width


def test_the_share_of_requests_that_find_the_engine_idle_is_one_minus_rho():
    rho = 0.5
    shares = np.array([(waits(rho, 2000, seed)[WARM_UP:] < 1e-9).mean() for seed in range(16)])
    half_width = stats.t.ppf(0.995, len(shares) - 1) * shares.std(ddof=1) / np.sqrt(len(shares))
    assert half_width < 0.03
    assert abs(shares.mean() - (1 - rho)) < half_width


def test_an_idle_engine_starts_at_the_arrival_and_not_on_a_step_grid():
    settings = SimSettings(base=SERVICE, per_prefill_token=0, per_sequence=0, per_context_token=0, max_num_seqs=1)
    traces = simulate(EngineCore(settings), [Arrival(0.0, [1], 1), Arrival(0.0137, [1], 1), Arrival(0.0201, [1], 1)])
    assert [trace.token_times[0] for trace in traces] == pytest.approx([0.010, 0.0237, 0.0337])


def test_waits_follow_lindleys_recursion_exactly():
    gaps = np.random.default_rng(3).exponential(SERVICE / 0.8, 300)
    expected = [0.0]
    for gap in gaps[1:]:
        expected.append(max(0.0, expected[-1] + SERVICE - gap))
    assert waits(0.8, 300, 3) == pytest.approx(expected, abs=1e-9)


def test_the_engines_own_queue_time_is_the_wait():
    settings = SimSettings(base=SERVICE, per_prefill_token=0, per_sequence=0, per_context_token=0, max_num_seqs=1)
    core = EngineCore(settings)
    gaps = np.random.default_rng(5).exponential(SERVICE / 0.8, 300)
    traces = simulate(core, [Arrival(float(at), [1], 1) for at in np.cumsum(gaps)])
    assert core.metrics.queue_time.sum == pytest.approx(sum(trace.ttft - SERVICE for trace in traces))
    assert core.metrics.queue_time.count == 300
