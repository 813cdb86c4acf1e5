"""An SQLite export, opened: which tables and columns this generation of the schema has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAGIC = b"SQLite format 3\0"
METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # its name from schema 3.1 or so on, and before
REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


@dataclass(frozen=True)
class Export:
    """An export.

    Attributes:
        path: of the file.
        database: open for reading; text that is not UTF-8 has replacement characters.
        tables: names of the columns of every table, in the order of the file.
        notes: what is found on the way that a reader of the timeline must know.
    """

    path: Path
    database: sqlite3.Connection
    tables: dict[str, list[str]]
    notes: list[str] = field(default_factory=list)

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns."""
        return table in self.tables and all(column in self.tables[table] for column in columns)

    def require(self, table: str, *columns: str) -> None:
        """Raise ValueError with what is missing, if anything is."""
        if missing := [column for column in columns if column not in self.tables[table]]:
            plural = "s" * (len(missing) > 1)
            raise ValueError(f"{self.path}: its table {table} lacks the column{plural} {', '.join(missing)}")

    def select(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, values of the columns; None for a column that this generation lacks. For small tables."""
        known = self.tables.get(table)
        if known is None:
            return iter(())
        listed = ", ".join(quote(column) if column in known else "NULL" for column in columns)
        return self.database.execute(f"SELECT {listed} FROM {quote(table)}")


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """Open an export, read only; nothing is written beside it either.

    Raises:
        ValueError: there is no such file, it is something else, or it is damaged.
    """
    check_file(path)
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    with closing(database):
        try:
            yield Export(path, database, tables_of(path, database))
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} is damaged: {error}") from None


def check_file(path: Path) -> None:
    """Raise ValueError unless the file is a whole SQLite file."""
    if path.suffix in REPORTS:
        raise ValueError(f"{path} is a report of nsys: export it first: nsys export --type sqlite {path.name}")
    try:
        with path.open("rb") as stream:
            head = stream.read(100)
        size = path.stat().st_size
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(head) < 100 or not head.startswith(MAGIC):
        raise ValueError(f"{path} is not an SQLite file")
    stated = page_size(head) * int.from_bytes(head[28:32])
    if size < stated:
        raise ValueError(f"{path} is truncated: {size} bytes of the {stated} that it states")


def page_size(head: bytes) -> int:
    """Bytes of a page, from the first 100 bytes of an SQLite file (which writes 65536 as 1)."""
    size = int.from_bytes(head[16:18])
    return 65_536 if size == 1 else size


def tables_of(path: Path, database: sqlite3.Connection) -> dict[str, list[str]]:
    """Columns of each table. Raises ValueError if they are not those of Nsight Systems."""
    database.text_factory = lambda raw: raw.decode(errors="replace")  # the environment in it need not be UTF-8
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = {name: [row[1] for row in database.execute(f"PRAGMA table_info({quote(name)})")] for name in names}
    missing = [] if any(name in tables for name in METADATA) else [METADATA[0]]
    missing += [] if "StringIds" in tables else ["StringIds"]
    if missing:
        raise ValueError(
            f"{path} is an SQLite file, but no export of Nsight Systems: it has no {' and no '.join(missing)}"
        )
    return tables


def quote(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
