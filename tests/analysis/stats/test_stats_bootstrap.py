import numpy as np
import pytest
from scipy.stats import norm

from queueing import autoregressive
from servebench.analysis.stats import bootstrap
from servebench.analysis.stats.bootstrap import LEAST, block_counts, over_blocks, over_runs
from servebench.analysis.stats.interval import Interval
from servebench.analysis.stats.student import mean_interval

NORMAL = np.random.default_rng(1).normal(10, 2, 24)


def length(interval: Interval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


@pytest.mark.parametrize("n", [8, 12, 24])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_of_a_mean_it_is_as_long_as_students(n: int, confidence: float) -> None:
    values = norm.ppf((np.arange(n) + 0.5) / n)  # as a normal law spreads them, without the luck of a draw
    found, expected = over_runs(values, confidence=confidence), mean_interval(values, confidence)
    assert length(found) == pytest.approx(length(expected), rel=0.03)


@pytest.mark.parametrize("n", [6, 12])
def test_intervals_of_run_means_and_medians_hold_the_truth(n: int) -> None:
    samples = np.random.default_rng(n).normal(0, 1, (1_000, n))
    for statistic in (np.mean, np.median):
        covered = np.mean([0.0 in over_runs(row, statistic, resamples=1_000) for row in samples])
        assert 0.90 <= covered <= 0.98


def test_any_statistic_may_be_asked() -> None:
    found = over_runs(NORMAL, lambda x, axis: np.exp(np.log(x).mean(axis=axis)))
    assert float(np.exp(np.log(NORMAL).mean())) in found


def test_equal_runs_have_an_interval_without_length() -> None:
    assert over_runs([3.0] * 6) == Interval(3.0, 3.0, 0.95)


def test_too_few_have_none() -> None:
    assert over_runs(NORMAL[: LEAST - 1]) == Interval(None, None, 0.0)
    assert over_runs(NORMAL[:LEAST]).low is not None
    assert over_blocks(NORMAL[:19], blocks=20) == Interval(None, None, 0.0)
    assert over_blocks(NORMAL, blocks=LEAST - 1) == Interval(None, None, 0.0)


def test_blocks_hold_the_mean_of_a_correlated_series_where_single_values_do_not() -> None:
    series = [autoregressive(0.9, 2_000, seed) for seed in range(300)]
    in_blocks = np.mean([0.0 in over_blocks(x, resamples=500) for x in series])
    alone = np.mean([0.0 in mean_interval(x) for x in series])
    assert 0.90 <= in_blocks <= 0.98
    assert alone < 0.5


def test_what_fills_no_block_is_left_out_at_the_beginning() -> None:
    series = np.concatenate([[1e9, 1e9, 1e9], np.random.default_rng(2).normal(0, 1, 100)])
    assert over_blocks(series) == over_blocks(series[3:])


def test_neither_seed_nor_chunks_are_left_to_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    series = autoregressive(0.9, 1_000, 1)
    found = over_blocks(series)
    assert over_blocks(series, seed=7) != found
    monkeypatch.setattr(bootstrap, "CHUNK", 5_000)
    assert over_blocks(series) == found


def test_counts_are_how_often_each_block_was_drawn() -> None:
    counts = block_counts(20, 500)
    assert counts.shape == (500, 20)
    assert (counts.sum(axis=1) == 20).all()
    assert counts.mean() == 1
    assert 0.85 < counts.var() < 1.05  # (1 − 1/20) by the multinomial law


@pytest.mark.parametrize("call", [over_runs, over_blocks])
@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_no_values_are_an_error(call: object, values: list[float]) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"values|series"):
        call(values)
