"""What is told of all rows together, once they are columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.profile.timeline import NONE

Columns = dict[str, NDArray[Any]]


def graphs_in(columns: Columns) -> int:
    """How many different CUDA graphs were replayed, those of each process on their own."""
    if "graph" not in columns:
        return 0
    replayed = columns["graph"] != NONE
    pairs = columns["process"][replayed].astype(np.int64) << 32 | columns["graph"][replayed]
    fresh = np.concatenate([pairs[:1], pairs[1:][pairs[1:] != pairs[:-1]]])  # a replay's rows follow each other
    return int(np.unique(fresh).size)


def shared_devices(columns: Columns) -> list[str]:
    """A note for each device number that several processes used: CUDA numbers those that a process may see."""
    if "device" not in columns or not columns["device"].size:
        return []
    notes = []
    for device in np.flatnonzero(np.bincount(columns["device"] + 1)[1:]).tolist():  # NONE is -1
        process = columns["process"][columns["device"] == device]
        if process.min() != process.max():
            listed = ", ".join(map(str, np.unique(process).tolist()))
            notes.append(
                f"processes {listed} all used a device {device}: if CUDA_VISIBLE_DEVICES gave each a GPU of its own, "
                "they are taken for one device here"
            )
    return notes
