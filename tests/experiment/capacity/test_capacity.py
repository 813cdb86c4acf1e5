"""Capacity searches to their end: on the simulated engine's own model in virtual time, and on made-up servers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.virtual import Arrival, simulate
from servebench.errors import EngineError, UsageError
from servebench.experiment import capacity, judge
from servebench.experiment.campaign import Campaign, CellRunner
from servebench.experiment.cell import Cell
from servebench.experiment.directory import ExperimentDir
from servebench.scenario import load_scenario
from virtual_cells import VirtualRunner, virtual_summary

# Eight tokens of 8 ms stand for a prompt of hundreds, which virtual time would only copy around.
SCENARIO = """
servebench: 1
name: small
workload: {input_tokens: 8, output_tokens: 2}
load: {poisson: 2/s, duration: 120s, warmup: 10s, drain: 5s}
slo: {ttft: p95 < 1s}
engine:
  sim: {base: 30ms, per_prefill_token: 8ms, per_sequence: 4ms, per_context_token: 0s, max_num_batched_tokens: 64,
        max_num_seqs: 64, enable_prefix_caching: false}
"""
LOOSE = "slo.ttft=p95 < 60s"  # never missed in a window of 120 s before the backlog shows
FOREVER = 1e9


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def find(
    scenario: Path,
    out: Path,
    runner: CellRunner,
    settings: capacity.Settings | None = None,
    overrides: tuple[str, ...] = (),
    budget_s: float = FOREVER,
) -> dict[str, Any]:
    """Search in `out` and check that the stored cells alone say the same."""
    asked = capacity.question(load_scenario(scenario, overrides), settings or capacity.Settings(), "sim", None)
    directory = ExperimentDir.begin(out, "capacity", "small", asked, ["servebench"])
    result = capacity.search(Campaign(directory, runner), budget_s)
    assert json.dumps(judge(ExperimentDir.open(out))) == json.dumps(result)
    return result


def contains(result: dict[str, Any], truth: float) -> bool:
    low, high = result["sustained_per_s"], result["failed_per_s"]
    return low is not None and high is not None and low <= truth <= high


def rate_by_slo(scenario: Path) -> float:
    """The rate at which 95 % keep to the objective: a line through long runs around it, in the logarithm."""
    rates = np.array([10.75, 11.25, 11.75, 12.25])
    long = ("load.duration=3000s", "seed=999")
    shares = [
        virtual_summary(load_scenario(scenario, (f"load.poisson={rate}", *long)))["slo"]["attainment"] for rate in rates
    ]
    curve = np.polynomial.Polynomial.fit(np.log(rates), shares, 2)
    fine = np.linspace(rates[0], rates[-1], 2001)
    return float(fine[np.argmin(np.abs(curve(np.log(fine)) - 0.95))])


def rate_by_stability(scenario: Path) -> float:
    """What the engine carries when there is always more to do."""
    settings = load_scenario(scenario).engine.sim
    assert settings is not None
    traces = simulate(EngineCore(SimSettings.of(settings)), [Arrival(0.0, [1] * 8, 2) for _ in range(4000)])
    return len(traces) / traces[-1].token_times[-1]


def searches(scenario: Path, out: Path, seeds: int, *overrides: str) -> list[dict[str, Any]]:
    found = []
    for seed in range(seeds):
        mine = (*overrides, f"seed={(seed + 1) * 10_000}")
        # Half of them begin elsewhere, so that the rates that are tried lie differently around the capacity.
        settings = capacity.Settings(first=2 ** (seed * 0.37 % 1) if seed % 2 else None)
        found.append(find(scenario, out / f"{seed}", VirtualRunner(scenario, mine), settings, mine))
    return found


def test_a_capacity_that_the_slo_sets_is_enclosed(scenario: Path, tmp_path: Path) -> None:
    truth = rate_by_slo(scenario)
    found = searches(scenario, tmp_path / "out", 20)
    assert sum(contains(result, truth) for result in found) >= 18
    assert np.mean([len(result["probes"]) for result in found]) <= 12
    for result in found:  # never a point, and narrow
        assert 0 < result["precision"]["reached"] < 0.25
        assert result["confirmed"]
    assert {result["binding"]["objective"] for result in found} == {"ttft p95"}


def test_a_capacity_that_stability_sets_is_enclosed(scenario: Path, tmp_path: Path) -> None:
    truth = rate_by_stability(scenario)
    found = searches(scenario, tmp_path / "out", 6, LOOSE)
    assert sum(contains(result, truth) for result in found) >= 5
    assert np.mean([len(result["probes"]) for result in found]) <= 12
    assert {result["binding"]["objective"] for result in found} <= {"backlog", "failures"}  # unfinished after the drain
    failed = [next(p for p in r["probes"] if p["rate"] == r["failed_per_s"]) for r in found]
    assert all(probe["attainment"]["ttft p95"]["value"] > 0.95 for probe in failed)


@dataclass
class MadeUpRunner:
    """A server whose attainment falls from 1 to 0 around `capacity` requests/s; each method of failing is optional.

    Attributes:
        capacity: the rate at which 95 % keep to the objective.
        luck: added to the logarithm of the capacity for a seed.
        break_at: cell at which KeyboardInterrupt is raised.
        fails: cells that raise EngineError.
        unusable: rates from which on the client is the limit.
        seconds: that a run takes.
    """

    capacity: float
    luck: Callable[[int], float] = lambda seed: 0.0
    break_at: str | None = None
    fails: Callable[[Cell], bool] = lambda cell: False
    unusable: float = math.inf
    seconds: float = 0.0
    cells: list[str] = field(default_factory=list)

    def __call__(self, cell: Cell, path: Path) -> dict[str, Any]:
        if cell.name == self.break_at:
            raise KeyboardInterrupt
        self.cells.append(cell.name)
        time.sleep(self.seconds)
        if self.fails(cell):
            raise EngineError("the server did not come up")
        rate = float(cell.overrides[0].partition("=")[2])
        length = float(cell.overrides[1].partition("=")[2])
        assert cell.seed is not None
        return self.summary(rate, round(rate * length) + 1, self.capacity * math.exp(self.luck(cell.seed)))

    def summary(self, rate: float, offered: int, capacity: float) -> dict[str, Any]:
        share = 1 / (1 + (rate / capacity) ** 12 / 19)
        within = round(share * offered)
        objective = {
            "text": "ttft p95 < 1000 ms",
            "metric": "ttft",
            "quantile": "p95",
            "limit": 1000.0,
            "attainment": {
                "within": within,
                "of": offered,
                "error": math.sqrt(share * (1 - share) / offered),
                "effective": float(offered),
            },
        }
        codes = [{"code": "client.cpu", "level": "fail", "text": "the client is busy"}] if rate >= self.unusable else []
        return {
            "simulated": True,
            "verdict": {"status": "INVALID" if codes else "VALID", "codes": codes},
            "cohort": {"planned": offered, "ok": offered},
            "metrics": {"ttft": {"p50": 100.0, "p95": 300.0, "max": 100.0 if within == offered else 2000.0}},
            "slo": {"attainment": share, "objectives": [objective]},
            "stationarity": [{"name": "in flight", "change": 0.0, "z": 0.0}],
            "concurrency": {"total": {"window_mean": 5.0}},
            "throughput": {"goodput_per_s": share * rate, "output_tokens_per_s": 2 * rate, "input_tokens_per_s": rate},
            "lengths": {"input": {"real": {"mean": 8.0}}, "output": {"real": {"mean": 2.0}}},
            "energy": {"j_per_output_token": None, "reason": "no GPU was sampled"},
            "endpoint": {"model": "m", "engine": {"name": "sim", "version": "1"}},
        }


def test_the_result_of_a_search(scenario: Path, tmp_path: Path) -> None:
    result = find(scenario, tmp_path / "out", MadeUpRunner(5.3))
    assert contains(result, 5.3)
    assert result["verdict"]["status"] == "VALID"
    assert result["verdict"]["exit_code"] == 0
    assert result["precision"]["reached"] <= 0.1
    assert result["slo"] == [
        {
            "objective": "ttft p95",
            "text": "ttft p95 < 1000 ms",
            "metric": "ttft",
            "quantile": "p95",
            "limit_ms": 1000.0,
            "target": 0.95,
        }
    ]
    assert result["tokens"]["input_mean"] == 8
    assert result["tokens"]["output_tokens_per_s"] == pytest.approx(2 * result["sustained_per_s"])
    assert result["goodput_per_s"] == pytest.approx(result["sustained_per_s"], rel=0.05)
    assert (result["energy_j_per_output_token"], result["energy_reason"]) == (None, "no GPU was sampled")
    assert result["engine"]["name"] == "sim"
    assert result["binding"]["objective"] == "ttft p95"
    assert f"at {result['failed_per_s']:g}/s" in result["binding"]["text"]
    rates = [probe["rate"] for probe in result["probes"]]
    assert rates == sorted(set(rates))
    assert result["simulated"] is True


def test_a_clear_overload_takes_one_run(scenario: Path, tmp_path: Path) -> None:
    result = find(scenario, tmp_path / "out", MadeUpRunner(5.3))
    assert [probe["runs"] for probe in result["probes"] if probe["rate"] >= 8] == [1]
    assert all(probe["runs"] >= 2 for probe in result["probes"] if probe["rate"] < 5)


def test_what_is_thought_of_a_rate_is_told_at_each_look(scenario: Path, tmp_path: Path) -> None:
    asked = capacity.question(load_scenario(scenario), capacity.Settings(most=4), "sim", None)
    directory = ExperimentDir.begin(tmp_path / "out", "capacity", "small", asked, ["servebench"])
    told: list[str] = []
    capacity.search(Campaign(directory, MadeUpRunner(50)), FOREVER, told.append)
    assert told == [
        "1/s: pass, 100 % kept to ttft p95, target 95 %",
        "2/s: pass, 100 % kept to ttft p95, target 95 %",
        "4/s: pass, 100 % kept to ttft p95, target 95 %",
        "4/s: pass, 100 % kept to ttft p95, target 95 %",  # confirmed
    ]


def test_cells_are_named_by_probe_rate_and_seed(scenario: Path, tmp_path: Path) -> None:
    runner = MadeUpRunner(5.3)
    find(scenario, tmp_path / "out", runner)
    assert runner.cells[:6] == ["p01-r1-s1", "p01-r1-s2", "p02-r2-s1", "p02-r2-s2", "p03-r4-s1", "p03-r4-s2"]
    assert runner.cells[-1].endswith("-h2")
    assert len(set(runner.cells)) == len(runner.cells)


@pytest.mark.parametrize("place", [0, 3, 9, -1])
def test_an_interrupted_search_goes_on_to_the_same_result(scenario: Path, tmp_path: Path, place: int) -> None:
    whole = MadeUpRunner(5.3)
    expected = find(scenario, tmp_path / "whole", whole)
    first = MadeUpRunner(5.3, break_at=whole.cells[place])
    with pytest.raises(KeyboardInterrupt):
        find(scenario, tmp_path / "out", first)
    second = MadeUpRunner(5.3)
    result = find(scenario, tmp_path / "out", second)
    assert first.cells + second.cells == whole.cells
    for each in (expected, result):
        for timed in (*each["probes"], each["budget"]):
            timed.pop("seconds", None)
            timed.pop("spent_s", None)
    assert result == expected


def test_an_answer_that_other_seeds_contradict_steps_down(scenario: Path, tmp_path: Path) -> None:
    """The search's seeds see 10 % more than there is; those that confirm do not."""
    result = find(scenario, tmp_path / "out", MadeUpRunner(5.3, luck=lambda seed: 0.1 if seed < 1000 else -0.05))
    assert result["sustained_per_s"] < 5.3
    assert result["confirmed"]
    doubted = [probe for probe in result["probes"] if "not with others" in probe["reason"]]
    assert doubted
    assert all(probe["decision"] == "undecided" for probe in doubted)


