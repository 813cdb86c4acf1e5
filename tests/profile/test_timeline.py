"""Columns of a capture: how they are ordered, stored and read back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_timelines import Drawn
from servebench.profile.timeline import COLUMNS, COPY_KINDS, DEVICE_KINDS, NONE, Alignment, Kind, Timeline

EPOCH = 1_790_000_000_000_000_000
ALIGNMENT = Alignment("the session's start as the file states it", 17, None, "no mark was found")


def sample() -> Timeline:
    drawn = Drawn().kernel("späte", 500, 900, (100, 200)).kernel("frühe", 300, 400, (50, 90), device=1)
    drawn.row(Kind.COPY_HTOD, "copy", 950, 990, bytes=1 << 40).call("cudaDeviceSynchronize", 200, 1000, Kind.SYNC)
    return drawn.timeline(
        span=(0, 2000),
        alignment=ALIGNMENT,
        devices={0: "GPU", 1: "GPU"},
        facts={"version": "2024.5", "peak_memory_bytes": 1 << 33},
        notes=("12 events were dropped",),
    )


def assert_equal(a: Timeline, b: Timeline) -> None:
    for key, kind in COLUMNS.items():
        assert getattr(b, key).dtype == kind
        assert getattr(a, key).tolist() == getattr(b, key).tolist(), key
    others = ("source", "names", "span", "alignment", "devices", "facts", "notes")
    assert [getattr(a, key) for key in others] == [getattr(b, key) for key in others]


def test_rows_come_in_order_of_their_starts_with_all_that_belongs_to_them() -> None:
    found = sample()
    assert found.start.tolist() == [50, 100, 200, 300, 500, 950]
    assert [found.names[at] for at in found.name[3:]] == ["frühe", "späte", "copy"]
    assert found.device.tolist() == [NONE, NONE, NONE, 1, 0, 0]
    assert found.bytes.tolist() == [NONE] * 5 + [1 << 40]
    assert found.correlation.tolist() == [2, 1, NONE, 2, 1, NONE]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 15)), max_size=30))
def test_any_order_gives_the_same_rows(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 3)
    columns = {"start": table[:, 0], "end": table[:, 0] + table[:, 1], "kind": table[:, 2]}
    found = Timeline.of_columns("torch", (), columns)
    assert (np.diff(found.start) >= 0).all()
    key = sorted(rows, key=lambda row: row[0])  # stable, as the timeline is
    assert list(zip(found.start, found.end - found.start, found.kind, strict=True)) == key
    assert len(found) == len(rows)
    assert found.span == ((min(s for s, _, _ in rows), max(s + n for s, n, _ in rows)) if rows else (0, 0))
    assert found.on_device.tolist() == [k in DEVICE_KINDS for _, _, k in key]
    assert found.of_kind(*COPY_KINDS).tolist() == [k in COPY_KINDS for _, _, k in key]
    assert (found.stream == NONE).all()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"start": [1], "end": [0]}, "a row ends before it starts"),
        ({"start": [1], "end": [2, 3]}, "columns of unequal length"),
        ({"start": [1], "end": [2], "colour": [3], "weight": [4]}, "unknown columns: colour, weight"),
    ],
)
def test_columns_that_cannot_be(columns: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Timeline.of_columns("torch", (), {key: np.array(values) for key, values in columns.items()})


def test_taking_rows_keeps_the_span() -> None:
    found = sample().take(sample().on_device)
    assert (found.start.tolist(), found.span) == ([300, 500, 950], (0, 2000))
    assert sample().take(slice(0, 0)).span == (0, 2000)


def test_shifting_moves_every_instant() -> None:
    moved = sample().shifted(EPOCH, Alignment("marks", EPOCH, 900))
    assert moved.start.tolist() == [EPOCH + t for t in sample().start.tolist()]
    assert moved.end.tolist() == [EPOCH + t for t in sample().end.tolist()]
    assert moved.span == (EPOCH, EPOCH + 2000)
    assert moved.alignment == Alignment("marks", EPOCH, 900)


@pytest.mark.parametrize(
    "made", [sample(), Timeline.of_columns("xprof", (), {"start": np.array([]), "end": np.array([])})]
)
def test_what_is_written_is_read_back(made: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "timeline.parquet"
    made.write(path)
    assert_equal(made, Timeline.read(path))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_the_largest_numbers_are_read_back(tmp_path: Path) -> None:
    extreme = {key: np.array([np.iinfo(kind).max], np.int64) for key, kind in COLUMNS.items()}
    made = Timeline.of_columns("nsys", ("x",), extreme | {"kind": np.array([15])})
    made.write(tmp_path / "t")
    assert_equal(made, Timeline.read(tmp_path / "t"))


def test_a_cut_file_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "timeline.parquet"
    sample().write(path)
    for size in (0, 100, path.stat().st_size - 5):
        damaged = tmp_path / f"cut-{size}"
        damaged.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError, match=f"{damaged} holds no timeline: "):
            Timeline.read(damaged)


def test_a_foreign_parquet_file_is_said_to_be_none(tmp_path: Path) -> None:
    pq.write_table(pa.table({"start": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(ValueError, match="holds no timeline"):
        Timeline.read(tmp_path / "foreign.parquet")


def test_a_missing_file_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no timeline"):
        Timeline.read(tmp_path / "absent.parquet")


def rewritten(path: Path, change: dict[str, Any], drop: str | None = None) -> Path:
    """The file with another head, and perhaps without a column."""
    table = pq.read_table(path)
    head = json.loads(table.schema.metadata[b"servebench.timeline"]) | change
    table = table if drop is None else table.drop_columns([drop])
    pq.write_table(table.replace_schema_metadata({"servebench.timeline": json.dumps(head)}), path)
    return path


def test_a_later_version_is_said_to_be_one(tmp_path: Path) -> None:
    sample().write(tmp_path / "t")
    with pytest.raises(ValueError, match="written by a later version of servebench"):
        Timeline.read(rewritten(tmp_path / "t", {"schema": 2}, drop="graph"))


def test_a_file_without_a_column_is_said_to_be_none(tmp_path: Path) -> None:
    sample().write(tmp_path / "t")
    with pytest.raises(ValueError, match="holds no timeline"):
        Timeline.read(rewritten(tmp_path / "t", {}, drop="graph"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "timeline.parquet"
    sample().write(path)
    before = path.read_bytes()

    def full(table: pa.Table, where: Path, **more: object) -> None:
        where.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        replace(sample(), source="torch").write(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
