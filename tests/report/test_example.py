"""The committed example: its report can be computed again, offline, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

from servebench.experiment import judge
from servebench.experiment.directory import ExperimentDir
from servebench.record.rundir import RunDir
from servebench.report import write_reports
from servebench.report.experiments import write_files

RESULTS = Path(__file__).parents[2] / "results"
EXAMPLE, COMPARISON = RESULTS / "example-chat", RESULTS / "example-ab"


def test_the_example_is_what_its_data_say(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(EXAMPLE, copy)
    (copy / "summary.json").unlink()
    summary = write_reports(RunDir.open(copy))
    assert (copy / "summary.json").read_bytes() == (EXAMPLE / "summary.json").read_bytes()
    assert summary["verdict"]["status"] == "VALID"
    assert summary["random_weights"] is True


def test_the_example_of_an_experiment_is_what_its_runs_say(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(COMPARISON, copy)
    (copy / "record.md").unlink()
    directory = ExperimentDir.open(copy)
    result = judge(directory)
    directory.finish(result)
    write_files(directory.document, copy)
    for name in ("experiment.json", "record.md"):
        assert (copy / name).read_bytes() == (COMPARISON / name).read_bytes()
    effects = {each["figure"]: each["verdict"] for each in result["comparisons"][0]["effects"]}
    assert (effects["ttft.p95"], effects["itl.p99"]) == ("better", "worse")
    assert result["correctness"]["verdict"] == "same"
