"""The journal: nothing that was flushed is lost, wherever its files are cut."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servebench.errors import UsageError
from servebench.record import journal as journal_module
from servebench.record.columns import CHUNKS, REQUESTS, TELEMETRY, Outcome, RequestRecord, TokenSource
from servebench.record.journal import JournalWriter, read_journals
from servebench.record.stream import JournalError, read_batches

BASE = 1_700_000_000_000_000_000


def record(index: int, chunks: int, **fields: object) -> RequestRecord:
    return msgspec.structs.replace(
        RequestRecord(
            index=index,
            worker=0,
            class_id=0,
            scheduled_ns=BASE + index,
            outcome=Outcome.OK,
            input_planned=7,
            output_planned=chunks,
            chunks=chunks,
            token_source=TokenSource.EVENTS,
        ),
        **fields,
    )


def add(writer: JournalWriter, index: int, chunks: int, **fields: object) -> None:
    steps = np.arange(chunks)
    writer.add(
        record(index, chunks, **fields),
        (BASE + index * 1000 + steps).astype(np.int64),
        (steps % 3 + 1).astype(np.int32),
        (steps % 2).astype(np.int8),
        (steps + index).astype(np.int32),
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0)
    add(writer, 5, 3, error="boom", cached_tokens=2, kernel_stamps=True, retry_after_s=1.5)
    add(writer, 2, 2)
    writer.add(record(9, 0, outcome=Outcome.CONNECT_ERROR, token_source=None))
    writer.sample("client", "worker-0", "rss_bytes", 20, 1.0)
    writer.sample("client", "worker-0", "fds", 10, None)
    writer.close()
    requests, chunks, telemetry = read_journals(tmp_path)
    assert (requests.schema, chunks.schema, telemetry.schema) == (REQUESTS, CHUNKS, TELEMETRY)
    assert requests["index"].to_pylist() == [2, 5, 9]
    assert requests.to_pylist()[1] == msgspec.structs.asdict(
        record(5, 3, error="boom", cached_tokens=2, kernel_stamps=True, retry_after_s=1.5)
    )
    assert chunks["request"].to_pylist() == [2, 2, 5, 5, 5]
    assert chunks["arrival_ns"].to_pylist() == [BASE + 2000, BASE + 2001, BASE + 5000, BASE + 5001, BASE + 5002]
    assert chunks["tokens"].to_pylist() == [1, 2, 1, 2, 3]
    assert chunks["channel"].to_pylist() == [0, 1, 0, 1, 0]
    assert chunks["bytes"].to_pylist() == [2, 3, 5, 6, 7]
    assert telemetry["t_ns"].to_pylist() == [10, 20]
    assert telemetry["value"].to_pylist() == [None, 1.0]


def test_absent_values_are_null(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0)
    writer.add(record(0, 0))
    writer.close()
    row = read_journals(tmp_path)[0].to_pylist()[0]
    optional = [field.name for field in REQUESTS if field.nullable and field.name != "token_source"]
    assert [row[name] for name in optional] == [None] * len(optional)


def test_several_writers_are_merged_in_order_of_request(tmp_path: Path) -> None:
    writers = [JournalWriter(tmp_path, 0), JournalWriter(tmp_path, 1), JournalWriter(tmp_path, "parent")]
    for index in range(20):
        add(writers[index % 2], 19 - index, index % 4)
        writers[index % 2].flush()
    writers[2].sample("server", "", "queue", 1, 2.0)
    for writer in writers:
        writer.close()
    requests, chunks, telemetry = read_journals(tmp_path)
    assert requests["index"].to_pylist() == list(range(20))
    owners = chunks["request"].to_numpy()
    assert (np.diff(owners) >= 0).all()
    assert len(owners) == sum(index % 4 for index in range(20))
    assert telemetry.num_rows == 1


def test_chunks_that_arrive_out_of_order_are_sorted_within_their_request(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0)
    arrival = np.array([3, 1, 2], np.int64)
    writer.add(record(0, 3), arrival, np.array([30, 10, 20], np.int32), np.zeros(3, np.int8), np.zeros(3, np.int32))
    add(writer, 1, 2)
    writer.close()
    chunks = read_journals(tmp_path)[1]
    assert chunks["tokens"].to_pylist() == [10, 20, 30, 1, 2]


@pytest.mark.parametrize("stated", [0, 2, 4])
def test_a_count_that_disagrees_with_the_arrays_is_refused(tmp_path: Path, stated: int) -> None:
    writer = JournalWriter(tmp_path, 0)
    with pytest.raises(ValueError, match="chunks stated, 3 arrivals"):
        writer.add(
            record(0, stated), np.zeros(3, np.int64), np.ones(3, np.int32), np.zeros(3, np.int8), np.ones(3, np.int32)
        )
    writer.close()
    assert read_journals(tmp_path)[0].num_rows == 0


def test_text_that_utf8_cannot_carry_does_not_stop_the_journal(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0)
    add(writer, 0, 1, error="bad \ud800 byte")
    writer.close()
    assert read_journals(tmp_path)[0]["error"].to_pylist() == ["bad ? byte"]


def test_rows_beyond_the_bound_are_on_disk_without_a_flush(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0)
    for index in range(journal_module.FLUSH_REQUESTS):
        add(writer, index, 1)
    assert read_journals(tmp_path)[0].num_rows == journal_module.FLUSH_REQUESTS
    writer.close()


def test_a_second_that_has_passed_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr(journal_module.time, "monotonic_ns", lambda: now)
    writer = JournalWriter(tmp_path, 0)
    add(writer, 0, 1)
    assert read_journals(tmp_path)[0].num_rows == 0
    now = journal_module.FLUSH_AFTER_NS
    add(writer, 1, 1)
    assert read_journals(tmp_path)[0].num_rows == 2
    writer.close()


def test_a_directory_without_journals_is_empty_and_typed(tmp_path: Path) -> None:
    requests, chunks, telemetry = read_journals(tmp_path)
    assert (requests.schema, chunks.schema, telemetry.schema) == (REQUESTS, CHUNKS, TELEMETRY)
    assert requests.num_rows == chunks.num_rows == telemetry.num_rows == 0


def test_an_existing_journal_is_never_written_over(tmp_path: Path) -> None:
    JournalWriter(tmp_path, 0).close()
    with pytest.raises(JournalError, match="cannot create the journal worker-0"):
        JournalWriter(tmp_path, 0)


def test_a_refusing_disk_is_one_clear_error_and_spoils_nothing_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, 0)
    add(writer, 0, 2)
    writer.flush()
    add(writer, 1, 2)

    def full(_fd: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("servebench.record.stream.os.write", full)
    with pytest.raises(JournalError, match="No space left on device"):
        writer.flush()
    monkeypatch.undo()
    with pytest.raises(JournalError, match="takes no more"):
        writer.close()
    assert read_journals(tmp_path)[0]["index"].to_pylist() == [0]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.write
    monkeypatch.setattr("servebench.record.stream.os.write", lambda fd, data: real(fd, data[:100]))
    writer = JournalWriter(tmp_path, 0)
    add(writer, 0, 50)
    writer.close()
    assert read_journals(tmp_path)[1].num_rows == 50


def test_another_schema_is_refused(tmp_path: Path) -> None:
    other = pa.schema([pa.field("x", pa.int64())])
    with pa.OSFile(str(tmp_path / "worker-0.requests.arrows"), "wb") as sink, pa.ipc.new_stream(sink, other):
        pass
    with pytest.raises(UsageError, match="other columns"):
        read_journals(tmp_path)


@pytest.fixture(scope="module")
def flushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A chunk file of three batches (of 3, 5 and 7 rows), and its size after the header and after each batch."""
    directory = tmp_path_factory.mktemp("flushed")
    writer = JournalWriter(directory, 0)
    file = directory / "worker-0.chunks.arrows"
    sizes = [file.stat().st_size]
    for index, chunks in enumerate((3, 5, 7)):
        add(writer, index, chunks)
        writer.flush()
        sizes.append(file.stat().st_size)
    writer.close()
    return file, sizes


