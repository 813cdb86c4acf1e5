"""`servebench gate` as a CI job meets it: real runs of the simulated engine, exit codes, JUnit and Markdown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import yaml

from runs import execute
from servebench.cli.main import main
from servebench.scenario import load_scenario

SCENARIO = {
    "servebench": 1,
    "name": "gated",
    "workload": {
        "input_tokens": {"uniform": {"min": 16, "max": 48}},
        "output_tokens": {"uniform": {"min": 6, "max": 14}},
    },
    "load": {"poisson": "60/s", "duration": "3s", "warmup": "300ms", "drain": "5s"},
    "slo": {"ttft": "p95 < 100ms", "itl": "p99 < 100ms"},
    "engine": {
        "sim": {"base": "8ms", "per_prefill_token": "40us", "per_sequence": "200us", "per_context_token": "0s"},
    },
}
TRIES = 6
BUSY = ("client.", "load.", "time.", "stats.not_steady")  # codes that a machine without a free core raises
SLOWED = ("engine.sim.base=8.8ms", "engine.sim.per_prefill_token=44us", "engine.sim.per_sequence=220us")


def make(folder: Path, count: int, scenario: Path, overrides: Sequence[str] = ()) -> Path:
    """`count` real runs on a simulated engine of their own."""
    for i in range(count):
        make_run(folder / f"r{i}", scenario, overrides)
    return folder


def make_run(path: Path, scenario: Path, overrides: Sequence[str]) -> None:
    """A VALID run. One that says of itself that the machine was too busy is made again, as a CI job would do."""
    for _ in range(TRIES):
        shutil.rmtree(path, ignore_errors=True)
        made = execute(load_scenario(scenario, overrides), "sim", path, telemetry=False)
        raised = {code["code"] for code in made.summary["verdict"]["codes"] if code["level"] != "ok"}
        assert all(name.startswith(BUSY) for name in raised), raised
        if not raised:
            return
    pytest.skip(f"this machine is too busy to tell 10 %: {', '.join(sorted(raised))}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_runs_of_equal_code_pass_and_of_slower_code_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole of a CI job: a baseline, equal code, and a server that is 10 % slower."""
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(SCENARIO))
    baseline = make(tmp_path / "baseline", 5, scenario)
    equal = make(tmp_path / "equal", 3, scenario)
    slower = make(tmp_path / "slower", 3, scenario, SLOWED)
    assert least_requests(baseline) >= 150

    assert main(["gate", str(equal), "--baseline", str(baseline)]) == 0, capsys.readouterr().out
    assert " PASSED " in capsys.readouterr().out

    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    files = ["--junit", str(junit), "--markdown", str(markdown)]
    assert main(["gate", str(slower), "--baseline", str(baseline), *files]) == 4
    out = capsys.readouterr().out
    assert " REGRESSION " in out
    assert "engine.sim.base: 0.008 → 0.0088" in out
    suite = Xml.parse(junit).getroot()[0]
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert "itl.mean" in failed
    assert suite.get("failures") == str(len(failed))
    assert "❌" in markdown.read_text()


def least_requests(folder: Path) -> int:
    summaries = [json.loads(path.read_text()) for path in folder.glob("*/summary.json")]
    return min(int(summary["cohort"]["ok"]) for summary in summaries)


