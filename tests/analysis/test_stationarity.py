"""The drift test finds overload and leaves healthy runs alone; MSER-5 finds the end of a transient."""

import numpy as np
import pytest

from servebench.analysis.facts import gather
from servebench.analysis.stationarity import bin_medians, drift, mser5
from servebench.testing.synthetic import SyntheticRun, closed_run, open_run


def steady(run: SyntheticRun) -> bool:
    return not any(d.significant for d in gather(run.data()).drifts)


def queue(utilisation: float, seed: int, requests: int = 1200, rate: float = 20.0) -> SyntheticRun:
    """A single server with exponential service: its wait is the time to the first token."""
    service = np.random.default_rng(1000 + seed).exponential(utilisation / rate, requests)

    def waits(due: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        done, waited = 0.0, np.empty(due.size)
        for i, t in enumerate(due):
            done = max(done, t) + service[i]
            waited[i] = done - t
        return waited

    return open_run(requests=requests, rate=rate, tokens=3, ttft=waits, seed=seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_minute_of_poisson_is_steady(seed: int) -> None:
    assert steady(open_run(requests=1400, rate=20, tokens=5, seed=seed))


@pytest.mark.parametrize("seed", range(12))
def test_a_loaded_but_stable_queue_is_steady(seed: int) -> None:
    assert steady(queue(0.5, seed))


@pytest.mark.parametrize("waves", [2, 4, 12, 30])
def test_synchronised_waves_are_steady(waves: int) -> None:
    assert steady(closed_run(concurrency=16, waves=waves, tokens=20))


@pytest.mark.parametrize("seed", range(6))
def test_overload_is_found(seed: int) -> None:
    drifts = gather(queue(1.3, seed).data()).drifts
    assert any(d.significant and (d.change or 0) > 0.5 for d in drifts)


def test_few_bins_say_nothing() -> None:
    found = drift("x", np.array([1.0, 2, 3, 4, 5, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan]))
    assert (found.z, found.change, found.bins, found.significant) == (None, None, 5, False)


def test_a_line_drifts_by_its_slope_over_its_median() -> None:
    found = drift("x", np.linspace(1, 3, 21))
    assert found.change == pytest.approx(1.0)
    assert found.z is not None
    assert found.z > 5


def test_a_small_trend_is_no_drift_however_sure_it_is() -> None:
    found = drift("x", np.linspace(1.0, 1.1, 20))
    assert found.z is not None
    assert found.z > 5
    assert not found.significant


def test_a_constant_is_steady() -> None:
    found = drift("x", np.full(20, 7.0))
    assert (found.change, found.z) == (0.0, 0.0)


def test_one_outlier_is_no_drift() -> None:
    values = np.full(20, 5.0) + np.random.default_rng(1).normal(0, 0.1, 20)
    values[-1] = 500
    assert not drift("x", values).significant


def test_medians_by_bin() -> None:
    t, values = np.array([30, 1, 2, 3], np.int64), np.array([9, 1, 5, 2], np.int64)
    found = bin_medians(t, values, np.array([0.0, 10.0, 20.0, 40.0]))
    assert found.tolist()[0] == 2
    assert np.isnan(found[1])
    assert found.tolist()[2] == 9


def test_mser5_cuts_where_the_step_ends() -> None:
    noise = np.random.default_rng(3).normal(0, 1, 1000)
    cut = mser5(np.where(np.arange(1000) < 200, 50, 0) + noise)
    assert not cut.rejected
    assert cut.share == pytest.approx(0.2, abs=0.03)


def test_mser5_leaves_a_constant_alone() -> None:
    assert mser5(np.full(500, 3.3)).share == 0


def test_mser5_rejects_a_late_cut() -> None:
    values = np.where(np.arange(1000) < 800, 50.0, 0.0)
    assert mser5(values).rejected


def test_mser5_needs_some_batches() -> None:
    assert mser5(np.arange(19.0)).share == 0
