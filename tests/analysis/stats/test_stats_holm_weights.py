from __future__ import annotations

import numpy as np
import pytest

from servebench.analysis.stats.holm import holm


def test_by_hand() -> None:
    # the order is that of p over weight: 0.03/0.7, then 0.04/0.3; the second has all of the level to itself
    assert holm([0.04, 0.03], [0.3, 0.7]) == pytest.approx([0.03 / 0.7, 0.03 / 0.7])
    assert holm([0.20, 0.03], [0.3, 0.7]) == pytest.approx([0.20, 0.03 / 0.7])
    assert holm([0.012, 0.20], [0.3, 0.7]) == pytest.approx([0.04, 0.20])


def test_equal_weights_are_holms_own() -> None:
    p = np.random.default_rng(1).uniform(0, 0.2, 7)
    assert holm(p, np.full(7, 3.0)) == pytest.approx(holm(p))


def test_only_proportions_of_the_weights_count() -> None:
    p = [0.01, 0.2, 0.03]
    assert holm(p, [1, 2, 4]) == pytest.approx(holm(p, [10, 20, 40]))


def test_family_wise_error_is_at_most_the_level() -> None:
    p = np.random.default_rng(2).uniform(size=(20_000, 3))
    least = [holm(row, [0.7, 0.15, 0.15]).min() for row in p]
    assert np.mean(np.array(least) <= 0.05) == pytest.approx(0.05, abs=0.005)


def test_nothing_to_correct() -> None:
    assert holm([], []).size == 0


@pytest.mark.parametrize(("p", "weights"), [([1.1], [1]), ([0.1], [0]), ([0.1], [1, 1]), ([float("nan")], [1])])
def test_what_is_no_p_or_no_weight(p: list[float], weights: list[float]) -> None:
    with pytest.raises(ValueError, match=r"p values|weights|finite"):
        holm(p, weights)