def stored(folder: Path, *values: float, model: str = "m", **more: Any) -> Path:
    """Run directories with nothing but what a gate reads; `values` are their mean E2E in ms."""
    for i, value in enumerate(values):
        path = folder / f"r{i}"
        path.mkdir(parents=True)
        endpoint = {"model": model}
        manifest = {"schema": 1, "status": "complete", "created_ns": i, "scenario": {"load": {}}, "endpoint": endpoint}
        (path / "run.json").write_text(json.dumps(manifest))
        summary = {
            "name": "stored",
            "verdict": {"status": "VALID", "codes": []} | more,
            "metrics": {"e2e": {"mean": value, "n": 500, "below_floor": []}},
            "cohort": {"planned": 500, "ok": 500},
            "plan": {"hash": "h", "seeds": {"arrivals": 1}},
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    return stored(tmp_path / "baseline", 100, 101, 99, 100, 100)


def gate(*arguments: str | Path) -> int:
    return main(["gate", *map(str, arguments)])


class TestExitCodes:
    @pytest.mark.parametrize(("value", "exit_code"), [(100.0, 0), (120.0, 4)])
    def test_no_regression_and_a_regression(
        self, tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str], value: float, exit_code: int
    ) -> None:
        cand = stored(tmp_path / "cand", value, value, value)
        assert gate(cand, "--baseline", baseline, "--limit", "e2e.mean < +5%", "--json") == exit_code
        found = json.loads(capsys.readouterr().out)
        assert found["exit_code"] == exit_code
        assert [each["name"] for each in found["checks"]] == ["e2e.mean < +5%", "failed_share"]

    def test_runs_may_be_given_one_by_one_and_twice(
        self, tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cand = stored(tmp_path / "cand", 100, 100)
        assert gate(cand / "r0", cand / "r1", cand, "--baseline", baseline / "r0", "-b", baseline, "--json") == 0
        found = json.loads(capsys.readouterr().out)["runs"]
        assert (len(found["candidate"]), len(found["baseline"])) == (2, 5)

    def test_another_model_exits_with_3_and_names_it(
        self, tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cand = stored(tmp_path / "cand", 100, 100, model="other")
        junit = tmp_path / "gate.xml"
        assert gate(cand, "--baseline", baseline, "--junit", junit) == 3
        out = " ".join(capsys.readouterr().out.split())
        assert "INVALID nothing was judged: the runs cannot be compared" in out
        assert "the models differ: m against other" in out
        suite = Xml.parse(junit).getroot()[0]
        assert (suite.get("errors"), suite.get("tests")) == ("1", "1")

    def test_an_invalid_candidate_exits_with_3(
        self, tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cand = stored(tmp_path / "cand", 100, status="INVALID")
        assert gate(cand, "--baseline", baseline) == 3
        assert "INVALID" in capsys.readouterr().out

    def test_strict_fails_what_is_undecided(self, tmp_path: Path, baseline: Path) -> None:
        cand = stored(tmp_path / "cand", 102, 102)
        arguments = (cand, "--baseline", baseline, "--limit", "e2e.mean < +1%")
        assert gate(*arguments) == 0
        assert gate(*arguments, "--strict") == 4

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("cand",), "Missing option '--baseline'"),
            (("cand", "-b", "none"), "there is no none"),
            (("none", "-b", "baseline"), "there is no none"),
            (("empty", "-b", "baseline"), "empty holds no run directory"),
            (("cand", "-b", "baseline", "-l", "e2e.maen < +5%"), 'did you mean "e2e.mean"'),
            (("cand", "-b", "baseline", "-l", "e2e.mean > +5%"), "has the wrong sign"),
            (("baseline/r0", "-b", "baseline"), "is a candidate and in the baseline"),
            (("cand", "-b", "baseline", "--junit", "none/gate.xml"), "cannot write none/gate.xml"),
        ],
    )
    def test_wrong_usage_exits_with_2_and_one_line(
        self,
        tmp_path: Path,
        baseline: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: tuple[str, ...],
        said: str,
    ) -> None:
        stored(tmp_path / "cand", 100)
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path)
        assert gate(*arguments) == 2
        err = capsys.readouterr().err
        assert said in err
        assert len(err.splitlines()) == 1


def test_the_table_says_what_was_held_against_what(
    tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cand = stored(tmp_path / "cand", 120, 120, 120)
    gate(cand, "--baseline", baseline, "-l", "e2e.mean < +5%", "-l", "e2e.mean < 1s")
    out = capsys.readouterr().out
    for words in ("100 ms", "120 ms", "+20.0 %", "< +5.0 %", "FAIL", "< 1.00 s", "0 of 1,500"):
        assert words in " ".join(out.replace("\n", " ").split()), words
