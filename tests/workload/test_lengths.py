"""Laws against theory: moments, quantiles, truncation, and the copula that couples prompt and answer."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import stats

from servebench.scenario.lengths import LengthLaw
from servebench.workload.lengths import couple_ranks, draw_lengths, standard_normal
from servebench.workload.overview import rank_correlation

N = 40_000
READ = TypeAdapter(LengthLaw)


def law(written):
    return READ.validate_python(written)


def grid(n=N):
    """Ranks spread evenly: what they draw has the law's own moments, without the noise of a sample."""
    return (np.arange(n) + 0.5) / n


def draw(written, ranks=None):
    return draw_lengths(law(written), grid() if ranks is None else ranks)


def test_fixed_is_always_the_same():
    assert (draw(7) == 7).all()
    assert draw({"fixed": "2k"}).dtype == np.int32


def test_uniform_takes_every_length_equally_often():
    counts = np.bincount(draw({"uniform": {"min": 3, "max": 12}}))
    assert (counts[3:] == N / 10).all()
    assert counts[:3].sum() == 0


@pytest.mark.parametrize(
    ("written", "mean", "cv"),
    [
        ({"normal": {"mean": 900, "sd": 90}}, 900, 0.1),
        ({"normal": {"mean": 900, "cv": 0.2}}, 900, 0.2),
        ({"lognormal": {"mean": 900, "cv": 1.2}}, 900, 1.2),
        ({"lognormal": {"mean": 220, "cv": 0.3}}, 220, 0.3),
        ({"gamma": {"mean": 900, "cv": 0.5}}, 900, 0.5),
        ({"gamma": {"mean": 2000, "cv": 1}}, 2000, 1.0),
    ],
)
def test_mean_and_cv_are_those_asked_for(written, mean, cv):
    lengths = draw(written).astype(float)
    assert lengths.mean() == pytest.approx(mean, rel=0.003)
    assert lengths.std() / lengths.mean() == pytest.approx(cv, rel=0.02)


@pytest.mark.parametrize(
    ("written", "theory"),
    [
        ({"normal": {"mean": 900, "sd": 200}}, stats.norm(900, 200)),
        ({"lognormal": {"p50": 129, "p95": 451}}, stats.lognorm(math.log(451 / 129) / stats.norm.ppf(0.95), scale=129)),
        ({"lognormal": {"p50": 1020, "sigma": 0.8}}, stats.lognorm(0.8, scale=1020)),
        ({"gamma": {"mean": 500, "cv": 0.5}}, stats.gamma(4, scale=125)),
    ],
)
def test_quantiles_are_those_of_the_law(written, theory):
    ordered = np.sort(draw(written))
    for q in (0.05, 0.25, 0.5, 0.9, 0.95, 0.99):
        assert ordered[math.ceil(q * N) - 1] == pytest.approx(theory.ppf(q), rel=1e-3, abs=1.0)


@pytest.mark.parametrize(
    ("written", "theory"),
    [
        ({"normal": {"mean": 100, "sd": 60, "min": 40, "max": 160}}, stats.norm(100, 60)),
        (
            {"lognormal": {"mean": 100, "cv": 1.5, "min": 30, "max": 200}},
            stats.lognorm(math.sqrt(math.log1p(2.25)), scale=100 / math.sqrt(3.25)),
        ),
        ({"gamma": {"mean": 100, "cv": 0.8, "min": 30, "max": 200}}, stats.gamma(1 / 0.64, scale=64)),
    ],
)
def test_truncation_is_by_drawing_again_never_by_clamping(written, theory):
    """Within the bounds lengths are as likely as in the whole law, times one factor; no mass gathers at the ends."""
    (parameters,) = written.values()
    low, high = parameters["min"], parameters["max"]
    counts = np.bincount(draw(written), minlength=high + 1) / N
    lengths = np.arange(low, high + 1)
    expected = theory.cdf(lengths + 0.5) - theory.cdf(lengths - 0.5)
    assert counts[:low].sum() == 0
    assert counts.size == high + 1
    assert counts[low:] == pytest.approx(expected / expected.sum(), abs=2 / N)


