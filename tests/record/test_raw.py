"""Raw bytes with their stamps: all of them, of every worker, up to wherever a file was cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from servebench.record import raw
from servebench.record.raw import RAW, RawWriter, read_raw


def test_pieces_keep_their_request_their_stamp_and_their_bytes(tmp_path: Path) -> None:
    for worker in range(2):
        writer = RawWriter(tmp_path / "raw", worker)
        writer.add(10 + worker, [b"data: 1\n\n", b"\xff\x00"], [100, 200])
        writer.add(20 + worker, [], [])
        writer.close()
    table = read_raw(tmp_path / "raw")
    assert table.schema == RAW
    assert table.to_pydict() == {
        "request": [10, 10, 11, 11],
        "arrival_ns": [100, 200, 100, 200],
        "data": [b"data: 1\n\n", b"\xff\x00"] * 2,
    }


def test_no_raw_folder_is_an_empty_table(tmp_path: Path) -> None:
    assert read_raw(tmp_path / "raw") == RAW.empty_table()


def test_memory_is_bounded_and_a_cut_end_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "FLUSH_BYTES", 1000)
    writer = RawWriter(tmp_path, 0)
    for request in range(5):
        writer.add(request, [b"x" * 600], [request])
    assert read_raw(tmp_path)["request"].to_pylist() == [0, 1, 2, 3]
    file = tmp_path / "worker-0.arrows"
    file.write_bytes(file.read_bytes()[:-1])
    assert read_raw(tmp_path)["request"].to_pylist() == [0, 1]
    writer.close()
