"""Rows decoded from pages are the rows that SQLite reads, whatever lies in the table."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servebench.profile.readers.nsys import columns
from servebench.profile.readers.nsys.cells import decode
from servebench.profile.readers.nsys.columns import Block, blocks, through_sql
from servebench.profile.readers.nsys.export import Export, open_export

WIDTHS = (0, 1, 2, 127, 128, 2**15, 2**23 - 1, 2**23, 2**31, 2**47, 2**62)
INTEGERS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([sign * width + off for width in WIDTHS for sign in (1, -1) for off in (-1, 0, 1)]),
)
FOUND = {"a": "INTEGER", "start": "INTEGER", "text": "TEXT", "b": "INTEGER", "end": "INTEGER"}


def export(path: Path, rows: list[tuple[object, ...]], *, page: int = 4096, first: int = 1) -> Path:
    """A file with a table `t` of the columns `FOUND` and its rows, numbered from `first`."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size = {page}")
        for table in ("META_DATA_EXPORT", "StringIds"):
            database.execute(f"CREATE TABLE {table} (id INTEGER, value TEXT)")
        declared = ", ".join(f'"{name}" {kind}' for name, kind in FOUND.items())
        database.execute(f"CREATE TABLE t ({declared})")
        places = ", ".join(f'"{name}"' for name in ("rowid", *FOUND))
        numbered = ((first + number, *row) for number, row in enumerate(rows))
        database.executemany(f"INSERT INTO t ({places}) VALUES (?, ?, ?, ?, ?, ?)", numbered)
    return path


def decoded(opened: Export, table: str, names: Sequence[str]) -> Iterator[Block]:
    """The columns from the pages, all at once, without SQLite's help."""
    pages, known = opened.pages, opened.tables[table]
    data = pages.read(pages.leaves(known.root))
    yield decode(data, pages.size, pages.usable, {known.columns.index(name): name for name in names})


def read(path: Path, *names: str, how: object = blocks) -> list[list[int]]:
    """The columns, read one way or another."""
    with open_export(path) as opened:
        found = list(how(opened, "t", names))  # type: ignore[operator]
    return [np.concatenate([np.empty(0, np.int64), *(block[name] for block in found)]).tolist() for name in names]


@given(
    st.lists(st.tuples(INTEGERS, INTEGERS, st.none(), INTEGERS, INTEGERS), max_size=40), st.sampled_from([512, 65536])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_integers_of_any_width(tmp_path: Path, rows: list[tuple[object, ...]], page: int) -> None:
    path = export(tmp_path / "a.sqlite", rows, page=page)
    found = read(path, "start", "a", "b", "end", how=decoded)
    assert found == [[-1 if row[place] is None else row[place] for row in rows] for place in (1, 0, 3, 4)]


@pytest.mark.parametrize("page", [512, 1024, 4096, 65536])
@pytest.mark.parametrize("first", [1, 100, 20_000, 3_000_000_000, 2**40])
def test_many_rows_in_order_of_their_numbers(page: int, first: int, tmp_path: Path) -> None:
    rows = [(i, i * 1_000_003, None, i % 2, i * i) for i in range(5_000)]
    path = export(tmp_path / "a.sqlite", rows, page=page, first=first)
    expected = [[row[place] for row in rows] for place in (0, 1, 3, 4)]
    assert read(path, "a", "start", "b", "end", how=decoded) == expected
    assert read(path, "a", "start", "b", "end", how=through_sql) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("short", id="a text that its type's one byte describes"),
        pytest.param("x" * 57, id="the longest such"),
        pytest.param("x" * 58, id="the first longer one"),
        pytest.param("x" * 20_000, id="a row longer than a page"),
        pytest.param(2.5, id="a number with a point"),
    ],
)
def test_texts_among_the_columns(text: object, tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [(i, 2 * i, None, 3 * i, 4 * i) for i in range(3_000)]
    for place in (0, 1_500, 2_999):
        rows[place] = (*rows[place][:2], text, *rows[place][3:])
    path = export(tmp_path / "a.sqlite", rows)
    assert read(path, "start", "end") == [[2 * i for i in range(3_000)], [4 * i for i in range(3_000)]]


def test_only_the_blocks_that_need_it_are_read_by_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[object, ...]] = [(i, 2 * i, None, 3 * i, 4 * i) for i in range(9_000)]
    rows[4_000] = (4_000, 8_000, "x" * 500, 12_000, 16_000)
    path = export(tmp_path / "a.sqlite", rows)
    asked: list[tuple[int, int]] = []

    def noted(opened: Export, table: str, names: list[str], among: tuple[int, int]) -> Iterator[Block]:
        asked.append(among)
        return through_sql(opened, table, names, among)

    monkeypatch.setattr(columns, "BLOCK_BYTES", 8 * 4096)
    monkeypatch.setattr(columns, "through_sql", noted)
    assert read(path, "start", "end") == [[2 * i for i in range(9_000)], [4 * i for i in range(9_000)]]
    ((first, last),) = asked
    assert first <= 4_001 <= last
    assert last - first < 4_500


def test_no_integer_where_one_is_wanted_is_sqlite_s_matter(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [(i, i, None, i, i) for i in range(100)]
    rows[50] = (2.5, 50, None, 50, 50)
    path = export(tmp_path / "a.sqlite", rows)
    assert read(path, "start", "a")[1][49:52] == [49, 2, 51]


def test_rows_that_were_deleted_are_gone(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", [(i, i, None, i, i) for i in range(5_000)])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM t WHERE start % 3 = 0 OR start BETWEEN 1000 AND 3000")
    kept = [i for i in range(5_000) if i % 3 and not 1_000 <= i <= 3_000]
    assert read(path, "start", how=decoded) == [kept]


def test_a_column_that_was_added_later(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", [(i, i, None, i, i) for i in range(100)])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE t ADD COLUMN late INTEGER DEFAULT 7")
    assert read(path, "start", "late") == [list(range(100)), [7] * 100]


def test_a_column_that_is_the_row_s_number(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE META_DATA_EXPORT (name, value)")
        database.execute("CREATE TABLE StringIds (id, value)")
        database.execute("CREATE TABLE t (start INTEGER PRIMARY KEY, end INTEGER)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(i * 5, i) for i in range(100)])
    assert read(path, "start", "end") == [[i * 5 for i in range(100)], list(range(100))]


def test_a_table_whose_rows_have_no_numbers(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [(i, i, None, i, i) for i in range(100)]
    path = export(tmp_path / "a.sqlite", rows)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE u (start INTEGER, a INTEGER, PRIMARY KEY (start, a)) WITHOUT ROWID")
        database.execute("INSERT INTO u SELECT start, a FROM t")
        database.execute("DROP TABLE t")
        database.execute("ALTER TABLE u RENAME TO t")
    assert read(path, "start", "a") == [list(range(100))] * 2


def test_a_column_that_a_generation_lacks_is_absent_throughout(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", [(i, i, None, i, i) for i in range(10)])
    with open_export(path) as opened:
        (block,) = blocks(opened, "t", ("start",), ("newer",))
        assert block["newer"].tolist() == [-1] * 10
        assert list(blocks(opened, "no such table", ("start",))) == []
