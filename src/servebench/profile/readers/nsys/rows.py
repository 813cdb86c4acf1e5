"""Rows of a timeline to be, in columns that grow."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.nsys.pages import Ints
from servebench.profile.timeline import COLUMNS, NONE

Array = NDArray[Any]
DAY_NS = 86_400 * 10**9  # nothing lasts longer, or begins so long before the capture; a clock that overflows does
LATEST_NS = 366 * DAY_NS  # after the session's start; the instants of a clock that overflows are further off
FEWEST = 1 << 16


class Rows:
    """Rows in any order. Columns are kept whole: small pieces, once freed, would not go back to the system.

    Attributes:
        size: how many there are.
        first, last: earliest and latest instant so far; None without any.
        left_out: how many were not taken because their instants are absurd, by what they are.
    """

    def __init__(self) -> None:
        self.size = 0
        self.first: int | None = None
        self.last: int | None = None
        self.left_out: Counter[str] = Counter()
        self._columns = {key: np.empty(FEWEST, kind) for key, kind in COLUMNS.items()}
        self._given = {"start", "end"}

    def add(self, what: str, start: Ints, end: Ints, **columns: Array | int) -> None:
        """Take rows, whose columns are arrays, or one value for all; `NONE` where left out.

        Args:
            what: they are, in the plural, for a message about those whose instants are absurd.
        """
        length = end - start
        keep = (length >= 0) & (length < DAY_NS) & (start > -DAY_NS) & (start < LATEST_NS)
        if not keep.all():
            self.left_out[what] += int(keep.size - np.count_nonzero(keep))
            columns = {key: value[keep] if isinstance(value, np.ndarray) else value for key, value in columns.items()}
            start, end = start[keep], end[keep]
        if start.size:
            self._stretch(int(start.min()), int(end.max()))
            self._append(start.size, columns | {"start": start, "end": end})

    def columns(self, offset_ns: int) -> dict[str, Array]:
        """The columns that anything was put into, sorted by start, instants moved by `offset_ns`. Ends the rows."""
        columns = {key: self._columns.pop(key)[: self.size] for key in COLUMNS if key in self._given}
        self._columns.clear()
        if bool((columns["start"][1:] < columns["start"][:-1]).any()):
            order = np.argsort(columns["start"], kind="stable")
            for key in columns:
                columns[key] = columns[key][order]
        for key in ("start", "end"):
            columns[key] += offset_ns
        return columns

    def notes(self) -> list[str]:
        """What was left out, as sentences."""
        return [
            f"{number} {what} left out: their instants are absurd" for what, number in self.left_out.items() if number
        ]

    def _stretch(self, first: int, last: int) -> None:
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)

    def _append(self, number: int, columns: dict[str, Array | int]) -> None:
        self._given |= columns.keys()
        size = self.size + number
        for key, column in self._columns.items():
            if column.size < size:
                self._columns[key] = grown(column, self.size, max(size, 2 * column.size))
            # what is wider, such as an unsigned stream number of -1, wraps
            self._columns[key][self.size : size] = columns.get(key, NONE)
        self.size = size


def grown(column: Array, used: int, size: int) -> Array:
    """A longer column; memory beyond what is used is not the process's before something is put there."""
    longer = np.empty(size, column.dtype)
    longer[:used] = column[:used]
    return longer
