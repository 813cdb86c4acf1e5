"""Algebra of intervals of time, on whole arrays: union, intersection, difference, and who was alone.

A set of intervals is a pair of int64 arrays, starts and ends, half open. `Spans` are sorted and disjoint (touching ones
are joined); what takes loose `starts, ends` needs neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

BLOCK = 1 << 20  # rows at a time, where a sweep would need many times the memory of its input


class Spans(NamedTuple):
    """Sorted, disjoint, non-empty intervals [starts[i], ends[i])."""

    starts: Ints
    ends: Ints

    @property
    def total(self) -> int:
        """Time that they cover."""
        return int((self.ends - self.starts).sum())

    @property
    def lengths(self) -> Ints:
        """Length of each."""
        return self.ends - self.starts


def union(starts: Ints, ends: Ints) -> Spans:
    """Time that at least one of the intervals covers; they may overlap and come in any order."""
    starts, ends = _by_start(starts, ends)
    if not starts.size:
        return Spans(starts, ends)
    reach = np.maximum.accumulate(ends)
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Spans(starts[first], reach[last])


def clip(spans: Spans, start: int, end: int) -> Spans:
    """The part of the spans inside [start, end)."""
    inside = slice(np.searchsorted(spans.ends, start, side="right"), np.searchsorted(spans.starts, end, side="left"))
    starts, ends = spans.starts[inside], spans.ends[inside]
    if not starts.size or end <= start:
        return Spans(starts[:0], ends[:0])
    starts = starts if starts[0] >= start else np.concatenate([[start], starts[1:]])
    return Spans(starts, ends if ends[-1] <= end else np.concatenate([ends[:-1], [end]]))


def gaps(spans: Spans, start: int, end: int) -> Spans:
    """The time of [start, end) that the spans do not cover."""
    inside = clip(spans, start, end)
    starts, ends = np.concatenate([[start], inside.ends]), np.concatenate([inside.starts, [max(start, end)]])
    keep = ends > starts
    return Spans(starts, ends) if bool(keep.all()) else Spans(starts[keep], ends[keep])


def intersect(a: Spans, b: Spans) -> Spans:
    """Time that both cover."""
    return _level(a, b, 2)


def subtract(a: Spans, b: Spans) -> Spans:
    """Time that `a` covers and `b` does not."""
    if not a.starts.size:
        return a
    low, high = int(a.starts[0]), int(a.ends[-1])
    return intersect(a, gaps(b, low, high))


def covered(starts: Ints, ends: Ints, spans: Spans) -> Ints:
    """For each interval, how much of it the spans cover, in ns."""
    total = np.zeros(starts.size, np.int64)
    if not spans.starts.size:
        return total
    before = np.concatenate([[0], np.cumsum(spans.lengths)])
    for first in range(0, starts.size, BLOCK):
        block = slice(first, first + BLOCK)
        total[block] = _until(spans, before, ends[block]) - _until(spans, before, starts[block])
    return total


def alone(starts: Ints, ends: Ints, keys: NDArray[np.integer]) -> tuple[Spans, Ints]:
    """The time in which all intervals that run share one key, and that key: nothing else hides it.

    Two kernels that fully overlap are alone at no time, unless they have the same key.

    Args:
        keys: of each interval, 0 ≤ key < 2**20 (2048 of such may run at once).

    Returns:
        disjoint pieces in order of time (neighbours may touch), and the key of each.
    """
    blocks = list(alone_in_blocks(starts, ends, keys))
    if not blocks:
        return Spans(np.zeros(0, np.int64), np.zeros(0, np.int64)), np.zeros(0, np.int64)
    pieces, owners = zip(*blocks, strict=True)
    return Spans(*(np.concatenate(each) for each in zip(*pieces, strict=True))), np.concatenate(owners)


def alone_in_blocks(
    starts: Ints, ends: Ints, keys: NDArray[np.integer], rows: int | None = None
) -> Iterator[tuple[Spans, Ints]]:
    """What `alone` finds, in order of time and in pieces of bounded size.

    Time is cut at the start of every `rows`-th interval (`BLOCK` by default); what runs across the cut goes on into the
    next block.
    """
    rows = BLOCK if rows is None else rows
    starts, ends, keys = _by_start(starts, ends, keys)
    over = (starts[:0], ends[:0], keys[:0])
    for first in range(0, starts.size, rows):
        block = [
            np.concatenate([left, column[first : first + rows]])
            for left, column in zip(over, (starts, ends, keys), strict=True)
        ]
        until = starts[first + rows] if first + rows < starts.size else ends.max()
        across = block[1] > until
        over = (np.full(int(across.sum()), until), block[1][across], block[2][across])
        yield _alone(block[0], np.minimum(block[1], until), block[2].astype(np.int64))


def _alone(starts: Ints, ends: Ints, keys: Ints) -> tuple[Spans, Ints]:
    """Of intervals in order of their starts: most run by themselves, and only the others need a sweep."""
    if bool((ends <= starts).any()):
        keep = ends > starts
        starts, ends, keys = starts[keep], ends[keep], keys[keep]
    clear = starts[1:] >= np.maximum.accumulate(ends)[:-1]
    single = np.concatenate([[True], clear]) & np.concatenate([clear, [True]]) if starts.size else clear
    if bool(single.all()):
        return Spans(starts, ends), keys
    pieces, owners = _swept(starts[~single], ends[~single], keys[~single])
    all_starts = np.concatenate([starts[single], pieces.starts])
    order = np.argsort(all_starts, kind="stable")
    spans = Spans(all_starts[order], np.concatenate([ends[single], pieces.ends])[order])
    return spans, np.concatenate([keys[single], owners])[order]


def _swept(starts: Ints, ends: Ints, keys: Ints) -> tuple[Spans, Ints]:
    """`alone` by walking over all starts and ends in order of time."""
    t = np.concatenate([starts, ends])
    order = np.argsort(t, kind="stable")
    t = t[order]
    sign = np.where(order < starts.size, 1, -1)
    key = np.concatenate([keys, keys])[order]
    number = np.cumsum(sign)
    first, second = np.cumsum(sign * key), np.cumsum(sign * key * key)
    # equal keys: by Cauchy and Schwarz n·Σk² = (Σk)² holds then and only then
    same = (number[:-1] > 0) & (number[:-1] * second[:-1] == first[:-1] ** 2) & (np.diff(t) > 0)
    return Spans(t[:-1][same], t[1:][same]), first[:-1][same] // number[:-1][same]


def _by_start(starts: Ints, ends: Ints, *others: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The intervals that are not empty, in order of their starts, and what belongs to each; no copy without need."""
    columns = (starts, ends, *others)
    if bool((ends <= starts).any()):
        keep = ends > starts
        columns = tuple(column[keep] for column in columns)
    if bool((columns[0][1:] < columns[0][:-1]).any()):
        order = np.argsort(columns[0], kind="stable")
        columns = tuple(column[order] for column in columns)
    return columns


def _level(a: Spans, b: Spans, level: int) -> Spans:
    """Time that exactly `level` of the two sets cover."""
    t = np.concatenate([a.starts, b.starts, a.ends, b.ends])
    opens = a.starts.size + b.starts.size
    sign = np.concatenate([np.ones(opens, np.int64), np.full(t.size - opens, -1, np.int64)])
    order = np.argsort(t, kind="stable")
    t, number = t[order], np.cumsum(sign[order])
    hit = (number[:-1] == level) & (np.diff(t) > 0)
    return union(t[:-1][hit], t[1:][hit])


def _until(spans: Spans, before: Ints, instants: Ints) -> Ints:
    """How much of the spans lies before each instant; `before` is how much lies before each span."""
    at = np.maximum(np.searchsorted(spans.starts, instants, side="right") - 1, 0)
    inside: Ints = before[at] + np.clip(instants, spans.starts[at], spans.ends[at]) - spans.starts[at]
    return inside
