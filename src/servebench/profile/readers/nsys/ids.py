"""Processes and threads, which the files pack into one number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servebench.profile.timeline import NONE

Ints = NDArray[np.int64]
BITS = 0xFFFFFF


def process_of(packed: Ints) -> Ints:
    """Process id in a globalPid or globalTid; NONE stays NONE."""
    return np.where(packed == NONE, NONE, packed >> 24 & BITS)


def thread_of(packed: Ints) -> Ints:
    """Thread id in a globalTid; NONE stays NONE."""
    return np.where(packed == NONE, NONE, packed & BITS)