def test_nothing_fails_up_to_the_highest_rate(scenario: Path, tmp_path: Path) -> None:
    result = find(scenario, tmp_path / "out", MadeUpRunner(50), capacity.Settings(most=6))
    assert (result["sustained_per_s"], result["failed_per_s"], result["max_per_s"]) == (6, None, 6)
    assert result["precision"]["reached"] is None
    assert (result["verdict"]["status"], result["verdict"]["exit_code"]) == ("SUSPECT", 0)
    text = next(c["text"] for c in result["verdict"]["codes"] if c["code"] == "capacity.bracket")
    assert text == "open above: 6/s passed and no rate failed, so the capacity is at least that"


def test_the_lowest_rate_fails(scenario: Path, tmp_path: Path) -> None:
    result = find(scenario, tmp_path / "out", MadeUpRunner(1.5), capacity.Settings(first=2))
    assert (result["sustained_per_s"], result["failed_per_s"]) == (None, 2)
    assert (result["verdict"]["status"], result["verdict"]["exit_code"]) == ("VALID", 4)
    assert result["goodput_per_s"] is None
    assert result["tokens"]["input_mean"] is None
    text = next(c["text"] for c in result["verdict"]["codes"] if c["code"] == "capacity.bracket")
    assert text.startswith("not even 2/s holds: ")
    assert "kept to ttft p95" in text


