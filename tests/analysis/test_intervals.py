import numpy as np
import pytest

from servebench.analysis.intervals import LEAST_SAMPLES, within_run
from servebench.analysis.metrics import Samples
from servebench.analysis.quantiles import REPORTED, nearest

QUANTILES = tuple(q for q in REPORTED if q.name in ("p50", "p95", "p99"))


def exponential(n: int, seed: int = 0) -> Samples:
    values = np.random.default_rng(seed).exponential(50e6, n).astype(np.int64)
    return Samples(values, np.arange(n, dtype=np.int64))


@pytest.mark.parametrize("n", [LEAST_SAMPLES, 1_000, 30_000, 250_000])
def test_the_interval_holds_the_runs_own_quantile(n: int) -> None:
    samples = exponential(n)
    found = within_run(samples, QUANTILES)
    assert found is not None
    for quantile in QUANTILES:
        low, high = found[quantile.name]
        value = nearest(np.sort(samples.values), quantile)
        assert low <= value * 1.005
        assert value <= high * 1.005


@pytest.mark.parametrize(("name", "share"), [("p50", 0.5), ("p95", 0.95)])
def test_of_independent_samples_most_intervals_hold_the_truth(name: str, share: float) -> None:
    truth = -50e6 * np.log(1 - share)
    found = [within_run(exponential(2_000, seed), QUANTILES) for seed in range(60)]
    covered = sum(f is not None and f[name][0] <= truth <= f[name][1] for f in found)
    assert covered >= 48  # nominal 57; few blocks make intervals a little short


def test_correlation_widens_the_interval() -> None:
    """The same values, in blocks that rise and fall together."""
    independent = exponential(2_000)
    correlated = Samples(np.sort(independent.values), independent.at)
    narrow, wide = within_run(independent, QUANTILES), within_run(correlated, QUANTILES)
    assert narrow is not None
    assert wide is not None
    assert wide["p50"][1] - wide["p50"][0] > 5 * (narrow["p50"][1] - narrow["p50"][0])


def test_weights_count_like_repetitions() -> None:
    values = np.tile(np.array([10, 20], np.int64), 500)
    at = np.arange(1_000, dtype=np.int64)
    found = within_run(Samples(values, at, np.tile(np.array([1, 9], np.int32), 500)), QUANTILES)
    assert found == {"p50": (20, 20), "p95": (20, 20), "p99": (20, 20)}


def test_the_same_samples_give_the_same_interval() -> None:
    assert within_run(exponential(500), QUANTILES) == within_run(exponential(500), QUANTILES)


def test_too_few_samples_have_none() -> None:
    assert within_run(exponential(LEAST_SAMPLES - 1), QUANTILES) is None
