"""Algebra of intervals of time, on whole arrays: union, intersection, difference, and who was alone.

A set of intervals is a pair of int64 arrays, starts and ends, half open. `Spans` are sorted and disjoint (touching ones
are joined); what takes loose `starts, ends` needs neither.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


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
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not starts.size:
        return Spans(starts, ends)
    if bool((np.diff(starts) < 0).any()):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.concatenate([[True], starts[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Spans(starts[first], reach[last])


def clip(spans: Spans, start: int, end: int) -> Spans:
    """The part of the spans inside [start, end)."""
    return _kept(np.maximum(spans.starts, start), np.minimum(spans.ends, end))


def gaps(spans: Spans, start: int, end: int) -> Spans:
    """The time of [start, end) that the spans do not cover."""
    inside = clip(spans, start, end)
    return _kept(np.concatenate([[start], inside.ends]), np.concatenate([inside.starts, [max(start, end)]]))


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
    return _before(spans, ends) - _before(spans, starts)


def alone(starts: Ints, ends: Ints, keys: Ints) -> tuple[Spans, Ints]:
    """The time in which all intervals that run share one key, and that key: nothing else hides it.

    Two kernels that fully overlap are alone at no time, unless they have the same key.

    Args:
        keys: of each interval, 0 ≤ key < 2**20.

    Returns:
        disjoint pieces in order of time (neighbours may touch), and the key of each.
    """
    keep = ends > starts
    starts, ends, keys = starts[keep], ends[keep], keys[keep].astype(np.int64)
    if not starts.size:
        return Spans(starts, ends), keys
    t = np.concatenate([starts, ends])
    order = np.argsort(t, kind="stable")
    t = t[order]
    sign = np.concatenate([np.ones(starts.size, np.int64), np.full(ends.size, -1, np.int64)])[order]
    key = np.concatenate([keys, keys])[order]
    number = np.cumsum(sign)
    first, second = np.cumsum(sign * key), np.cumsum(sign * key * key)
    # equal keys: by Cauchy and Schwarz n·Σk² = (Σk)² holds then and only then
    same = (number[:-1] > 0) & (number[:-1] * second[:-1] == first[:-1] ** 2) & (np.diff(t) > 0)
    return Spans(t[:-1][same], t[1:][same]), first[:-1][same] // number[:-1][same]


def _level(a: Spans, b: Spans, level: int) -> Spans:
    """Time that exactly `level` of the two sets cover."""
    t = np.concatenate([a.starts, b.starts, a.ends, b.ends])
    opens = a.starts.size + b.starts.size
    sign = np.concatenate([np.ones(opens, np.int64), np.full(t.size - opens, -1, np.int64)])
    order = np.argsort(t, kind="stable")
    t, number = t[order], np.cumsum(sign[order])
    hit = (number[:-1] == level) & (np.diff(t) > 0)
    return union(t[:-1][hit], t[1:][hit])


def _before(spans: Spans, instants: Ints) -> Ints:
    """How much of the spans lies before each instant."""
    if not spans.starts.size:
        return np.zeros(instants.size, np.int64)
    at = np.searchsorted(spans.starts, instants, side="right") - 1
    done = np.concatenate([[0], np.cumsum(spans.lengths)])[np.maximum(at, 0)]
    inside = np.clip(instants - spans.starts[np.maximum(at, 0)], 0, spans.lengths[np.maximum(at, 0)])
    return np.where(at < 0, 0, done + inside)


def _kept(starts: Ints, ends: Ints) -> Spans:
    keep = ends > starts
    return Spans(starts[keep], ends[keep])
