"""Who is inside whom among nested intervals, and the time that is each one's own."""

from __future__ import annotations

import numpy as np

from servebench.profile.intervals import Ints, Spans, covered


def parents(start: Ints, end: Ints) -> Ints:
    """Index of the interval that each lies in directly; −1 at the top.

    One pass over the arrays for each level of depth. An interval that begins in another and outlives it counts as
    inside it.

    Args:
        start, end: ns, sorted by start, of equal starts the longest first (as `order` puts them).
    """
    parent = np.full(start.size, -1, np.int64)
    rest = np.arange(start.size)
    while rest.size:
        reach = np.maximum.accumulate(end[rest])
        top = np.concatenate([[True], start[rest[1:]] >= reach[:-1]])
        above = rest[top]
        inside = rest[~top]
        parent[inside] = above[np.searchsorted(above, inside) - 1]
        rest = inside
    return parent


def order(start: Ints, end: Ints) -> Ints:
    """The order that `parents` needs."""
    return np.lexsort((-end, start))


def times(start: Ints, end: Ints, spans: Spans | None) -> tuple[Ints, Ints]:
    """Total and own time of each interval, ns; own: without what lies in it.

    Args:
        start, end: as in `parents`.
        spans: only time within them counts; None for all time.
    """
    parent = parents(start, end)
    total = _measured(start, end, spans)
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    inner = _measured(start[child], np.minimum(end[child], end[above]), spans)
    own = total - np.bincount(above, weights=inner, minlength=start.size).astype(np.int64)
    return total, own


def _measured(start: Ints, end: Ints, spans: Spans | None) -> Ints:
    return end - start if spans is None else covered(start, end, spans)
