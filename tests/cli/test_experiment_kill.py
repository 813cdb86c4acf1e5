"""An experiment that is killed in the middle and started again ends like one that was left alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from runs import Command, command, until, write_scenario
from servebench.cli.main import main
from servebench.experiment.directory import ExperimentDir
from servebench.record.rundir import RunDir

LOAD = {"poisson": "40/s", "requests": 40, "drain": "5s"}
CELLS = 3


@pytest.fixture(scope="module")
def scenario_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = {"sim": {"base": "1ms", "per_sequence": "10us"}}
    return write_scenario(tmp_path_factory.mktemp("scenario"), LOAD, engine=engine, slo={"itl": "p50 < 100ms"})


@pytest.fixture(scope="module")
def undisturbed(scenario_file: Path, tmp_path_factory: pytest.TempPathFactory) -> ExperimentDir:
    folder = tmp_path_factory.mktemp("undisturbed")
    with command(folder, *experiment(scenario_file, folder / "e")) as started:
        assert started.wait(100) in (0, 3), started.stderr  # a busy machine may make a run INVALID
    return ExperimentDir.open(folder / "e")


def experiment(scenario: Path, out: Path) -> list[str | Path]:
    what = ["--vary", "sim.base=1ms,2ms,3ms", "--no-telemetry"]
    return ["sweep", scenario, "--out", out, *what]


def in_the_middle_of_cell(number: int, started: Command, out: Path) -> Path:
    """Wait until the `number`-th cell has load on it; return its directory."""

    def running() -> Path | None:
        assert started.process.poll() is None, started.stderr
        if not ExperimentDir.is_one(out):
            return None
        ended = {record["name"] for record in ExperimentDir.open(out).document["cells"]}
        begun = [path for path in out.glob("cells/*") if path.name not in ended]
        has_load = [path for path in begun if (path / "run.json").exists() and RunDir.open(path).requests().num_rows]
        return has_load[0] if len(ended) == number - 1 and has_load else None

    found: Path = until(running, 60, f"cell {number} under load")
    return found


def created(directory: Path) -> dict[str, int]:
    """When each cell's run was made."""
    return {path.parent.name: json.loads(path.read_text())["created_ns"] for path in directory.glob("cells/*/run.json")}


def told_of_cells(directory: ExperimentDir) -> list[dict[str, Any]]:
    """All that experiments of one question have in common, cell by cell."""
    return [
        {
            "name": outcome.cell.name,
            "labels": dict(outcome.cell.labels),
            "status": outcome.status,
            "plan": (outcome.summary or {})["plan"]["hash"],
            "seeds": (outcome.summary or {})["plan"]["seeds"],
            "planned": (outcome.summary or {})["outcomes"]["planned"],
            "ok": (outcome.summary or {})["outcomes"]["ok"],
            "scenario": (outcome.manifest or {})["scenario"],
        }
        for outcome in directory.outcomes()
    ]


def shape(table: Any) -> Any:
    """The rows and columns of a result without their figures, which no two runs share."""
    if isinstance(table, dict):
        return {key: shape(value) for key, value in table.items()}
    return [shape(value) for value in table] if isinstance(table, list) else None


def continued(scenario: Path, out: Path, folder: Path) -> str:
    with command(folder, *experiment(scenario, out)) as again:
        assert again.wait(100) in (0, 3), again.stderr
        return again.stderr


def test_killed_in_a_cell_it_goes_on_without_repeating_what_is_finished(
    scenario_file: Path, undisturbed: ExperimentDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "e"
    with command(tmp_path / "first", *experiment(scenario_file, out)) as started:
        half = in_the_middle_of_cell(2, started, out)
        started.signal(signal.SIGKILL)
        started.wait()
    before = created(out)
    assert len(before) == 2
    said = continued(scenario_file, out, tmp_path / "again")

    after = created(out)
    aside = f"{half.name}.left-1"
    assert {name: after[name] for name in before if name != half.name} == {
        name: stamp for name, stamp in before.items() if name != half.name
    }
    assert after[aside] == before[half.name]
    assert after[half.name] > before[half.name]
    assert said.count("there already") == 1
    assert f"2/{CELLS} {half.name}: " in said

    assert told_of_cells(ExperimentDir.open(out)) == told_of_cells(undisturbed)
    kept, whole = ExperimentDir.open(out).document, undisturbed.document
    assert kept["question"] == whole["question"]
    assert shape(kept["result"]) == shape(whole["result"])
    capsys.readouterr()
    main(["report", str(out), "--json"])
    assert json.loads(capsys.readouterr().out)["experiment"] == kept, "computed again from the stored cells alone"
    main(["report", str(out)])
    shown = capsys.readouterr().out
    assert f"sweep t: {CELLS} runs" in shown
    assert "SIMULATED" in shown


def test_interrupted_it_says_so_and_goes_on(scenario_file: Path, undisturbed: ExperimentDir, tmp_path: Path) -> None:
    out = tmp_path / "e"
    with command(tmp_path / "first", *experiment(scenario_file, out)) as started:
        half = in_the_middle_of_cell(2, started, out)
        started.signal(signal.SIGINT)
        assert started.wait() == 130
        assert started.stderr.splitlines()[-1] == "servebench: note: interrupted"
        until(lambda: not started.processes(), 10, "its processes have ended")
    assert json.loads((half / "run.json").read_text())["status"] == "interrupted"
    assert len(ExperimentDir.open(out).document["cells"]) == 1
    continued(scenario_file, out, tmp_path / "again")
    assert told_of_cells(ExperimentDir.open(out)) == told_of_cells(undisturbed)
