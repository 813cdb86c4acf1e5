import numpy as np
import pytest
from scipy.stats import t

from servebench.analysis.stats.interval import Interval
from servebench.analysis.stats.student import mean_interval


@pytest.mark.parametrize("n", [2, 3, 6, 40])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_scipy_finds_the_same_interval(n: int, confidence: float) -> None:
    values = np.random.default_rng(n).normal(5, 2, n)
    found = mean_interval(values, confidence)
    expected = t.interval(confidence, n - 1, values.mean(), values.std(ddof=1) / np.sqrt(n))
    assert (found.low, found.high) == pytest.approx(expected)


def test_one_run_has_no_spread() -> None:
    assert mean_interval([1.0]) == Interval(None, None, 0.0)


def test_equal_runs_have_an_interval_without_length() -> None:
    assert mean_interval([0.75] * 4) == Interval(0.75, 0.75, 0.95)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [[1.0, 2.0]]])
def test_no_values_are_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="values"):
        mean_interval(values)
