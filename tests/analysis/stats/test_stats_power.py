import numpy as np
import pytest
from scipy.stats import nct, norm, t

from servebench.analysis.stats.power import pairs_needed, power_paired, power_unpaired, runs_needed

NORMAL = norm.ppf((np.arange(400) + 0.5) / 400)  # a normal law without the luck of a draw


def power_of_t(effect: float, error: float, freedom: int, alpha: float = 0.05) -> float:
    """Of the two-sided t test, whose power permutation tests reach for normal values."""
    critical = t.ppf(1 - alpha / 2, freedom)
    return float(nct.sf(critical, freedom, effect / error) + nct.cdf(-critical, freedom, effect / error))


@pytest.mark.parametrize(("effect", "pairs"), [(1.0, 10), (0.8, 16), (0.5, 30)])
def test_paired_power_is_near_that_of_the_t_test(effect: float, pairs: int) -> None:
    expected = power_of_t(effect, 1 / np.sqrt(pairs), pairs - 1)
    assert power_paired(NORMAL, effect, pairs) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(("effect", "runs"), [(1.5, 8), (0.8, 20)])
def test_unpaired_power_is_near_that_of_the_t_test(effect: float, runs: int) -> None:
    expected = power_of_t(effect, np.sqrt(2 / runs), 2 * runs - 2)
    assert power_unpaired(NORMAL, NORMAL + 7, effect, runs) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("pairs", [6, 12, 25])
def test_without_an_effect_the_power_is_the_level(pairs: int) -> None:
    assert 0.02 <= power_paired(NORMAL, 0.0, pairs) <= 0.07
    assert 0.03 <= power_unpaired(NORMAL, NORMAL, 0.0, pairs) <= 0.07


def test_the_direction_of_the_effect_does_not_matter() -> None:
    assert power_paired(NORMAL, -0.8, 12) == pytest.approx(power_paired(NORMAL, 0.8, 12), abs=0.06)


def test_a_design_that_cannot_reach_the_level_has_no_power() -> None:
    assert power_paired(NORMAL, 100.0, 5) == 0
    assert power_unpaired(NORMAL, NORMAL, 100.0, 3) == 0
    assert power_paired(NORMAL, 100.0, 6) == 1


def test_few_runs_do_not_look_too_alike() -> None:
    """On average over what 6 runs may have shown, the power foretold is not above the true one."""
    generator = np.random.default_rng(1)
    foretold = [power_paired(generator.standard_normal(6), 0.7, 20) for _ in range(40)]
    assert np.mean(foretold) <= power_of_t(0.7, 1 / np.sqrt(20), 19) + 0.03


def test_what_is_needed_is_the_least_that_does() -> None:
    found = pairs_needed(NORMAL, 0.8)
    assert found is not None
    assert power_paired(NORMAL, 0.8, found) >= 0.8 > power_paired(NORMAL, 0.8, found - 1)
    assert 13 <= found <= 16  # the t test needs 15
    runs = runs_needed(NORMAL, NORMAL, 1.0)
    assert runs is not None
    assert power_unpaired(NORMAL, NORMAL, 1.0, runs) >= 0.8 > power_unpaired(NORMAL, NORMAL, 1.0, runs - 1)
    assert 15 <= runs <= 19  # the t test needs 17


def test_a_large_effect_needs_no_more_than_the_level_does() -> None:
    assert pairs_needed([0.1, 0.1, 0.1], 0.05) == 6
    assert pairs_needed(NORMAL, 50.0, alpha=0.01) == 8
    assert runs_needed([1.0, 1.0], [2.0, 2.0], 0.05) == 4


def test_a_small_effect_may_need_too_many() -> None:
    assert pairs_needed(NORMAL, 0.01, most=50) is None
    assert runs_needed(NORMAL, NORMAL, 0.01, most=50) is None
    assert pairs_needed(NORMAL, 50.0, most=5) is None


def test_the_same_seed_gives_the_same_answer() -> None:
    assert power_paired(NORMAL, 0.5, 12, seed=3) == power_paired(NORMAL, 0.5, 12, seed=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: power_paired([0.1], 0.05, 6), "at least 2"),
        (lambda: power_paired([0.1, float("nan")], 0.05, 6), "missing or infinite"),
        (lambda: power_paired([0.1, 0.2], 0.05, 6, alpha=1.5), "alpha"),
        (lambda: power_unpaired([0.1, 0.2], [0.1], 0.05, 6), "second arm"),
        (lambda: pairs_needed([0.1, 0.2], 0.05, power=1.0), "power"),
        (lambda: runs_needed([], [0.1, 0.2], 0.05), "first arm"),
    ],
)
def test_no_spread_no_power(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
