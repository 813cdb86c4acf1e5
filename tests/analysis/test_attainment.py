"""The share of requests that keep to an objective, its error by blocks, and what the series is worth."""

import numpy as np
import pytest

from servebench.analysis import slo
from servebench.analysis.attainment import BLOCKS, Attained, attained
from servebench.analysis.facts import gather
from servebench.analysis.metrics import Samples
from servebench.record.columns import Outcome
from servebench.testing.synthetic import MS, SyntheticRun, open_run


def of(run: SyntheticRun) -> Attained:
    (reached,) = gather(run.data()).objectives
    return reached.attained


def pooled(late: np.ndarray, weights: np.ndarray | None = None) -> Attained:
    """Of ITL samples in order of time, late where the mask says so."""
    run = open_run(requests=2, warmup=0, cooldown=0)
    (objective,) = slo.objectives({"scenario": {"slo": {"itl": "p99 < 50ms"}}})
    values = np.where(late, 60 * MS, 40 * MS).astype(np.int64)
    samples = Samples(values, np.arange(values.size, dtype=np.int64), weights)
    return attained(run.data(), np.ones(2, bool), objective, samples)


def test_a_failed_request_is_offered_and_misses() -> None:
    run = open_run(requests=40, warmup=0, cooldown=0, slo={"ttft": "p95 < 1s"})
    assert (of(run).within, of(run).of, of(run).share) == (39, 39, 1.0)
    run.records[7].outcome = Outcome.HTTP_ERROR
    assert (of(run).within, of(run).of) == (38, 39)


def test_the_share_agrees_with_the_quantile() -> None:
    run = open_run(requests=100, warmup=0, cooldown=0, slo={"ttft": "p95 < 1s"})
    for late in range(7):
        for record in run.records[:late]:
            record.first_token_ns = record.scheduled_ns + 2000 * MS
        (reached,) = gather(run.data()).objectives
        assert reached.met == (reached.attained.within >= 95), late


def test_a_pooled_metric_is_asked_of_its_tokens() -> None:
    late = np.zeros(1000, bool)
    late[:10] = True
    assert (pooled(late).within, pooled(late).of) == (990, 1000)
    weights = np.where(late, 3, 1).astype(np.int32)
    assert (pooled(late, weights).within, pooled(late, weights).of) == (990, 1020)


def test_the_error_is_that_of_independent_requests_when_late_ones_are_spread() -> None:
    errors = [pooled(np.random.default_rng(seed).random(4000) < 0.1).error or 0 for seed in range(40)]
    assert np.mean(errors) == pytest.approx(np.sqrt(0.1 * 0.9 / 4000), rel=0.1)


def test_the_error_is_that_of_clusters_when_late_ones_come_together() -> None:
    late = [np.repeat(np.random.default_rng(seed).random(400) < 0.1, 10) for seed in range(40)]
    errors = [pooled(mask).error or 0 for mask in late]
    assert np.mean(errors) == pytest.approx(np.sqrt(0.1 * 0.9 / 400), rel=0.15)


def test_without_a_late_one_the_error_is_none_and_the_effective_size_speaks() -> None:
    late = np.zeros(500, bool)
    assert pooled(late).error == 0
    assert pooled(late).effective == 500


def test_the_effective_size_falls_with_clusters() -> None:
    late = np.repeat(np.random.default_rng(1).random(400) < 0.3, 10)
    assert (pooled(late).effective or 0) == pytest.approx(400, rel=0.25)


def test_too_few_for_blocks_and_nothing_at_all() -> None:
    assert pooled(np.zeros(BLOCKS - 1, bool)).error is None
    nothing = pooled(np.zeros(0, bool))
    assert (nothing.within, nothing.of, nothing.share, nothing.effective) == (0, 0, None, None)