def test_truncation_equals_rounding_and_rejecting():
    rng = np.random.default_rng(5)
    raw = np.rint(rng.lognormal(4, 1, 4 * N))
    kept = raw[(raw >= 20) & (raw <= 90)]
    ours = draw({"lognormal": {"p50": math.exp(4), "sigma": 1, "min": 20, "max": 90}}, rng.random(N))
    assert stats.ks_2samp(kept, ours).pvalue > 0.01


def test_a_law_that_lies_almost_outside_its_bounds_is_drawn_from_its_tail():
    # 2 % of the law: hopeless to draw by trial, exact by inversion.
    lengths = draw({"normal": {"mean": 100, "sd": 10, "min": 121, "max": 200}})
    assert lengths.min() == 121
    assert (lengths == 121).mean() == pytest.approx(
        (stats.norm.sf(120.5, 100, 10) - stats.norm.sf(121.5, 100, 10)) / stats.norm.sf(120.5, 100, 10), rel=0.01
    )


def test_an_empirical_law_is_straight_between_its_points():
    written = {"empirical": {"points": [[0, 10], [0.5, 20], [0.9, 20], [1, 120]]}}
    lengths = draw(written, np.array([1e-12, 0.25, 0.5, 0.7, 0.9, 0.95, 1 - 1e-12]))
    assert lengths.tolist() == [10, 15, 20, 20, 20, 70, 120]
    assert (draw(written) == 20).mean() == pytest.approx(0.4 + 0.025 + 0.0005, abs=0.001)


WRITTEN = st.one_of(
    st.integers(1, 10_000),
    st.tuples(st.integers(1, 5000), st.integers(0, 5000)).map(lambda p: {"uniform": {"min": p[0], "max": p[0] + p[1]}}),
    st.tuples(st.sampled_from(["normal", "lognormal", "gamma"]), st.floats(10, 5000), st.floats(0.05, 4)).map(
        lambda p: {p[0]: {"mean": p[1], "cv": p[2], "min": max(1, int(p[1] / 4)), "max": int(p[1] * 2)}}
    ),
)


@settings(deadline=None, max_examples=60)
@given(WRITTEN, st.lists(st.floats(2**-54, 1 - 2**-53), min_size=1, max_size=50))
def test_lengths_stay_within_their_bounds_and_grow_with_the_rank(written, ranks):
    found = law(written)
    lengths = draw_lengths(found, np.sort(np.array(ranks)))
    assert lengths.min() >= found.lower
    assert lengths.max() <= found.upper
    assert (np.diff(lengths) >= 0).all()


def test_normal_quantiles_reach_to_the_ends():
    scores = standard_normal(np.array([0.0, 0.5, 1.0]))
    assert scores[1] == 0
    assert scores[0] < -30
    assert scores[2] > 8


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.07, 0.6, 0.95])
def test_the_copula_has_the_rank_correlation_asked_for(correlation):
    first, second = np.random.default_rng(3).random((2, N))
    coupled = couple_ranks(first, second, correlation)
    assert rank_correlation(first, coupled) == pytest.approx(correlation, abs=0.012)
    assert stats.kstest(coupled, "uniform").pvalue > 0.001


@pytest.mark.parametrize(("correlation", "sign"), [(1, 1), (-1, -1)])
def test_full_correlation_makes_one_rank_of_the_other(correlation, sign):
    first, second = np.random.default_rng(3).random((2, 1000))
    coupled = couple_ranks(first, second, correlation)
    assert coupled == pytest.approx(first if sign > 0 else 1 - first, abs=1e-6)


@pytest.mark.parametrize("none", [None, 0, 0.0])
def test_without_correlation_the_ranks_are_untouched(none):
    first, second = np.random.default_rng(3).random((2, 100))
    assert couple_ranks(first, second, none) is second
