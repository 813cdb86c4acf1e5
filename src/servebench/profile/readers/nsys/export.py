"""An SQLite export, opened: which tables and columns this generation of the schema has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servebench.profile.readers.nsys.pages import Pages
from servebench.profile.timeline import NONE

METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # its name in later generations, and in earlier ones
REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of an export.

    Attributes:
        columns: their names, in order.
        root: page at which its tree begins.
        plain: whether its rows lie in the file as rows of integers do: no column stands for the row's number, and the
            rows have numbers.
    """

    columns: tuple[str, ...]
    root: int
    plain: bool


@dataclass(frozen=True, slots=True)
class Export:
    """An export.

    Attributes:
        path: of the file.
        database: open for reading; text that is not UTF-8 has replacement characters.
        pages: of the same file.
        tables: by name.
    """

    path: Path
    database: sqlite3.Connection
    pages: Pages
    tables: dict[str, Table]

    def has(self, table: str, column: str | None = None) -> bool:
        """Whether there is such a table, with this column."""
        return table in self.tables and (column is None or column in self.tables[table].columns)

    def require(self, table: str, *columns: str) -> None:
        """Raise ValueError with what a table lacks, if anything."""
        if missing := [column for column in columns if not self.has(table, column)]:
            plural = "s" * (len(missing) > 1)
            raise ValueError(f"{self.path}: its table {table} lacks the column{plural} {', '.join(missing)}")

    def integer(self, table: str, column: str) -> str:
        """SQL for an integer of a table, NONE where there is none, or no such column."""
        return f"ifnull(CAST({quote(column)} AS INTEGER), {NONE})" if self.has(table, column) else f"{NONE}"

    def numbers(self, table: str, *columns: str) -> list[tuple[int, ...]]:
        """Rows of a small table of integers, NONE for those that are not there."""
        listed = ", ".join(self.integer(table, column) for column in columns)
        return self.database.execute(f"SELECT {listed} FROM {quote(table)}").fetchall() if self.has(table) else []

    def select(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a small table; None for a column that this generation lacks, no rows where it lacks the table."""
        if not self.has(table):
            return iter(())
        listed = ", ".join(quote(column) if self.has(table, column) else "NULL" for column in columns)
        return self.database.execute(f"SELECT {listed} FROM {quote(table)}")


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """Open an export, read only; nothing is written beside it either.

    Raises:
        ValueError: there is no such file, it is something else, or it is damaged, however late that turns out.
    """
    if path.suffix in REPORTS:
        raise ValueError(f"{path} is a report of nsys: export it first: nsys export --type sqlite {path.name}")
    try:
        pages = Pages(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    with pages, closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        if pages.count < pages.stated:
            raise ValueError(f"{path} is truncated: it has {pages.count} of its {pages.stated} pages")
        try:
            yield Export(path, database, pages, tables_of(path, database))
        except (sqlite3.DatabaseError, UnicodeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None


def tables_of(path: Path, database: sqlite3.Connection) -> dict[str, Table]:
    """The tables. Raises ValueError if they are not those of Nsight Systems."""
    database.text_factory = lambda raw: raw.decode(errors="replace")  # the environment in it need not be UTF-8
    found = database.execute("SELECT name, rootpage, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    tables = {name: table_of(database, name, root, sql) for name, root, sql in found}
    missing = [] if any(name in tables for name in METADATA) else [METADATA[0]]
    missing += [] if "StringIds" in tables else ["StringIds"]
    if missing:
        lack = " and no ".join(missing)
        raise ValueError(f"{path} is an SQLite file, but no export of Nsight Systems: it has no {lack}")
    return tables


def table_of(database: sqlite3.Connection, name: str, root: int, sql: str | None) -> Table:
    """One table."""
    columns = database.execute(f"PRAGMA table_xinfo({quote(name)})").fetchall()
    odd = any(key or hidden for *_, key, hidden in columns) or "WITHOUT ROWID" in (sql or "").upper()
    return Table(tuple(column[1] for column in columns), root, root > 0 and not odd)


def quote(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
