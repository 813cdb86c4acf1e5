import numpy as np
import pytest

from queueing import autoregressive
from servebench.analysis.stats.samples import effective_size


@pytest.mark.parametrize("phi", [0.3, 0.6, 0.9])
def test_an_autoregressive_series_has_the_size_of_its_formula(phi: float) -> None:
    n = 50_000
    found = np.mean([effective_size(autoregressive(phi, n, seed)) for seed in range(5)])
    assert found == pytest.approx(n * (1 - phi) / (1 + phi), rel=0.1)


def test_independent_samples_count_nearly_fully() -> None:
    found = [effective_size(np.random.default_rng(seed).exponential(1, 5_000)) for seed in range(20)]
    assert 0.9 * 5_000 < np.mean(found) <= 5_000


def test_it_predicts_the_spread_of_the_mean() -> None:
    """What it is for: the variance of a mean is that of so many independent samples."""
    runs = np.array([autoregressive(0.8, 1_000, seed) for seed in range(400)])
    promised = np.mean([run.var() / effective_size(run) for run in runs])
    assert promised == pytest.approx(runs.mean(axis=1).var(), rel=0.25)


def test_alternating_values_are_not_worth_more_than_they_are() -> None:
    assert effective_size(np.tile([1.0, -1.0], 500)) == 1_000


def test_a_trend_is_worth_next_to_nothing() -> None:
    assert effective_size(np.arange(1_000.0)) < 10


@pytest.mark.parametrize("seed", range(8))
def test_it_is_geyers_estimate_term_by_term(seed: int) -> None:
    x = autoregressive(0.7, 41, seed)
    centred = x - x.mean()
    correlation = [float(centred[lag:] @ centred[: x.size - lag] / (centred @ centred)) for lag in range(x.size)]
    total, least = -1.0, np.inf
    for lag in range(0, x.size - 1, 2):
        least = min(least, correlation[lag] + correlation[lag + 1])
        if least <= 0:
            break
        total += 2 * least
    assert effective_size(x) == pytest.approx(x.size / max(total, 1.0))


def test_the_unit_does_not_matter() -> None:
    series = autoregressive(0.5, 1_000, 1)
    assert effective_size(series * 1e6 + 1e9) == pytest.approx(effective_size(series), rel=1e-6)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_constant_series_counts_fully(n: int) -> None:
    assert effective_size(np.full(n, 0.1)) == n


@pytest.mark.parametrize("series", [[], [1.0, float("nan")]])
def test_nothing_to_count_is_an_error(series: list[float]) -> None:
    with pytest.raises(ValueError, match="series"):
        effective_size(series)
