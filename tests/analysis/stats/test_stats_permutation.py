from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test, ttest_ind

from servebench.analysis.stats import permutation
from servebench.analysis.stats.permutation import (
    MOST,
    least_p_paired,
    least_p_unpaired,
    pairs_that_reach,
    runs_that_reach,
    sign_flip,
    sign_flip_interval,
    sign_flip_p,
    two_sample,
    two_sample_interval,
    two_sample_p,
)

Whole = list[int]
few = st.lists(st.integers(-6, 6), min_size=1, max_size=7)  # small whole numbers: many ties, exact by hand
ALPHA = 0.05


def sign_flip_by_hand(differences: Whole) -> float:
    seen = abs(sum(differences))
    flipped = [abs(np.dot(signs, differences)) for signs in product([1, -1], repeat=len(differences))]
    return float(np.mean([value >= seen for value in flipped]))


def two_sample_by_hand(a: Whole, b: Whole) -> float:
    """Twice the smaller tail, in whole numbers: the difference of means times n·m."""
    pooled, n, m = a + b, len(a), len(b)
    sums = [sum(pooled[i] for i in second) for second in combinations(range(n + m), m)]
    values = [n * s - m * (sum(pooled) - s) for s in sums]
    seen = n * sum(b) - m * sum(a)
    tails = (np.mean([v >= seen for v in values]), np.mean([v <= seen for v in values]))
    return min(1.0, 2 * float(min(tails)))


@given(few)
def test_sign_flip_is_the_share_of_all_sign_patterns(differences: Whole) -> None:
    assert sign_flip(differences).p == pytest.approx(sign_flip_by_hand(differences), abs=1e-12)


@given(few, few)
def test_two_sample_is_the_share_of_all_exchanges(a: Whole, b: Whole) -> None:
    assert two_sample(a, b).p == pytest.approx(two_sample_by_hand(a, b), abs=1e-12)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (4, 7), (2, 5), (8, 3)])
def test_scipy_finds_the_same_p(n: int, m: int) -> None:
    generator = np.random.default_rng(n * m)
    a, b = generator.lognormal(0, 1, n), generator.lognormal(0.8, 1, m)
    found = permutation_test((b, a), lambda x, y: np.mean(x) - np.mean(y), n_resamples=np.inf)
    assert two_sample(a, b).p == pytest.approx(found.pvalue)
    d = generator.normal(0.7, 1, n)
    found = permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(d).p == pytest.approx(found.pvalue)


def test_random_rearrangements_come_near_the_exact_p() -> None:
    differences = np.random.default_rng(3).normal(0.4, 1, 17)
    sums = np.zeros(1)
    for value in differences:
        sums = np.concatenate([sums + value, sums - value])
    exact = float((np.abs(sums) >= abs(differences.sum()) - 1e-12).mean())
    found = sign_flip(differences)
    assert not found.exact
    assert found.p == pytest.approx(exact, abs=4 * 2 * np.sqrt(exact / MOST))
    assert sign_flip(differences[:16]).exact


def test_many_runs_are_sampled_and_come_near_the_normal_law() -> None:
    generator = np.random.default_rng(4)
    a, b = generator.normal(0, 1, 60), generator.normal(0.35, 1, 50)
    found = two_sample(a, b)
    assert not found.exact
    assert found.p == pytest.approx(ttest_ind(a, b).pvalue, abs=0.01)
    assert two_sample(a, b) == found


@pytest.mark.parametrize("scale", [0.1, 1e-9, 1e9])
@given(differences=few, b=few)
def test_rounding_breaks_no_ties(scale: float, differences: Whole, b: Whole) -> None:
    """0.1 + 0.2 is not 0.3: ties of whole numbers must stay ties when they are scaled."""
    assert sign_flip(np.array(differences) * scale).p == sign_flip(differences).p
    assert two_sample(np.array(differences) * scale, np.array(b) * scale).p == two_sample(differences, b).p


@given(few, few, st.integers(-1000, 1000))
def test_only_the_differences_between_the_arms_count(a: Whole, b: Whole, moved: int) -> None:
    shifted = two_sample(np.array(a) + moved, np.array(b) + moved)
    assert shifted.p == two_sample(a, b).p == two_sample(b, a).p == two_sample(a[::-1], b[::-1]).p
    assert sign_flip(a).p == sign_flip([-d for d in a]).p == sign_flip(a[::-1]).p


@given(few)
def test_the_interval_is_what_the_test_does_not_reject(differences: Whole) -> None:
    d = np.array(differences, float)
    found = sign_flip_interval(d, 1 - ALPHA)
    if found.low is None or found.high is None:
        assert least_p_paired(d.size) > ALPHA
        return
    for value in np.linspace(found.low, found.high, 9)[1:-1]:
        assert sign_flip(d - value).p > ALPHA
    assert sign_flip(d - found.low + 1e-6).p <= ALPHA
    assert sign_flip(d - found.high - 1e-6).p <= ALPHA


@given(few, few)
def test_the_two_sample_interval_is_what_its_test_does_not_reject(a: Whole, b: Whole) -> None:
    first, second = np.array(a, float), np.array(b, float)
    found = two_sample_interval(first, second, 1 - ALPHA)
    if found.low is None or found.high is None:
        assert least_p_unpaired(len(a), len(b)) > ALPHA
        return
    for value in np.linspace(found.low, found.high, 9)[1:-1]:
        assert two_sample(first, second - value).p > ALPHA
    assert two_sample(first, second - found.low + 1e-6).p <= ALPHA
    assert two_sample(first, second - found.high - 1e-6).p <= ALPHA


def test_the_interval_of_six_pairs_is_their_range() -> None:
    found = sign_flip_interval([0.05, 0.04, 0.06, 0.05, 0.03, 0.07])
    assert (found.low, found.high, found.confidence_reached) == (0.03, 0.07, 1 - 2 / 64)
    assert 0.05 in found
    assert 0.08 not in found


