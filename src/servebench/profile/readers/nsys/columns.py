"""Columns of integers out of a table, some hundred thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.nsys.export import Export, quote
from servebench.profile.timeline import NONE

Ints = NDArray[np.int64]
Block = dict[str, Ints]
BLOCK_ROWS = 1 << 18


def blocks(export: Export, table: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Iterator[Block]:
    """Yield the columns of a table, block by block; none where there is no such table.

    Args:
        required: columns that must be there.
        optional: columns that some generations lack: NONE throughout then.

    Yields:
        int64 arrays of equal length by column, NONE for NULL.

    Raises:
        ValueError: a required column is missing.
    """
    if not export.has(table):
        return
    export.require(table, *required)
    wanted = required + optional
    known = export.tables[table]
    listed = ", ".join(f"ifnull({quote(name)}, {NONE})" if name in known else f"{NONE}" for name in wanted)
    rows = export.database.execute(f"SELECT {listed} FROM {quote(table)}")
    while batch := rows.fetchmany(BLOCK_ROWS):
        flat = np.fromiter(chain.from_iterable(batch), np.int64, len(batch) * len(wanted))
        yield dict(zip(wanted, flat.reshape(len(batch), -1).T, strict=True))
