"""Columns of integers out of a table, some hundred thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from servebench.profile.readers.nsys.cells import UnusualRowsError, decode, first_and_last
from servebench.profile.readers.nsys.export import Export, quote
from servebench.profile.readers.nsys.pages import DamageError, Ints
from servebench.profile.timeline import NONE

Block = dict[str, Ints]
BLOCK_ROWS = 1 << 18
BLOCK_BYTES = 8 << 20


def blocks(export: Export, table: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Iterator[Block]:
    """Yield the columns of a table, block by block; nothing where there is no such table.

    Args:
        required: columns that must be there.
        optional: columns that some generations lack: NONE throughout then.

    Yields:
        int64 arrays of equal length, not empty, by column; NONE for NULL.

    Raises:
        ValueError: a required column is missing, or the file is damaged.
    """
    if not export.has(table):
        return
    export.require(table, *required)
    absent = [name for name in optional if not export.has(table, name)]
    present = [name for name in required + optional if name not in absent]
    read = through_pages if export.tables[table].plain else through_sql
    for block in read(export, table, present):
        if size := block[present[0]].size:
            yield block | dict.fromkeys(absent, np.broadcast_to(np.int64(NONE), size))


def through_pages(export: Export, table: str, columns: list[str]) -> Iterator[Block]:
    """Decode the table's pages, all rows of a block at once; SQLite reads those blocks that are not plain integers."""
    pages, listed = export.pages, export.tables[table].columns
    places = {listed.index(name): name for name in columns}
    try:
        leaves = pages.leaves(export.tables[table].root)
        step = max(1, BLOCK_BYTES // pages.size)
        for first in range(0, leaves.size, step):
            data = pages.read(leaves[first : first + step])
            try:
                yield decode(data, pages.size, pages.usable, places)
            except UnusualRowsError:
                yield from through_sql(export, table, columns, first_and_last(data, pages.size))
    except DamageError as error:
        raise ValueError(f"{export.path} is damaged: in table {table}, {error}") from None


def through_sql(
    export: Export, table: str, columns: list[str], among: tuple[int, int] | None = None
) -> Iterator[Block]:
    """Have SQLite read the table, or the rows whose numbers are among these."""
    listed = ", ".join(export.integer(table, name) for name in columns)
    where = f" WHERE rowid BETWEEN {among[0]} AND {among[1]}" if among else ""
    rows = export.database.execute(f"SELECT {listed} FROM {quote(table)}{where}")
    while batch := rows.fetchmany(BLOCK_ROWS):
        flat = np.fromiter(chain.from_iterable(batch), np.int64, len(batch) * len(columns))
        yield dict(zip(columns, flat.reshape(len(batch), -1).T, strict=True))
