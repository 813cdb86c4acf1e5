"""Rows of a timeline to be."""

import numpy as np

from servebench.profile.readers.nsys.rows import FEWEST, Rows
from servebench.profile.timeline import COLUMNS, NONE, Kind


def test_columns_grow_keep_their_types_and_are_sorted_together() -> None:
    rows = Rows()
    last = 3 * FEWEST
    for first in range(0, last, 1_000):  # later blocks are of earlier rows
        at = np.arange(last - first, last - first + 1_000)
        rows.add("k", at, at + 1, kind=Kind.COMPUTE, name=(at % 7).astype(np.int32), stream=at + 2**32)
    columns = rows.columns(10)
    assert {key: column.dtype for key, column in columns.items()} == {key: COLUMNS[key] for key in columns}
    assert columns.keys() == {"start", "end", "kind", "name", "stream"}
    start = columns["start"] - 10
    assert (np.diff(start) >= 0).all()
    assert start.size == rows.size == -(-last // 1_000) * 1_000
    assert (columns["end"] == columns["start"] + 1).all()
    assert (columns["name"] == start % 7).all()
    assert (columns["stream"] == start).all()  # what is wider than the column wraps


def test_what_a_block_leaves_out_is_none() -> None:
    rows = Rows()
    one = np.array([5])
    rows.add("a", one, one, kind=Kind.API, thread=3)
    rows.add("b", one + 1, one + 1, kind=Kind.FILL, bytes=one)
    columns = rows.columns(0)
    assert columns["thread"].tolist() == [3, NONE]
    assert columns["bytes"].tolist() == [NONE, 5]
