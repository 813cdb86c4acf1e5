"""Names: the numbers of strings that a file uses, turned into the indices that a timeline uses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.nsys.export import Export

Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
AT_ONCE = 500  # parameters of one query; SQLite once allowed 999
UNKNOWN = "(no name)"
TEXT = f"ifnull(CAST(value AS TEXT), '{UNKNOWN}')"


class Names:
    """The names met so far.

    Attributes:
        texts: the names, without repeats; an index is a place in it.
    """

    def __init__(self, export: Export) -> None:
        self.texts: list[str] = []
        self._export = export
        self._indices: dict[str, int] = {}
        self._ids = np.empty(0, np.int64)  # ascending: numbers of strings met so far, and the index of each
        self._places = np.empty(0, np.int32)

    def index(self, text: str) -> int:
        """Index of a name."""
        if text not in self._indices:
            self._indices[text] = len(self.texts)
            self.texts.append(text)
        return self._indices[text]

    def of_ids(self, ids: Ints) -> Indices:
        """Index for each number of a string; `UNKNOWN` is the name of one that the file does not have."""
        if (fresh := ids[~self._known(ids)]).size:
            self._learn(np.unique(fresh))
        indices: Indices = self._places[np.searchsorted(self._ids, ids)]
        return indices

    def which(self, test: Callable[[str], bool]) -> NDArray[np.bool_]:
        """For each name met so far, whether it passes a test."""
        return np.fromiter(map(test, self.texts), np.bool_, len(self.texts))

    def _known(self, ids: Ints) -> NDArray[np.bool_]:
        if not self._ids.size:
            return np.zeros(ids.size, np.bool_)
        at = np.minimum(np.searchsorted(self._ids, ids), self._ids.size - 1)
        known: NDArray[np.bool_] = self._ids[at] == ids
        return known

    def _learn(self, ids: Ints) -> None:
        texts = self._look_up(ids.tolist())
        places = np.array([self.index(texts.get(number, UNKNOWN)) for number in ids.tolist()], np.int32)
        every = np.concatenate([self._ids, ids])
        order = np.argsort(every)
        self._ids, self._places = every[order], np.concatenate([self._places, places])[order]

    def _look_up(self, ids: list[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for first in range(0, len(ids), AT_ONCE):
            some = ids[first : first + AT_ONCE]
            marks = ", ".join("?" * len(some))
            found.update(self._export.database.execute(f"SELECT id, {TEXT} FROM StringIds WHERE id IN ({marks})", some))
        return found
