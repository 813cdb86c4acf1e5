"""Arrival laws against theory. Seeds are fixed, so that a test either always passes or never does."""

import numpy as np
import pytest
from scipy import stats

from servebench.scenario.load import Load
from servebench.workload.arrivals import Stretch, due_times, stretches, unit_arrivals

FOREVER = float("inf")


def stream(seed):
    return np.random.default_rng(seed).random


def due(seed=1, **load):
    return due_times(Load.model_validate(load), lambda part: stream([seed, part]))


def test_poisson_gaps_are_exponential():
    times = due(poisson="50/s", duration="60s", drain=0)
    gaps = np.diff(times, prepend=0.0)
    assert stats.kstest(gaps, "expon", (0, 1 / 50)).pvalue > 0.01
    assert stats.pearsonr(gaps[1:], gaps[:-1]).pvalue > 0.01


def test_poisson_counts_scatter_like_poisson_counts():
    """The count is random, too: nothing is stretched so that exactly rate x duration requests come out."""
    totals = [due(seed, poisson="20/s", duration="20s", drain=0).size for seed in range(300)]
    assert np.mean(totals) == pytest.approx(400, abs=4)
    assert np.var(totals) / np.mean(totals) == pytest.approx(1, abs=0.25)
    bins = np.bincount(due(poisson="50/s", duration="60s", drain=0).astype(int))
    assert 0.75 < bins.var(ddof=1) / bins.mean() < 1.3


def test_a_number_of_requests_is_that_many_draws():
    times = due(poisson="10/s", requests=5000)
    assert times.size == 5000
    assert times[-1] / 500 == pytest.approx(1, abs=0.05)
    assert times[-1] != pytest.approx(500, rel=1e-6)
    assert stats.kstest(np.diff(times, prepend=0.0), "expon", (0, 0.1)).pvalue > 0.01


def test_constant_arrivals_are_evenly_spaced_through_the_phases():
    times = due(constant="4/s", duration="10s", warmup="3s", drain="2s")
    assert times == pytest.approx(np.arange(60) / 4)
    assert ((times >= 3) & (times < 13)).sum() == 40
    assert due(constant="4/s", requests=7) == pytest.approx(np.arange(7) / 4)


@pytest.mark.parametrize("cv", [0.3, 1.09, 3.0])
def test_gamma_gaps_have_the_cv_and_the_rate_asked_for(cv):
    times = due(gamma={"rate": "10/s", "cv": cv}, requests=40_000)
    gaps = np.diff(times, prepend=0.0)
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    # Not by a KS test: below a nanosecond, where a bursty law has a share of its gaps, sums of doubles tie.
    for gap in (1e-5, 1e-3, 0.01, 0.1, 0.3):
        share = stats.gamma.cdf(gap, cv**-2, scale=0.1 * cv**2)
        assert (gaps <= gap).mean() == pytest.approx(share, abs=4 * (0.25 / gaps.size) ** 0.5)


def test_a_gamma_law_of_cv_1_is_poisson():
    assert due(gamma={"rate": 5, "cv": 1}, duration=20) == pytest.approx(due(poisson=5, duration=20))


@pytest.mark.parametrize("cv", [0.5, 4.0])
def test_a_bursty_load_starts_in_equilibrium(cv):
    """A renewal process that started at an arrival would expect (cv² − 1)/2 arrivals more than rate x time."""
    counts = [unit_arrivals(cv, stream([7, seed]), 20.0, None).size for seed in range(3000)]
    error = np.std(counts) / len(counts) ** 0.5
    assert np.mean(counts) == pytest.approx(20, abs=3 * error)
    assert abs((cv**2 - 1) / 2) > 3 * error


def test_in_equilibrium_the_first_arrival_is_as_late_as_theory_says():
    cv = 2.0
    first = [unit_arrivals(cv, stream([9, seed]), 400.0, None)[0] for seed in range(2000)]
    assert np.mean(first) == pytest.approx((cv**2 + 1) / 2, rel=0.12)


