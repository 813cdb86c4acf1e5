"""Operators of the host (a framework's, such as aten::mm) by the time that is their own, on the thread that works most.

On an engine that computes on the CPU this is where its time goes; beside a GPU it is what launching costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.profile.nesting import order, times
from servebench.analysis.profile.stepping import Steps
from servebench.analysis.rounding import milliseconds, rounded
from servebench.profile.intervals import Ints, Spans, clip, covered, intersect, union
from servebench.profile.timeline import Kind, Timeline

TOP = 25


@dataclass(frozen=True, slots=True)
class Operators:
    """One thread's operators by name, those with the most own time first.

    Attributes:
        process, thread: ids.
        within: the time that is counted: the steps of that process, else the whole window.
        names: tuple; n, own, total: int64 of each: calls, ns without and with what they call (itself counted once).
    """

    process: int
    thread: int
    within: Spans
    names: tuple[str, ...]
    n: Ints
    own: Ints
    total: Ints


def find_operators(timeline: Timeline, steps: Steps, start: int, end: int) -> Operators | None:
    """The operators of the thread that spends the most time in operators; the lowest ids where several tie.

    Only time within [start, end) counts, and within the steps where there are any; None where no operator has any.
    """
    rows = np.flatnonzero(timeline.of_kind(Kind.OPERATOR) & (timeline.start < end) & (timeline.end > start))
    key = (timeline.process[rows].astype(np.int64) << 32) + timeline.thread[rows]
    best, most = None, 0
    for each in np.unique(key):
        mine = rows[key == each]
        within = _within(steps, int(timeline.process[mine[0]]), start, end)
        time = intersect(union(timeline.start[mine], timeline.end[mine]), within).total
        if time > most:
            best, most = (mine, within), time
    return None if best is None else _by_name(timeline, *best)


def describe(found: Operators | None) -> dict[str, Any] | None:
    """The `operators` section; None without any.

    Shape: {"process", "thread", "within_ms", "rows": [{"name", "n", "self_ms", "total_ms", "share": self_ms of
    within_ms}], "names_n": how many names there are in all, "self_ms": of all of them}.
    """
    if found is None:
        return None
    time = max(found.within.total, 1)
    return {
        "process": found.process,
        "thread": found.thread,
        "within_ms": milliseconds(found.within.total),
        "rows": [
            {
                "name": name,
                "n": int(found.n[k]),
                "self_ms": milliseconds(int(found.own[k])),
                "total_ms": milliseconds(int(found.total[k])),
                "share": rounded(int(found.own[k]) / time),
            }
            for k, name in enumerate(found.names[:TOP])
        ],
        "names_n": len(found.names),
        "self_ms": milliseconds(int(found.own.sum())),
    }


def _within(steps: Steps, process: int, start: int, end: int) -> Spans:
    """The time that counts for a thread of a process: its own steps, else those of others, else the whole window."""
    if not len(steps):
        return Spans(np.array([start], np.int64), np.array([end], np.int64))
    return clip(steps.spans(process if process in steps.process else None), start, end)


def _by_name(timeline: Timeline, rows: Ints, within: Spans) -> Operators:
    rows = rows[order(timeline.start[rows], timeline.end[rows])]
    start, end = timeline.start[rows], timeline.end[rows]
    total, own = times(start, end, within)
    counted = total > 0
    ids, name = np.unique(timeline.name[rows[counted]], return_inverse=True)
    own_by = np.bincount(name, weights=own[counted], minlength=ids.size).astype(np.int64)
    total_by = _once(start[counted], end[counted], name, ids.size, within)
    first = np.lexsort((ids, -own_by))
    return Operators(
        process=int(timeline.process[rows[0]]),
        thread=int(timeline.thread[rows[0]]),
        within=within,
        names=tuple(timeline.names[k] for k in ids[first]),
        n=np.bincount(name, minlength=ids.size)[first].astype(np.int64),
        own=own_by[first],
        total=total_by[first],
    )


def _once(start: Ints, end: Ints, name: Ints, names: int, within: Spans) -> Ints:
    """Time in which each name runs, within the spans; a name inside itself counts once.

    Done for all names at once by laying their intervals end to end.
    """
    zero = int(start.min())
    length = int(end.max()) - zero + 1
    place = name.astype(np.int64) * length - zero
    spans = union(start + place, end + place)
    owner = spans.starts // length
    back = zero - owner * length
    inside = covered(spans.starts + back, spans.ends + back, within)
    return np.bincount(owner, weights=inside, minlength=names).astype(np.int64)
