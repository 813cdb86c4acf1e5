"""What the tests of runs are worth where it matters: on latencies of a queue, whose requests are correlated."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from queueing import FIGURES, Arms, exponential, figures, lognormal, sojourn, two_arms
from servebench.analysis.stats import Interval, mean_interval, over_runs, sign_flip_interval, two_sample_interval
from servebench.analysis.stats.permutation import sign_flip_p, two_sample_p

Floats = NDArray[np.float64]
Pair = tuple[dict[str, Floats], dict[str, Floats]]

EXPERIMENTS = 2_000  # a rate of 5 % is known to ±0.5 %
RUNS = 6
KNOWN = 2_000  # more experiments, whose mean is taken for the truth
UTILISATIONS = (0.5, 0.8, 0.9)
ALPHA = 0.05
MOST_FALSE_ALARMS = 0.07
NOISE = 0.01
SAME_REQUESTS = ("arrivals", "service")


@cache
def logs(rho: float, seed: int, count: int = EXPERIMENTS, **more: object) -> Pair:
    """Logarithms of both arms' figures, (experiments, runs)."""
    arms = Arms(rho, **more)  # type: ignore[arg-type]
    base, cand = two_arms(count, RUNS, arms, seed)
    return {name: np.log(base[name]) for name in FIGURES}, {name: np.log(cand[name]) for name in FIGURES}


@pytest.mark.parametrize("rho", UTILISATIONS)
@pytest.mark.parametrize("share", [("arrivals",), ()], ids=["paired arrivals", "independent arrivals"])
def test_equal_arms_are_told_apart_no_more_often_than_the_level_says(rho: float, share: tuple[str, ...]) -> None:
    base, cand = logs(rho, seed=1, share=share)
    for name in FIGURES:
        assert (sign_flip_p(cand[name] - base[name]) <= ALPHA).mean() <= MOST_FALSE_ALARMS
        assert (two_sample_p(base[name], cand[name]) <= ALPHA).mean() <= MOST_FALSE_ALARMS


@pytest.mark.parametrize("rho", UTILISATIONS)
def test_the_level_is_used_and_not_only_kept(rho: float) -> None:
    """A test that never rejects would pass the one above: 6 pairs can use 2/64 of the 5 %, 6 + 6 runs 46/924."""
    base, cand = logs(rho, seed=1, share=())
    paired = [(sign_flip_p(cand[name] - base[name]) <= ALPHA).mean() for name in FIGURES]
    unpaired = [(two_sample_p(base[name], cand[name]) <= ALPHA).mean() for name in FIGURES]
    assert np.mean(paired) == pytest.approx(2 / 64, abs=0.01)
    assert np.mean(unpaired) == pytest.approx(46 / 924, abs=0.012)


@pytest.mark.parametrize("law", [lognormal(), exponential()], ids=["lognormal", "exponential"])
def test_six_pairs_find_a_service_that_is_5_percent_faster(law: object) -> None:
    base, cand = logs(0.5, seed=3, law=law, change=0.95, share=SAME_REQUESTS, noise=NOISE)
    for name in FIGURES:
        faster = cand[name].mean(axis=1) < base[name].mean(axis=1)
        found = sign_flip_p(cand[name] - base[name]) <= ALPHA
        assert (found & faster).mean() >= 0.8


def test_without_pairing_the_same_change_is_mostly_missed() -> None:
    """Why `ab` gives both arms of a pair the same requests."""
    base, cand = logs(0.5, seed=4, change=0.95, noise=NOISE)
    assert (two_sample_p(base["p99"], cand["p99"]) <= ALPHA).mean() < 0.3


def covered(intervals: list[Interval], truth: float) -> float:
    return float(np.mean([truth in interval for interval in intervals]))


@pytest.mark.parametrize("rho", UTILISATIONS)
def test_the_sign_flip_interval_holds_the_true_change(rho: float) -> None:
    base, cand = logs(rho, seed=5, count=EXPERIMENTS + KNOWN, change=0.95, share=SAME_REQUESTS, noise=NOISE)
    for name in FIGURES:
        differences = cand[name] - base[name]
        truth = float(differences[EXPERIMENTS:].mean())  # of 12 000 pairs: known far better than 6 tell it
        found = [sign_flip_interval(row) for row in differences[:EXPERIMENTS]]
        assert 0.90 <= covered(found, truth) <= 0.98


@pytest.mark.parametrize("rho", UTILISATIONS)
def test_the_two_sample_interval_holds_the_true_change(rho: float) -> None:
    base, cand = logs(rho, seed=6, count=EXPERIMENTS + KNOWN, change=0.95, noise=NOISE)
    for name in FIGURES:
        truth = float((cand[name] - base[name])[EXPERIMENTS:].mean())
        rows = zip(base[name][:EXPERIMENTS], cand[name][:EXPERIMENTS], strict=True)
        assert 0.90 <= covered([two_sample_interval(a, b) for a, b in rows], truth) <= 0.98


@pytest.mark.parametrize("rho", UTILISATIONS)
def test_intervals_of_one_arms_level_hold_it(rho: float) -> None:
    base, _ = logs(rho, seed=1, share=())
    level = base["p99"]
    truth = float(level.mean())
    assert 0.90 <= covered([mean_interval(row) for row in level[:1_000]], truth) <= 0.98
    assert 0.90 <= covered([over_runs(row, resamples=1_000) for row in level[:1_000]], truth) <= 0.98


def test_the_queue_is_lindleys_recursion() -> None:
    generator = np.random.default_rng(1)
    gaps, service = generator.exponential(1.2, (3, 50)), generator.exponential(1.0, (3, 50))
    waited, expected = np.zeros(3), []
    for i in range(50):
        waited = np.maximum(0.0, waited + service[:, i - 1] - gaps[:, i]) if i else waited
        expected.append(waited + service[:, i])
    assert sojourn(gaps, service) == pytest.approx(np.array(expected).T)


@pytest.mark.parametrize(("law", "cv"), [(lognormal(), 1.0), (lognormal(0.5), 0.5), (exponential(), 1.0)])
def test_the_mean_is_pollaczek_and_khinchins(law: object, cv: float) -> None:
    generator = np.random.default_rng(2)
    service = law(generator, (20, 100_000))  # type: ignore[operator]
    times = sojourn(generator.exponential(1 / 0.5, service.shape), service)
    assert times.mean() == pytest.approx(1 + 0.5 * (1 + cv**2) / 2 / 0.5, rel=0.03)


def test_without_memory_sojourn_times_are_exponential() -> None:
    generator = np.random.default_rng(3)
    service = generator.exponential(1.0, (20, 100_000))
    found = figures(sojourn(generator.exponential(2.0, service.shape), service))
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert found[name].mean() == pytest.approx(-2 * np.log(1 - share), rel=0.03)


def test_arms_share_what_they_are_told_to() -> None:
    base, cand = two_arms(3, 2, Arms(0.8, requests=100, share=SAME_REQUESTS), seed=1)
    assert all((base[name] == cand[name]).all() for name in FIGURES)
    assert base["p99"].shape == (3, 2)
    assert len(np.unique(base["mean"])) == 6
    _, other = two_arms(3, 2, Arms(0.8, requests=100, share=("arrivals",)), seed=1)
    assert (other["mean"] != base["mean"]).all()
