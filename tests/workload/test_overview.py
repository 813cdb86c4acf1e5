import numpy as np
import pytest

from servebench.scenario import Scenario, load_scenario
from servebench.workload import make_plan
from servebench.workload.overview import cohort, rank_correlation, spread, summarise_plan


def test_quantiles_are_nearest_ranks():
    figures = spread(np.arange(1, 201))
    assert figures == {
        "n": 200,
        "mean": 100.5,
        "cv": pytest.approx(np.arange(1, 201).std() / 100.5),
        "min": 1,
        "p50": 100,
        "p95": 190,
        "p99": 198,
        "max": 200,
    }
    assert spread(np.array([7]))["p50"] == 7


def test_no_values_have_no_figures():
    assert spread(np.array([])) == {"n": 0, **dict.fromkeys(("mean", "cv", "min", "p50", "p95", "p99", "max"))}


def test_ties_share_their_rank():
    first = np.array([1, 1, 2, 3])
    assert rank_correlation(first, first) == pytest.approx(1)
    assert rank_correlation(first, np.array([4, 4, 4, 4])) is None
    assert rank_correlation(np.array([1]), np.array([2])) is None
    # Spearman by hand: ranks 1.5 1.5 3 4 against 1 2 3 4.
    assert rank_correlation(first, np.array([1, 2, 3, 4])) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_the_phases_add_up_to_the_plan():
    scenario = load_scenario("chat")
    plan = make_plan(scenario)
    figures = summarise_plan(scenario, plan)
    assert sum(figures["phases"].values()) == figures["rows"] == len(plan)
    assert figures["phases"]["measured"] == cohort(scenario, plan).sum() == figures["input_tokens"]["n"]
    assert figures["arrivals"]["gaps_s"]["n"] == figures["phases"]["measured"] - 1
    assert figures["arrivals"]["rate"] == pytest.approx(4, rel=0.1)


def test_a_closed_loop_has_neither_phases_nor_arrivals():
    scenario = load_scenario("batch", ["load.requests=50"])
    figures = summarise_plan(scenario, make_plan(scenario))
    assert (figures["phases"], figures["arrivals"]) == (None, None)
    assert figures["input_tokens"]["n"] == 50


def test_classes_are_told_apart():
    classes = [
        {"name": "a", "weight": 1, "input_tokens": 10, "output_tokens": 5},
        {"name": "b", "weight": 3, "input_tokens": 90, "output_tokens": 5, "shared_prefix": {"tokens": 9, "groups": 3}},
    ]
    load = {"poisson": 10, "requests": 1000}
    scenario = Scenario.from_resolved({"servebench": 1, "name": "t", "workload": {"classes": classes}, "load": load})
    first, second = summarise_plan(scenario, make_plan(scenario))["classes"]
    assert (first["name"], first["input_tokens"]["max"], first["prefix_groups"]) == ("a", 10, 0)
    assert (second["input_tokens"]["min"], second["prefix_groups"], second["rank_correlation"]) == (90, 3, None)
    assert second["share"] == pytest.approx(0.75, abs=0.05)
    assert first["share"] + second["share"] == pytest.approx(1)
