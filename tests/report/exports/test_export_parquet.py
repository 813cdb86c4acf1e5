"""The Parquet folder: the run's own tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

TABLES = ("requests", "chunks", "telemetry", "plan")


def test_the_tables_of_a_finished_run_are_copied_byte_for_byte(example: Any, tmp_path: Path) -> None:
    files = example.write("parquet", tmp_path / "out")
    assert sorted(file.name for file in files) == sorted([*(f"{t}.parquet" for t in TABLES), "summary.json"])
    for name in TABLES:
        copied, own = tmp_path / "out" / f"{name}.parquet", example.run.path / f"{name}.parquet"
        assert copied.read_bytes() == own.read_bytes()
    assert json.loads((tmp_path / "out" / "summary.json").read_text("utf-8")) == example.summary


def test_the_tables_of_a_killed_run_come_from_its_journals(cut: Any, tmp_path: Path) -> None:
    cut.write("parquet", tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "requests.parquet").equals(cut.run.requests())
    chunks = pq.read_table(tmp_path / "out" / "chunks.parquet")
    assert sum(chunks["tokens"].to_pylist()) == cut.summary["tokens"]["output"]
    assert json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))["incomplete"] is True