@pytest.mark.parametrize(("start", "end"), [(0, 40), (40, 0), (10, 30)])
def test_a_ramp_is_a_poisson_process_of_that_rate(start, end):
    length = 100.0
    times = due(ramp={"from": start, "to": end}, duration=length, drain=0)
    expected = length * (start + end) / 2
    assert times.size == pytest.approx(expected, abs=4 * expected**0.5)
    cumulative = start * times + (end - start) * times**2 / (2 * length)
    assert stats.kstest(np.diff(cumulative, prepend=0.0), "expon").pvalue > 0.01
    half = (times < length / 2).mean()
    assert half == pytest.approx((3 * start + end) / (4 * (start + end)), abs=0.05)


def test_stages_follow_each_other():
    stages = [{"poisson": 10, "for": 50}, {"constant": 2, "for": 10}, {"poisson": 40, "for": 50}]
    times = due(stages=stages, drain=0)
    assert (np.diff(times) >= 0).all()
    assert (times < 50).sum() == pytest.approx(500, abs=90)
    assert times[(times >= 50) & (times < 60)] == pytest.approx(50 + np.arange(20) / 2)
    assert (times >= 60).sum() == pytest.approx(2000, abs=180)


def test_a_stage_does_not_shift_those_before_it():
    before = due(stages=[{"poisson": 10, "for": 50}, {"poisson": 5, "for": 10}], drain=0)
    after = due(stages=[{"poisson": 10, "for": 50}, {"poisson": 50, "for": 10}], drain=0)
    assert (before[before < 50] == after[after < 50]).all()


def placed(**load):
    return [(s.start, s.duration, s.rate, s.rate_end) for s in stretches(Load.model_validate(load))]


def test_a_steady_load_is_one_stretch_over_all_phases():
    assert placed(poisson=4, duration=60, warmup=5, drain=30) == [(0, 95, 4, 4)]
    assert placed(poisson=4, requests=10, warmup=5) == [(0, FOREVER, 4, 4)]


def test_warmup_and_cooldown_hold_the_rates_at_the_ends():
    found = placed(ramp={"from": 1, "to": 3}, duration=20, warmup=5, drain=10)
    assert found == [(0, 5, 1, 1), (5, 20, 1, 3), (25, 10, 3, 3)]
    found = placed(stages=[{"ramp": {"from": 0, "to": 3}, "for": 20}, {"poisson": 2, "for": 5}], warmup=5, drain=10)
    assert found == [(5, 20, 0, 3), (25, 15, 2, 2)]


def test_the_last_stage_takes_what_is_left():
    assert placed(stages=[{"poisson": 1, "for": 20}, {"poisson": 2}], duration=50, drain=0) == [
        (0, 20, 1, 1),
        (20, 30, 2, 2),
    ]


def test_requests_go_on_at_the_last_rate():
    found = placed(stages=[{"poisson": 1, "for": 20}, {"ramp": {"from": 1, "to": 5}, "for": 10}], requests=1000)
    assert found == [(0, 20, 1, 1), (20, 10, 1, 5), (30, FOREVER, 5, 5)]
    assert due(stages=[{"poisson": 1, "for": 20}, {"poisson": 5, "for": 10}], requests=1000).size == 1000
    assert due(stages=[{"poisson": 100, "for": 20}, {"poisson": 5}], requests=100).max() < 20


@pytest.mark.parametrize("stretch", [Stretch(0, 10, 0, 4, 1), Stretch(0, 10, 4, 0, 1), Stretch(0, 10, 3, 3 + 1e-12, 1)])
def test_the_time_change_inverts_the_cumulative_rate(stretch):
    times = np.linspace(0, 10, 101)
    operational = stretch.rate * times + (stretch.rate_end - stretch.rate) * times**2 / 20
    assert stretch.seconds(operational) == pytest.approx(times, abs=2e-6)
    assert stretch.expected == pytest.approx(operational[-1])


def test_no_arrivals_where_none_fit():
    assert due(poisson="1/h", duration=1, drain=0).size == 0
    assert unit_arrivals(1.0, stream(1), 100.0, 0).size == 0