def test_a_lowest_rate_that_cannot_be_decided_is_not_said_to_fail(scenario: Path, tmp_path: Path) -> None:
    result = find(scenario, tmp_path / "out", MadeUpRunner(5.3), capacity.Settings(first=5.3))
    assert result["sustained_per_s"] is None
    assert result["failed_per_s"] > 5.3
    code = next(c for c in result["verdict"]["codes"] if c["code"] == "capacity.bracket")
    assert code["level"] == "warn"
    assert "5.3/s" in code["text"] and code["text"].endswith("could not be decided")


def test_below_a_rate_that_was_only_guessed_lower_ones_are_tried(scenario: Path, tmp_path: Path) -> None:
    assert contains(find(scenario, tmp_path / "out", MadeUpRunner(0.3)), 0.3)
    hopeless = find(scenario, tmp_path / "hopeless", MadeUpRunner(0.01))
    assert (hopeless["sustained_per_s"], hopeless["failed_per_s"]) == (None, 0.0625)


def test_a_budget_that_is_spent_ends_the_search_and_a_larger_one_goes_on(scenario: Path, tmp_path: Path) -> None:
    first = MadeUpRunner(5.3, seconds=0.01)
    result = find(scenario, tmp_path / "out", first, budget_s=0.02)
    assert first.cells[0] == "p01-r1-s1"
    assert len(first.cells) <= 2
    assert result["budget"]["exhausted"]
    assert result["verdict"]["status"] != "VALID"
    second = MadeUpRunner(5.3)
    result = find(scenario, tmp_path / "out", second)
    assert contains(result, 5.3)
    assert not set(first.cells) & set(second.cells)