def test_the_interval_of_b_minus_a_has_its_sign() -> None:
    found = two_sample_interval([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3])
    assert found.low is not None
    assert found.high is not None
    assert 0.5 < found.low < 1.0 < found.high < 1.5


def test_too_few_pairs_have_no_interval_but_say_what_they_reach() -> None:
    found = sign_flip_interval([0.05, 0.04, 0.06, 0.05, 0.03])
    assert (found.low, found.high, found.confidence_reached) == (None, None, 1 - 2 / 32)
    assert 0.05 not in found
    assert sign_flip_interval([0.05, 0.04, 0.06, 0.05, 0.03], 0.9).low == 0.03
    assert two_sample_interval([1, 2, 3], [4, 5, 6]).confidence_reached == pytest.approx(0.9)


def test_what_a_design_just_reaches_is_not_lost_to_rounding() -> None:
    """(1 − 0.9)/2 · 20 is less than 1 in floating point."""
    assert two_sample_interval([1, 2, 3], [4, 5, 6], 0.9).low is not None


def test_more_confidence_is_never_a_shorter_interval() -> None:
    d = np.random.default_rng(1).normal(0, 1, 12)
    found = [sign_flip_interval(d, confidence) for confidence in (0.5, 0.8, 0.9, 0.95, 0.99)]
    lows, highs = [f.low for f in found], [f.high for f in found]
    assert lows == sorted(lows, reverse=True)  # type: ignore[type-var]
    assert highs == sorted(highs)  # type: ignore[type-var]
    assert all(f.confidence_reached >= c for f, c in zip(found, (0.5, 0.8, 0.9, 0.95, 0.99), strict=True))


@pytest.mark.parametrize("n", [1, 2, 5, 6, 8])
def test_the_clearest_outcome_has_the_least_p(n: int) -> None:
    low, high = np.arange(n), 100 + np.arange(n)
    assert sign_flip(high).p == sign_flip(high).least_p == least_p_paired(n) == 2.0 ** (1 - n)
    assert two_sample(low, high).p == two_sample(low, high).least_p == least_p_unpaired(n, n)


def test_what_a_design_can_reach() -> None:
    assert (least_p_paired(5), least_p_paired(6)) == (1 / 16, 1 / 32)
    assert (least_p_unpaired(3, 3), least_p_unpaired(5, 5)) == (2 / 20, 2 / 252)
    assert least_p_unpaired(1, 1) == 1
    assert (pairs_that_reach(0.05), pairs_that_reach(0.05, tests=3), pairs_that_reach(0.01)) == (6, 7, 8)
    assert (runs_that_reach(0.05), runs_that_reach(0.05, tests=3), runs_that_reach(0.001)) == (4, 5, 7)


def test_sampling_bounds_the_least_p() -> None:
    found = sign_flip(1 + np.random.default_rng(1).random(40))
    assert found.p == pytest.approx(found.least_p) == 2 / MOST
    assert two_sample(np.arange(30), 100 + np.arange(30)).p == pytest.approx(least_p_unpaired(30, 30)) == 2 / MOST
    with pytest.raises(ValueError, match="below the smallest p"):
        pairs_that_reach(0.05, tests=5_000)


def test_equal_arms_are_no_evidence() -> None:
    assert sign_flip([0.0] * 8).p == 1
    assert two_sample([3.0] * 5, [3.0] * 5).p == 1
    assert sign_flip_interval([0.25] * 8).low == sign_flip_interval([0.25] * 8).high == 0.25
    found = two_sample_interval([3.0] * 5, [3.5] * 5)
    assert found.low is not None
    assert found.high is not None
    assert 0.5 in two_sample_interval([3.0] * 5, [3.5] * 5)


def test_a_single_value_can_show_nothing() -> None:
    assert sign_flip([0.5]) == permutation.Test(p=1.0, least_p=1.0, exact=True, n=1)
    assert two_sample([1.0], [2.0]) == permutation.Test(p=1.0, least_p=1.0, exact=True, n=2)
    assert sign_flip_interval([0.5]).confidence_reached == 0


def test_many_at_once_are_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.random.default_rng(2).normal(0, 1, (2, 3, 4, 6))
    monkeypatch.setattr(permutation, "CHUNK", 200)
    paired, unpaired = sign_flip_p(b - a), two_sample_p(a, b)
    assert paired.shape == unpaired.shape == (3, 4)
    for where in np.ndindex(3, 4):
        assert paired[where] == sign_flip((b - a)[where]).p
        assert unpaired[where] == two_sample(a[where], b[where]).p


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sign_flip([]), "differences: 0 values where at least 1"),
        (lambda: sign_flip([1.0, float("nan"), 2.0]), "differences: 1 of 3 values are missing or infinite"),
        (lambda: sign_flip([1.0, None]), "differences: 1 of 2 values are missing"),  # type: ignore[list-item]
        (lambda: sign_flip([[1.0], [2.0]]), "differences: 2 dimensions"),
        (lambda: sign_flip_p(np.empty((3, 0))), "differences: no values"),
        (lambda: sign_flip_interval([1.0, float("inf")]), "missing or infinite"),
        (lambda: sign_flip_interval([1.0, 2.0], 1.0), "confidence is 1.0"),
        (lambda: two_sample([], [1.0]), "first arm: 0 values"),
        (lambda: two_sample([1.0], [float("nan")]), "second arm: 1 of 1 values"),
        (lambda: two_sample_interval([1.0], []), "second arm: 0 values"),
        (lambda: pairs_that_reach(0.0), "alpha is 0.0"),
    ],
)
def test_what_cannot_be_tested_is_said(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
