"""Pages of an SQLite file, and those that hold the rows of a table.

The file format is public and does not change: https://www.sqlite.org/fileformat2.html, sections 1.3 to 1.6.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100
INTERIOR, LEAF = 5, 13  # types of the pages of a table's tree
DEEPEST = 20  # such trees do not get deeper
SPARE = 16  # bytes after the last page, so that eight may be read at the place of its last


class DamageError(ValueError):
    """Pages that make no sense."""


class Pages:
    """The pages of a file, numbered from 1. A context manager.

    Attributes:
        size: of a page, bytes.
        usable: of which so many hold data.
        count: whole pages that there are.
        stated: pages that there should be; 0 where an old program wrote the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        head = self._file.read(HEADER_BYTES)
        size = int.from_bytes(head[16:18])
        if len(head) < HEADER_BYTES or not head.startswith(MAGIC) or not size:
            self._file.close()
            raise ValueError(f"{path} is not an SQLite file")
        self.size = 65_536 if size == 1 else size
        self.usable = self.size - head[20]
        self.count = path.stat().st_size // self.size
        self.stated = int.from_bytes(head[28:32])

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def read(self, numbers: Ints) -> Bytes:
        """Read pages one after the other, and some zeroes. Raises DamageError for a page beyond the file's end."""
        data = np.zeros(numbers.size * self.size + SPARE, np.uint8)
        if numbers.size > self.count or numbers.min() < 1 or numbers.max() > self.count:
            raise DamageError("a page lies beyond the end of the file")
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), numbers.size], strict=True):
            run = data.data[first * self.size : last * self.size]
            if os.preadv(self._file.fileno(), [run], (int(numbers[first]) - 1) * self.size) < len(run):
                raise DamageError("the file became shorter")
        return data

    def leaves(self, root: int) -> Ints:
        """Numbers of the pages with the rows of the table whose tree begins at page `root`, in order of the rows."""
        level = np.array([root], np.int64)
        for _ in range(DEEPEST):
            if self._kind(int(level[0])) == LEAF:
                return level
            data = self.read(level)
            pages = (data[at : at + self.size] for at in range(0, level.size * self.size, self.size))
            level = np.concatenate([self._children(page) for page in pages])
        raise DamageError("a table's tree has no end")

    def _kind(self, number: int) -> int:
        kind = int(self.read(np.array([number], np.int64))[0])
        if kind not in (INTERIOR, LEAF):
            raise DamageError(f"page {number} is of no table")
        return kind

    def _children(self, page: Bytes) -> Ints:
        """Pages below an interior one: one of each cell, and a last one named in the page's header."""
        cells = page[12 : 12 + 2 * int(page[3:5].view(">u2")[0])].view(">u2").astype(np.int64)
        if (cells > self.size - 4).any() or page[0] != INTERIOR:
            raise DamageError("a page of a table's tree makes no sense")
        below = page[cells[:, None] + np.arange(4)].view(">u4")[:, 0].astype(np.int64)
        return np.concatenate([below, page[8:12].view(">u4").astype(np.int64)])