def test_a_file_cut_at_any_byte_gives_its_whole_batches(flushed: tuple[Path, list[int]], tmp_path: Path) -> None:
    file, sizes = flushed
    content = file.read_bytes()
    cut = tmp_path / "cut.arrows"
    for length in range(len(content) + 1):
        cut.write_bytes(content[:length])
        whole = sum(length >= size for size in sizes[1:])
        rows = [batch.num_rows for batch in read_batches(cut, CHUNKS)]
        assert rows == [3, 5, 7][:whole], f"cut at {length} of {len(content)}"


@given(chunk_cut=st.floats(0, 1), request_cut=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_both_files_cut_anywhere_leave_whole_requests_only(
    tmp_path_factory: pytest.TempPathFactory, chunk_cut: float, request_cut: float
) -> None:
    directory = tmp_path_factory.mktemp("pair")
    writer = JournalWriter(directory, 0)
    for index in range(6):
        add(writer, index, 2 * index)
        if index % 2:
            writer.flush()
    writer.close()
    for name, share in (("chunks", chunk_cut), ("requests", request_cut)):
        file = directory / f"worker-0.{name}.arrows"
        file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    requests, chunks, _ = read_journals(directory)
    counts = np.bincount(chunks["request"].to_numpy(), minlength=6)
    assert counts[requests["index"].to_numpy()].tolist() == requests["chunks"].to_pylist()
    assert counts.sum() == sum(requests["chunks"].to_pylist())


def test_a_tail_of_zeros_as_after_a_power_cut_ends_the_stream(flushed: tuple[Path, list[int]], tmp_path: Path) -> None:
    file, sizes = flushed
    cut = tmp_path / "zeros.arrows"
    cut.write_bytes(file.read_bytes()[: sizes[2]] + bytes(4096))
    assert [batch.num_rows for batch in read_batches(cut, CHUNKS)] == [3, 5]
