"""`servebench capacity` as a user runs it, on the simulated engine over sockets: tiny runs, a real directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs import write_scenario
from servebench.cli.main import main
from servebench.experiment.directory import ExperimentDir

# A prompt takes 32 ms of a step, so that 30 requests/s are carried: 20/s and 40/s are clear cases on any machine.
ENGINE = {"sim": {"base": "4ms", "per_prefill_token": "1600us", "per_sequence": "10us", "enable_prefix_caching": False}}
LOAD = {"poisson": "20/s", "duration": "2s", "warmup": "300ms", "drain": "1s"}


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    return str(write_scenario(tmp_path, LOAD, slo={"ttft": "p95 < 900ms"}, engine=ENGINE))


def result_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)["experiment"]["result"]
    return found


def test_a_search_that_is_cut_short_goes_on_to_a_bracket(scenario, tmp_path, capsys):
    out = tmp_path / "capacity"
    asked = ["capacity", scenario, "-e", "sim", "--out", str(out), "--no-telemetry", "--quiet"]
    asked += ["--from", "10/s", "--max", "80/s", "--precision", "100%", "--most-runs", "2"]
    assert main([*asked, "--json", "--budget", "1s"]) in (0, 3)
    first = result_of(capsys.readouterr().out)
    assert first["budget"]["exhausted"] is True
    begun = {cell["name"] for cell in ExperimentDir.open(out).document["cells"]}
    assert begun <= {"p01-r10-s1", "p01-r10-s2"}

    assert main([*asked, "--json"]) == 0
    found = result_of(capsys.readouterr().out)
    assert found["simulated"] is True
    assert found["sustained_per_s"] is not None and found["failed_per_s"] is not None
    assert 10 <= found["sustained_per_s"] < 35
    assert found["sustained_per_s"] < found["failed_per_s"] <= 80
    assert found["goodput_per_s"] == pytest.approx(found["sustained_per_s"], rel=0.4)
    assert found["tokens"]["output_mean"] == 10
    assert found["engine"]["name"] == "sim"
    stored = ExperimentDir.open(out).document["cells"]
    assert begun < {cell["name"] for cell in stored}

    assert main([*asked, "--json"]) == 0  # everything is there: the same result, and no further run
    assert result_of(capsys.readouterr().out) == found
    assert ExperimentDir.open(out).document["cells"] == stored
    assert main(["report", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "SIMULATED" in shown
    assert f"{found['sustained_per_s']:g}/s sustained .. {found['failed_per_s']:g}/s failed" in shown
    assert "what breaks first" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "load.closed.concurrency=4"], "capacity needs an open loop"),
        (["--set", "slo={}"], "capacity needs an SLO"),
        (["--from", "fast"], "expected a rate"),
        (["--from", "0/s"], "is not above 0"),
        (["--budget", "1e999h"], "is not above 0 and finite"),
        (["--from", "9/s", "--max", "4/s"], "--max 4/s is below --from 9/s"),
        (["--precision", "0.1%"], "is not from 1% to 100%"),
        (["--confidence", "most"], "is no share"),
        (["--budget", "-1h"], "duration"),
        (["--runs", "8"], "--most-runs 6 is less than --runs 8"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(scenario, capsys, arguments, message):
    assert main(["capacity", scenario, "-e", "sim", *arguments]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert len(told.err.strip().splitlines()) == 1
    assert told.out == ""


def test_no_server_is_exit_2_and_says_why(scenario, tmp_path, capsys):
    out = str(tmp_path / "capacity")
    assert main(["capacity", scenario, "-e", "http://127.0.0.1:9", "--out", out, "--quiet"]) == 2
    shown = capsys.readouterr().out
    assert "connection refused" in shown
    assert "INVALID" in shown


def test_a_dry_run_says_what_it_can_and_makes_nothing(scenario, tmp_path, capsys):
    out = tmp_path / "capacity"
    asked = ["capacity", scenario, "-e", "sim", "--out", str(out), "--dry-run", "--max", "64/s"]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert "p01-r5-s1" in shown
    assert "doubled up to 64/s and bisected; each rate takes 2 to 8 runs, and none begins after 120m" in shown
    assert main([*asked, "--json"]) == 0
    assert [cell["name"] for cell in json.loads(capsys.readouterr().out)["cells"]] == ["p01-r5-s1", "p01-r5-s2"]
    assert not out.exists()