def test_a_run_that_fails_is_recorded_and_the_search_goes_on(scenario: Path, tmp_path: Path) -> None:
    result = find(scenario, tmp_path / "out", MadeUpRunner(5.3, fails=lambda cell: cell.name == "p02-r2-s1"))
    assert contains(result, 5.3)
    code = next(c for c in result["verdict"]["codes"] if c["code"] == "capacity.runs")
    assert code["level"] == "warn"
    assert code["text"] == "1 runs failed or say nothing of the server (at 2/s)"


def test_a_server_that_never_comes_up_ends_the_search_at_once(scenario: Path, tmp_path: Path) -> None:
    runner = MadeUpRunner(5.3, fails=lambda cell: True)
    result = find(scenario, tmp_path / "out", runner)
    assert runner.cells == ["p01-r1-s1", "p01-r1-s2"]
    assert (result["verdict"]["status"], result["verdict"]["exit_code"]) == ("INVALID", 2)
    assert result["probes"][0]["reason"] == "the server did not come up"


def test_a_server_that_dies_before_the_confirmation_ends_the_search(scenario: Path, tmp_path: Path) -> None:
    runner = MadeUpRunner(5.3, fails=lambda cell: "-h" in cell.name)
    result = find(scenario, tmp_path / "out", runner)
    assert contains(result, 5.3)
    assert [name.rpartition("-")[2] for name in runner.cells if "-h" in name] == ["h1", "h2", "h3", "h4"]
    assert not result["confirmed"]
    code = next(c for c in result["verdict"]["codes"] if c["code"] == "capacity.confirmed")
    assert code["next"].endswith("--retry-failed runs again what failed")


