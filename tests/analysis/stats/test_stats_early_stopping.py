from fractions import Fraction

import pytest
from scipy.stats import binom

from servebench.analysis.quantiles import REPORTED, sample_floor
from servebench.analysis.stats.early_stopping import estimate_rank, floor, least_queries

FLOORS = {"p50": 11, "p90": 64, "p95": 130, "p99": 662, "p99_9": 6636}


def test_floors_are_mlperfs() -> None:
    assert {q.name: floor(q.share) for q in REPORTED} == FLOORS
    assert {q.name: sample_floor(q) for q in REPORTED} == FLOORS
    assert floor(0.99) == 662


@pytest.mark.parametrize("quantile", REPORTED, ids=lambda q: q.name)
def test_a_floor_is_one_over_and_what_makes_up_for_it(quantile: object) -> None:
    share = quantile.share  # type: ignore[attr-defined]
    assert floor(share) == least_queries(1, share) + 1


def test_without_one_over_the_limit_p99_takes_459() -> None:
    assert least_queries(0, Fraction(99, 100)) == 459
    assert least_queries(0, 0.99, confidence=0.95) == 299


@pytest.mark.parametrize("over", [0, 1, 5, 40])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_fewer_would_not_do(over: int, share: float) -> None:
    found = least_queries(over, share)
    assert binom.cdf(over, found + over, 1 - share) < 0.01
    assert binom.cdf(over, found + over - 1, 1 - share) >= 0.01


def test_the_value_that_loadgen_takes_for_a_quantile() -> None:
    assert estimate_rank(10_000, 0.99) == 77
    assert (estimate_rank(661, 0.99), estimate_rank(662, 0.99)) == (None, 1)


@pytest.mark.parametrize("n", [662, 2_000, 10_000, 24_576])
def test_the_estimate_is_the_most_overruns_that_would_be_accepted(n: int) -> None:
    rank = estimate_rank(n, 0.99)
    assert rank is not None
    assert least_queries(rank, 0.99) + rank <= n < least_queries(rank + 1, 0.99) + rank + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: least_queries(-1, 0.99),
        lambda: least_queries(0, 1.0),
        lambda: least_queries(0, 0.99, 0.0),
        lambda: floor(0.0),
        lambda: estimate_rank(0, 0.99),
        lambda: estimate_rank(10, 1.5),
    ],
)
def test_nonsense_is_an_error(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"over the limit|not between|at least one"):
        call()
