"""Calls of the operating system's runtime (OSRT of nsys: poll, futex waits, reads) by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.rounding import milliseconds
from servebench.profile.timeline import Kind, Timeline

TOP = 25


def describe(timeline: Timeline, start: int, end: int) -> list[dict[str, Any]]:
    """The `system` section: [{"name", "n", "ms"}], most time first.

    The time is the sum over all threads within [start, end), so waiting threads may exceed the window's length.
    """
    rows = np.flatnonzero(timeline.of_kind(Kind.SYSTEM) & (timeline.start < end) & (timeline.end > start))
    ids, name = np.unique(timeline.name[rows], return_inverse=True)
    time = np.minimum(timeline.end[rows], end) - np.maximum(timeline.start[rows], start)
    spent = np.bincount(name, weights=time, minlength=ids.size).astype(np.int64)
    n = np.bincount(name, minlength=ids.size)
    first = np.lexsort((ids, -spent))[:TOP]
    return [{"name": timeline.names[ids[k]], "n": int(n[k]), "ms": milliseconds(int(spent[k]))} for k in first]
