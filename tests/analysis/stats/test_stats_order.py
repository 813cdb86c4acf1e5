from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from servebench.analysis.stats.order import order_interval


@pytest.mark.parametrize(
    ("n", "ranks"), [(367, None), (368, (360, 368)), (500, (490, 500)), (1000, (983, 997)), (5000, (4936, 4964))]
)
def test_ranks_of_p99(n: int, ranks: tuple[int, int] | None) -> None:
    assert order_interval(n, Fraction(99, 100)) == ranks
    assert order_interval(n, 0.99) == ranks


@given(st.integers(1, 3_000), st.sampled_from([0.01, 0.5, 0.9, 0.99]), st.sampled_from([0.8, 0.95, 0.99]))
def test_each_end_is_as_near_as_its_share_of_errors_allows(n: int, share: float, confidence: float) -> None:
    tail = (1 - confidence) / 2 * (1 + 1e-9)
    found = order_interval(n, share, confidence)
    if found is None:
        assert share**n > tail / 1.0001 or (1 - share) ** n > tail / 1.0001
        return
    low, high = found
    assert binom.cdf(low - 1, n, share) <= tail < binom.cdf(low, n, share) * (1 + 2e-9)
    assert binom.sf(high - 1, n, share) <= tail < binom.sf(high - 2, n, share) * (1 + 2e-9)


def test_it_covers_the_quantile_of_independent_samples() -> None:
    generator = np.random.default_rng(1)
    samples = np.sort(generator.exponential(1, (4_000, 500)), axis=1)
    low, high = order_interval(500, 0.95) or (0, 0)
    truth = -np.log(0.05)
    covered = ((samples[:, low - 1] <= truth) & (truth <= samples[:, high - 1])).mean()
    assert 0.94 <= covered <= 0.98


def test_the_median_of_few() -> None:
    assert order_interval(5, 0.5) is None
    assert order_interval(6, 0.5) == (1, 6)


@pytest.mark.parametrize(("n", "share", "confidence"), [(0, 0.5, 0.95), (5, 1.0, 0.95), (5, 0.0, 0.95), (5, 0.5, 1.0)])
def test_nonsense_is_an_error(n: int, share: float, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"at least one|not between"):
        order_interval(n, share, confidence)