def test_runs_of_which_none_can_be_used_decide_nothing(scenario: Path, tmp_path: Path) -> None:
    result = find(scenario, tmp_path / "out", MadeUpRunner(5.3, unusable=0.0))
    assert (result["sustained_per_s"], result["failed_per_s"]) == (None, None)
    assert (result["verdict"]["status"], result["verdict"]["exit_code"]) == ("INVALID", 3)


def test_a_client_that_is_the_limit_leaves_the_bracket_open(scenario: Path, tmp_path: Path) -> None:
    result = find(scenario, tmp_path / "out", MadeUpRunner(50, unusable=7.0))
    assert result["failed_per_s"] is None
    assert 6 < result["sustained_per_s"] < 7
    text = next(c["text"] for c in result["verdict"]["codes"] if c["code"] == "capacity.bracket")
    assert "could be used (client.cpu: the client is busy)" in text


def test_what_contradicts_itself_is_said(scenario: Path, tmp_path: Path) -> None:
    class Moody(MadeUpRunner):
        """Carries 4/s, and 5 to 6/s, and nothing between."""

        def summary(self, rate: float, offered: int, capacity: float) -> dict[str, Any]:
            return super().summary(rate, offered, 1.0 if 4.2 < rate < 4.9 else 5.9)

    result = find(scenario, tmp_path / "out", Moody(5.9), capacity.Settings(precision=0.5))
    assert result["sustained_per_s"] < result["failed_per_s"]


@pytest.mark.parametrize(
    ("overrides", "settings", "message"),
    [
        (("load.closed.concurrency=4",), {}, "needs an open loop"),
        (("load.ramp={from: 1, to: 4}",), {}, "needs a load of one rate"),
        (("load.stages=[{poisson: 1, for: 30s}, {poisson: 2}]",), {}, "needs a load of one rate"),
        (("slo={}",), {}, "needs an SLO"),
        (("load.throttle=600/min",), {}, "--set load.throttle=null"),
        (("load.max_in_flight=64",), {}, r"hold back; leave the cap out \(--set load.max_in_flight=null\)"),
        ((), {"first": 4, "most": 2}, "--max 2/s is below --from 4/s"),
        ((), {"runs": 4, "most_runs": 2}, "--most-runs 2 is less than --runs 4"),
    ],
)
def test_questions_that_have_no_answer(
    scenario: Path, overrides: tuple[str, ...], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        capacity.question(load_scenario(scenario, overrides), capacity.Settings(**settings), "sim", None)


@pytest.mark.parametrize(
    ("overrides", "law"),
    [
        ((), "poisson"),
        (("load.constant=3/s",), "constant"),
        (("load.gamma={rate: 3/s, cv: 2}",), "gamma"),
        (("load.stages=[{gamma: {rate: 3/s, cv: 2}}]", "load.duration=30s"), "gamma"),
        (("load.stages=[{poisson: 3/s, for: 120s}]",), "poisson"),
        (("load.requests=500",), "poisson"),
        (("load.max_in_flight={limit: 64, policy: drop}",), "poisson"),
        (("load.max_in_flight=64", "load.max_in_flight=null"), "poisson"),
    ],
)
def test_the_rate_is_set_in_the_loads_own_law(scenario: Path, overrides: tuple[str, ...], law: str) -> None:
    asked = capacity.question(load_scenario(scenario, overrides), capacity.Settings(first=2.5), "sim", None)
    cell = capacity.first_cells(asked)[0]
    load = load_scenario(scenario, (*overrides, *cell.overrides)).load
    assert (load.stages[0].law, load.stages[0].rate, load.requests) == (law, 2.5, None)
    assert load.duration == asked["duration_s"] > 0
    assert load.stages[0].cv == {"poisson": 1, "constant": 0, "gamma": 2}[law]


@pytest.mark.parametrize(
    ("own", "most", "duration", "first"),
    [("2/s", None, "120s", 1.0), ("0.6/s", None, "120s", 0.3), ("8/s", 0.5, "120s", 0.5), ("8/s", None, "3s", 3.3)],
)
def test_the_first_rate_is_guessed_low(
    scenario: Path, own: str, most: float | None, duration: str, first: float
) -> None:
    loaded = load_scenario(scenario, (f"load.poisson={own}", f"load.duration={duration}"))
    assert capacity.question(loaded, capacity.Settings(most=most), "sim", None)["bounds"]["first"] == first
