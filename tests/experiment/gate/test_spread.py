"""The run-to-run spread: how often equal code exceeds what chance is said to do, and how often a shift is found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from servebench.experiment.gate.spread import (
    APART,
    LEAST_RUNS,
    ONE_PLAN,
    PAIRS,
    Runs,
    Shift,
    median_variance,
    runs_that_settle,
    shift,
)

TRIALS = 20_000


def two_samples(base: int, cand: int, by: float = 0.0, seed: int = 1) -> list[Shift]:
    """`TRIALS` shifts between runs of a normal law with a spread of 2 %, the candidate's moved by `by`."""
    noise = np.random.default_rng(seed)
    drawn = np.exp(0.02 * noise.standard_normal((TRIALS // 4, base + cand)))
    plans = ["p"] * max(base, cand)
    return [shift(Runs(plans[:base], row[:base]), Runs(plans[:cand], row[base:] * math.exp(by))) for row in drawn]


@pytest.mark.parametrize("n", range(1, 25))
def test_the_variance_of_a_median_is_that_of_a_simulation(n: int) -> None:
    drawn = np.median(np.random.default_rng(n).standard_normal((60_000, n)), axis=1).var()
    assert median_variance(n) == pytest.approx(drawn, rel=0.02 if n <= 10 or n % 2 else 0.08)


@pytest.mark.parametrize(("base", "cand"), [(5, 1), (5, 3), (8, 4), (10, 3), (10, 10)])
def test_equal_code_exceeds_chance_as_often_as_is_said(base: int, cand: int) -> None:
    alpha = 0.02
    exceeded = np.mean([found.estimate > (found.chance(alpha) or 0) for found in two_samples(base, cand)])
    assert exceeded == pytest.approx(alpha, abs=0.008)


@pytest.mark.parametrize("base", [5, 10])
def test_a_shift_as_large_as_each_baseline_says_is_found_in_most_cases(base: int) -> None:
    found = []
    for each in two_samples(base, 3):
        limit = each.chance(0.002) or 0
        found.append(each.estimate + (each.found_from(limit) or 0) > limit)
    assert np.mean(found) == pytest.approx(0.95, abs=0.01)


class TestDesigns:
    def test_one_plan_on_both_sides_is_two_samples(self) -> None:
        found = shift(Runs("ppppp", [100, 101, 99, 100, 100]), Runs("pp", [110, 110]))
        assert (found.design, found.runs, found.base, found.cand) == (ONE_PLAN, 5, 5, 2)
        assert found.estimate == pytest.approx(math.log(1.1))
        assert found.deviation == pytest.approx(float(np.std(np.log([100, 101, 99, 100, 100]), ddof=1)))

    def test_five_common_plans_are_pairs_whose_own_spread_cancels(self) -> None:
        base, cand = Runs("abcde", [10, 20, 40, 80, 160]), Runs("edcbax", [161, 80, 40.4, 20, 10, 999])
        found = shift(base, cand)
        assert (found.design, found.runs) == (PAIRS, 5)
        assert found.estimate == pytest.approx(0)
        assert found.deviation is not None
        assert found.deviation < 0.01

    def test_several_runs_of_a_plan_count_by_their_median(self) -> None:
        base = Runs("aaabcde", [100, 100, 900, 100, 100, 100, 100])
        assert shift(base, Runs("abcde", [100] * 5)).deviation == pytest.approx(0, abs=1e-12)

    def test_fewer_common_plans_are_separate_ones(self) -> None:
        found = shift(Runs("abcdef", [10, 20, 40, 80, 160, 320]), Runs("abcd", [10, 20, 40, 80]))
        assert found.design == APART
        assert found.deviation is not None
        assert found.deviation > 1

    def test_too_few_runs_have_no_spread(self) -> None:
        found = shift(Runs("p" * (LEAST_RUNS - 1), [100, 101, 99, 100]), Runs("p", [110]))
        assert (found.deviation, found.chance(0.01), found.found_from(0.1)) == (None, None, None)
        assert runs_that_settle(found, 0.05, 0.01) is None


class TestRunsThatSettle:
    def test_with_so_many_chance_stays_within_the_limit_and_with_one_less_it_does_not(self) -> None:
        noisy = Shift(ONE_PLAN, 0.0, 0.02, 5, 5, 3)
        n = runs_that_settle(noisy, 0.03, 0.001)
        assert n is not None
        enough, fewer = (Shift(ONE_PLAN, 0.0, 0.02, count, count, count).chance(0.001) for count in (n, n - 1))
        assert enough is not None
        assert fewer is not None
        assert enough <= 0.03 < fewer

    def test_a_limit_far_below_the_noise_is_never_settled(self) -> None:
        assert runs_that_settle(Shift(ONE_PLAN, 0.0, 0.5, 5, 5, 3), 0.01, 0.001) is None

    def test_pairs_need_fewer_than_two_sets(self) -> None:
        pairs, sets = (runs_that_settle(Shift(design, 0.0, 0.02, 5, 5, 5), 0.03, 0.001) for design in (PAIRS, ONE_PLAN))
        assert pairs is not None
        assert sets is not None
        assert pairs < sets
