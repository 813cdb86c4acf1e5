"""What a sweep runs, and what it concludes from its cells; the runs are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from servebench.errors import EngineError, UsageError
from servebench.experiment import judge, sweep
from servebench.experiment.campaign import Campaign
from servebench.experiment.cell import Cell
from servebench.experiment.directory import ExperimentDir
from servebench.experiment.variables import parse_vary
from servebench.report.experiments import render
from servebench.scenario import load_scenario

RATES = parse_vary("load.rate=1,2,4,8")
SEQS = parse_vary("sim.max-num-seqs=2,64")


def summary_of(cell: Cell) -> dict[str, Any]:
    """An engine whose latency grows with the rate; it keeps its promise up to 4/s, with few seats up to 1/s."""
    rate, seats = float(cell.labels["load.rate"]), cell.labels.get("sim.max-num-seqs", 64)
    shift = float(cell.labels.get("repeat", 1))
    latency = {"p50": 10 * rate + shift, "p95": 20 * rate, "p99": 40 * rate}
    met = rate <= (4 if seats == 64 else 1)
    return {
        "simulated": True,
        "verdict": {"status": "INVALID" if rate == 8 else "VALID", "codes": [_code("client.loop_lag", rate == 8)]},
        "metrics": {name: latency | {"below_floor": ["p99"]} for name in ("ttft", "itl", "e2e")},
        "throughput": {
            "offered_requests_per_s": rate,
            "requests_per_s": rate,
            "output_tokens_per_s": 100 * rate,
            "goodput_per_s": rate if met else 0.0,
            "attainment": 1.0 if met else 0.0,
        },
        "slo": {"met": met, "objectives": [{"metric": "ttft", "quantile": "p95", "met": met}]},
    }


def _code(name: str, fails: bool) -> dict[str, Any]:
    return {"code": name, "level": "fail" if fails else "ok"}


def run(
    path: Path, variables: list[Any], repeats: int = 1, dies: str = "", most: int = 99, reset: bool = False
) -> ExperimentDir:
    def runner(cell: Cell, path: Path) -> dict[str, Any]:
        if cell.name == dies:
            raise EngineError("vLLM died: no room for the KV cache")
        path.mkdir(parents=True)
        told = {"asked": True, "done": "rate-2" not in cell.name, "reason": "as the server says"}
        (path / "run.json").write_text(json.dumps({"cache_reset": told}))
        return summary_of(cell)

    scenario = load_scenario("smoke")
    asked = sweep.question(scenario, variables, "grid", repeats, "sim", None, reset)
    directory = ExperimentDir.begin(path, "sweep", "smoke", asked, ["servebench", "sweep"])
    Campaign(directory, runner).run_all(sweep.cells(variables, "grid", repeats, 1)[:most])
    return directory


def test_points_come_before_repeats_and_each_repeat_has_seeds_of_its_own():
    cells = sweep.cells([parse_vary("load.rate=1,2")], "grid", 3, seed=10)
    assert [cell.name for cell in cells[:3]] == ["01-rate-1-r1", "02-rate-2-r1", "01-rate-1-r2"]
    assert [cell.seed for cell in cells] == [None, None, 11, 11, 12, 12]
    assert cells[3].labels == {"load.rate": 2, "repeat": 2}
    assert cells[3].overrides == ("load.rate=2",)


def test_names_are_fit_for_folders_whatever_the_values_are():
    odd = parse_vary("slo.ttft=p95 < 800ms,p95 < 'Ä/../x'," + "p99 < 1" + "0" * 200)
    names = [cell.name for cell in sweep.cells([odd], "grid", 1, 1)]
    assert names[0] == "01-ttft-p95-800ms"
    assert all(len(name) <= 110 and "/" not in name for name in names)
    assert len(set(names)) == 3


def test_seeds_cannot_be_varied_and_repeated():
    with pytest.raises(UsageError, match="--vary seed goes only without it"):
        sweep.cells([parse_vary("seed.arrivals=1,2")], "grid", 2, 1)


def test_a_row_a_cell_and_a_curve_for_every_other_setting(tmp_path):
    result = judge(run(tmp_path, [RATES, SEQS]))
    assert [row["status"] for row in result["cells"]] == ["done"] * 8
    first = result["cells"][0]
    assert first["labels"] == {"load.rate": 1, "sim.max-num-seqs": 2}
    assert (first["figures"]["ttft.p95"], first["offered_per_s"], first["few"]) == (
        20.0,
        1.0,
        ["ttft.p99", "itl.p99"],
    )
    few, many = result["curves"]["series"]
    assert (few["name"], many["name"]) == ("max-num-seqs 2", "max-num-seqs 64")
    assert [point["x"] for point in many["points"]] == [1.0, 2.0, 4.0]  # 8/s is INVALID
    assert [point["goodput_per_s"] for point in few["points"]] == [1.0, 0.0, 0.0]
    assert (few["holds"], few["misses"]) == (1.0, 2.0)
    assert (many["holds"], many["misses"]) == (4.0, None)
    assert result["curves"]["left_out"] == ["07-rate-8-max-num-seqs-2", "08-rate-8-max-num-seqs-64"]
    assert result["exit_code"] == 3


def test_medians_are_over_the_runs_that_hold(tmp_path):
    result = judge(run(tmp_path, [parse_vary("load.rate=1,2")], repeats=3, dies="01-rate-1-r2"))
    lost, whole = result["points"]
    assert (lost["runs"], lost["used"], lost["figures"]["ttft.p50"]) == (3, 2, 12.0)  # of 11 and 13
    assert (whole["used"], whole["figures"]["ttft.p50"], whole["slo_met"]) == (3, 22.0, 3)
    failed = next(row for row in result["cells"] if row["status"] == "failed")
    assert (failed["cell"], failed["reason"]) == ("01-rate-1-r2", "vLLM died: no room for the KV cache")
    assert failed["figures"]["ttft.p50"] is None


def test_an_unfinished_sweep_says_what_is_missing(tmp_path):
    directory = run(tmp_path, [parse_vary("load.rate=1,2,4")], most=2)
    result = judge(directory)
    assert [row["status"] for row in result["cells"]] == ["done", "done", "missing"]
    assert result["exit_code"] == 0
    assert "1 run of 3 not made yet" in printed(directory, result)


def test_the_result_is_plain_data_and_the_same_each_time(tmp_path):
    directory = run(tmp_path, [RATES], repeats=2)
    result = judge(directory)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert judge(ExperimentDir.open(tmp_path)) == result


def test_without_a_load_key_there_is_a_table_and_no_curve(tmp_path):
    def runner(cell: Cell, path: Path) -> dict[str, Any]:
        return summary_of(Cell("x", {"load.rate": 2}))

    asked = sweep.question(load_scenario("smoke"), [SEQS], "grid", 1, "sim", None, False)
    directory = ExperimentDir.begin(tmp_path, "sweep", "smoke", asked, ["servebench"])
    Campaign(directory, runner).run_all(sweep.cells([SEQS], "grid", 1, 1))
    result = judge(directory)
    assert result["curves"] is None
    assert result["exit_code"] == 0
    assert "┤" not in printed(directory, result)


def test_when_every_run_failed_that_is_the_exit_code_of_a_failed_run(tmp_path):
    variable = parse_vary("load.rate=1,2")
    directory = run(tmp_path, [variable], dies="01-rate-1", most=1)
    assert judge(directory)["exit_code"] == 2


def printed(directory: ExperimentDir, result: dict[str, Any]) -> str:
    console = Console(width=100, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(render(directory.document | {"result": result}))
    return capture.get()


def test_the_report_marks_invalid_cells_and_draws_the_others(tmp_path):
    directory = run(tmp_path, [RATES, SEQS])
    text = printed(directory, judge(directory))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("✘ INVALID") == 2
    assert "✘ 07-rate-8-max-num-seqs-2: INVALID (client.loop_lag)" in text
    assert "not drawn: 07-rate-8-max-num-seqs-2" in text
    assert "● max-num-seqs 2   ○ max-num-seqs 64" in text
    assert "max-num-seqs 2: the SLO was met up to 1/s and missed at 2/s; `servebench capacity` narrows it" in text
    assert "max-num-seqs 64: the SLO was met at every load that is drawn, up to 4/s" in text
    assert "load.rate, offered per second" in text
    assert "E2E p50, ms" in text


def test_the_report_shows_medians_and_failures(tmp_path):
    directory = run(tmp_path, [parse_vary("load.rate=1,2")], repeats=3, dies="01-rate-1-r2")
    text = printed(directory, judge(directory))
    assert "med. of 2" in text
    assert "median " in text
    assert "2 of 2" in text
    assert "✘ 01-rate-1-r2: vLLM died: no room for the KV cache" in text


def test_a_cache_that_was_not_reset_is_said_where_that_was_asked_for(tmp_path):
    directory = run(tmp_path / "asked", [parse_vary("load.rate=1,2")], reset=True)
    result = judge(directory)
    assert [row["cache"]["done"] for row in result["cells"]] == [True, False]
    assert [row["cache"]["verified"] for row in result["cells"]] == [None, None]
    assert "! cache not reset in 02-rate-2: as the server says" in printed(directory, result)
    other = run(tmp_path / "not", [parse_vary("load.rate=1,2")])
    assert [row["cache"] for row in judge(other)["cells"]] == [None, None]
