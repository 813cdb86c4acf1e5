"""The committed example: its report can be computed again, offline, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

from servebench.record.rundir import RunDir
from servebench.report import write_reports

EXAMPLE = Path(__file__).parents[2] / "results" / "example-chat"


def test_the_example_is_what_its_data_say(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(EXAMPLE, copy)
    (copy / "summary.json").unlink()
    summary = write_reports(RunDir.open(copy))
    assert (copy / "summary.json").read_bytes() == (EXAMPLE / "summary.json").read_bytes()
    assert summary["verdict"]["status"] == "VALID"
    assert summary["random_weights"] is True
