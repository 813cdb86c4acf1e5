import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.analysis.quantiles import REPORTED, Quantile, nearest, nearest_weighted, rank, sample_floor

values = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)
shares = st.sampled_from([*REPORTED, Quantile.parse("p97.5"), Quantile.parse("p1"), Quantile.parse("p25")])


@given(values, shares)
def test_nearest_is_the_least_value_that_reaches_the_share(numbers: list[int], quantile: Quantile) -> None:
    found = nearest(np.sort(np.array(numbers, np.int64)), quantile)
    least = min(v for v in numbers if Fraction(sum(x <= v for x in numbers), len(numbers)) >= quantile.share)
    assert found == least


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 9)), min_size=1, max_size=40), shares)
def test_weights_count_like_repetitions(pairs: list[tuple[int, int]], quantile: Quantile) -> None:
    pairs.sort()
    ordered, weights = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    repeated = np.repeat(ordered, weights)
    assert nearest_weighted(ordered, np.cumsum(weights), quantile) == nearest(repeated, quantile)


@pytest.mark.parametrize("n", [1_000, 200_000, 10_000_000])
def test_ranks_are_exact_where_floating_point_is_not(n: int) -> None:
    assert rank(Quantile.parse("p99.9"), n) == n * 999 // 1000
    assert math.ceil(99.9 / 100 * 200_000) == 199_801  # the trap


@pytest.mark.parametrize(("name", "floor"), [("p50", 11), ("p90", 64), ("p95", 130), ("p99", 662), ("p99.9", 6636)])
def test_floors_are_mlperfs(name: str, floor: int) -> None:
    assert sample_floor(Quantile.parse(name)) == floor


@pytest.mark.parametrize(("text", "name", "share"), [("p95", "p95", "19/20"), ("p99_9", "p99_9", "999/1000")])
def test_parse(text: str, name: str, share: str) -> None:
    parsed = Quantile.parse(text)
    assert (parsed.name, parsed.share) == (name, Fraction(share))
    assert parsed.label == name.replace("_", ".")


@pytest.mark.parametrize("text", ["p0", "p100", "95", "p", "p-5", "p95%", "mean"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantile"):
        Quantile.parse(text)


def test_no_value_has_no_rank() -> None:
    with pytest.raises(ValueError, match="at least one"):
        rank(REPORTED[0], 0)
