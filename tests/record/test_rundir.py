"""The run directory: begun, interrupted, finalised, opened again."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from servebench.errors import UsageError
from servebench.record import merge
from servebench.record.columns import CHUNKS, REQUESTS, TELEMETRY, Outcome, RequestRecord
from servebench.record.journal import JournalWriter
from servebench.record.rundir import RunDir


def fill(run: RunDir, requests: int = 40, workers: int = 2, close: bool = True) -> None:
    """Journal `requests` requests with 0, 1, 2, ... 6, 0, 1, ... chunks, in falling order of index."""
    writers = [JournalWriter(run.journal_dir, worker) for worker in range(workers)]
    for index in reversed(range(requests)):
        chunks = index % 7
        writers[index % workers].add(
            RequestRecord(
                index=index,
                worker=index % workers,
                class_id=0,
                scheduled_ns=index,
                outcome=Outcome.OK,
                input_planned=1,
                output_planned=chunks,
                chunks=chunks,
            ),
            np.arange(chunks, dtype=np.int64) + index * 100,
            np.full(chunks, index, np.int32),
            np.zeros(chunks, np.int8),
            np.full(chunks, 9, np.int32),
        )
        if index % 5 == 0:
            writers[index % workers].flush()
    for worker, writer in enumerate(writers):
        writer.sample("client", f"worker-{worker}", "fds", 100 - worker, 7.0)
        writer.close() if close else writer.flush()


def test_the_default_name_carries_the_time_and_never_collides(tmp_path: Path) -> None:
    when = time.mktime((2026, 11, 30, 10, 15, 0, 0, 0, -1))
    names = [RunDir.create_under(tmp_path / "results", "chat", when).path.name for _ in range(3)]
    assert names == ["chat-20261130-101500", "chat-20261130-101500-2", "chat-20261130-101500-3"]


def test_a_run_is_readable_from_its_first_instant(tmp_path: Path) -> None:
    before = time.time_ns()
    RunDir.create(tmp_path / "run")
    run = RunDir.open(tmp_path / "run")
    assert run.manifest["status"] == "running"
    assert before <= run.manifest["created_ns"] <= time.time_ns()
    assert run.incomplete
    assert run.requests().num_rows == 0


def test_out_is_refused_where_a_run_lies(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    with pytest.raises(UsageError, match="already holds a run"):
        RunDir.create(tmp_path)
    run.manifest["name"] = "kept"
    run.save_manifest()
    assert RunDir.create(tmp_path, exist_ok=True).manifest["name"] == "kept"


def test_out_may_be_a_directory_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert RunDir.create(tmp_path).path == tmp_path
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_out_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the run directory"):
        RunDir.create(tmp_path / "file" / "run")
    with pytest.raises(UsageError, match="cannot make a run directory in"):
        RunDir.create_under(tmp_path / "file", "chat")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no run directory"),
        ("{", "is damaged"),
        ("[]", "has schema None"),
        ('{"schema": 99}', "has schema 99; this version of servebench reads schema 1"),
    ],
)
def test_what_is_no_run_is_a_usage_error(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        RunDir.open(tmp_path)


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="no run directory"):
        RunDir.open(tmp_path / "run")


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    old = (tmp_path / "run.json").read_text()
    run.manifest["warnings"] = [float("nan")]
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.save_manifest()
    assert (tmp_path / "run.json").read_text() == old


def test_journals_and_parquet_say_the_same(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    fill(run)
    journalled = run.requests(), run.chunks(), run.telemetry()
    run.finalise()
    merged = run.requests(), run.chunks(), run.telemetry()
    assert journalled == merged
    assert [table.schema.remove_metadata() for table in merged] == [REQUESTS, CHUNKS, TELEMETRY]
    assert merged[0]["index"].to_pylist() == list(range(40))
    assert merged[1]["request"].to_pylist() == [index for index in range(40) for _ in range(index % 7)]
    assert merged[2]["t_ns"].to_pylist() == [99, 100]


def test_finalised_means_no_journal_and_the_status_decides(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    fill(run)
    run.finalise()
    assert not run.journal_dir.exists()
    assert run.incomplete
    run.manifest["status"] = "complete"
    run.save_manifest()
    assert not RunDir.open(tmp_path).incomplete


def test_a_complete_status_with_journals_left_is_incomplete(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    fill(run)
    run.manifest["status"] = "complete"
    assert run.incomplete


@pytest.mark.parametrize("killed_at", ["telemetry", "chunks", "requests"])
def test_finalise_can_be_repeated_wherever_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    run = RunDir.create(tmp_path)
    fill(run)
    expected = run.chunks()
    rename = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target.name == f"{killed_at}.parquet":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        run.finalise()
    monkeypatch.undo()
    assert run.chunks() == expected
    run.finalise()
    assert run.chunks() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "chunks.parquet",
        "requests.parquet",
        "run.json",
        "telemetry.parquet",
    ]


def test_finalise_killed_while_it_removes_the_journals_loses_nothing(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    fill(run)
    copies = {path: path.read_bytes() for path in run.journal_dir.iterdir()}
    run.finalise()
    expected = run.requests()
    run.journal_dir.mkdir()
    for path, content in list(copies.items())[::2]:
        path.write_bytes(content)
    assert run.requests() == expected
    run.finalise()
    assert run.requests() == expected
    assert not run.journal_dir.exists()


def test_chunks_are_written_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    fill(run, requests=300)
    index = merge.ChunkIndex.of(run.journal_dir)
    batches = list(index.batches(np.arange(300), rows=50))
    assert max(batch.num_rows for batch in batches) <= 50
    assert len(batches) > 10
    assert sum(batch.num_rows for batch in batches) == run.chunks().num_rows


def test_a_request_larger_than_the_bound_is_still_written(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    fill(run, requests=14)
    batches = list(merge.ChunkIndex.of(run.journal_dir).batches(np.arange(14), rows=3))
    assert [batch.num_rows for batch in batches if batch.num_rows > 3] == [4, 5, 6, 4, 5, 6]


def test_integers_are_delta_coded_and_zstd_compressed(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    fill(run)
    run.finalise()
    group = pq.ParquetFile(tmp_path / "chunks.parquet").metadata.row_group(0)
    for number in range(group.num_columns):
        column = group.column(number)
        assert "DELTA_BINARY_PACKED" in column.encodings
        assert column.compression == "ZSTD"


def test_run_json_is_plain_json_with_a_newline(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    run.manifest["name"] = "größe"
    run.save_manifest()
    text = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert json.loads(text) == run.manifest
    assert not re.search(r"\\u", text)


def test_a_folder_that_looks_like_a_partition_adds_no_column(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "rate=8" / "run")
    fill(run)
    run.finalise()
    assert run.requests().column_names == REQUESTS.names


def test_a_table_that_is_missing_or_damaged_is_a_usage_error(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    fill(run)
    run.finalise()
    file = tmp_path / "chunks.parquet"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(UsageError, match=r"chunks\.parquet is damaged"):
        run.chunks()
    file.unlink()
    with pytest.raises(UsageError, match=r"chunks\.parquet is missing"):
        run.chunks()
