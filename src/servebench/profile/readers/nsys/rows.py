"""Rows of a timeline to be: blocks of columns, put together without ever holding them twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.profile.timeline import COLUMNS, NONE

Ints = NDArray[np.int64]
Array = NDArray[Any]
DAY_NS = 86_400 * 10**9  # no call lasts longer; an overflow of the driver's clock does


class Rows:
    """Rows in any order.

    Attributes:
        first, last: earliest and latest instant of the rows so far; None without any.
        left_out: how many were not taken because their instants are absurd, by what they are.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.left_out: Counter[str] = Counter()
        self._blocks: list[dict[str, Array | int]] = []
        self._sizes: list[int] = []

    def add(self, what: str, start: Ints, end: Ints, **columns: Array | int) -> None:
        """Take rows, whose columns are arrays, or one value for all; `NONE` where left out.

        Args:
            what: they are, in the plural, for a message about those whose instants are absurd.
        """
        keep = (end >= start) & (end - start < DAY_NS)
        if not keep.all():
            self.left_out[what] += int(keep.size - np.count_nonzero(keep))
            columns = {key: value[keep] if isinstance(value, np.ndarray) else value for key, value in columns.items()}
            start, end = start[keep], end[keep]
        if not start.size:
            return
        self._stretch(int(start.min()), int(end.max()))
        self._sizes.append(start.size)
        self._blocks.append(
            {key: narrow(key, value) for key, value in (columns | {"start": start, "end": end}).items()}
        )

    def columns(self, offset_ns: int) -> dict[str, Array]:
        """The columns, sorted by start, instants moved by `offset_ns`. The rows are gone afterwards."""
        start = self._joined("start")
        order: Array | slice = slice(None)
        if bool((np.diff(start) < 0).any()):
            order = np.argsort(start, kind="stable")
            start = start[order]
        start += offset_ns
        columns = {"start": start}
        for key in COLUMNS:
            if key == "end" or (key != "start" and any(key in block for block in self._blocks)):  # no row, no block
                columns[key] = self._joined(key)[order]
        columns["end"] += offset_ns
        self._blocks.clear()
        return columns

    def notes(self) -> list[str]:
        """What was left out, as sentences."""
        return [f"{number} {what} left out: their instants are absurd" for what, number in self.left_out.items()]

    def _stretch(self, first: int, last: int) -> None:
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)

    def _joined(self, key: str) -> Array:
        """One column of all blocks, which lose it: the memory of both is needed for one column at a time only."""
        whole = np.empty(sum(self._sizes), COLUMNS[key])
        at = 0
        for size, block in zip(self._sizes, self._blocks, strict=True):
            whole[at : at + size] = block.pop(key, NONE)
            at += size
        return whole


def narrow(key: str, value: Array | int) -> Array | int:
    """A value as its column stores it: what is wider, such as an unsigned stream number of -1, wraps."""
    return value.astype(COLUMNS[key], copy=False) if isinstance(value, np.ndarray) else int(value)
