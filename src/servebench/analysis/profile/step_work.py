"""Which step gave the devices which work: by the call that launched it, not by when it ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.profile.launches import find_calls
from servebench.profile.intervals import BLOCK, Ints, union
from servebench.profile.timeline import NONE, Kind, Timeline

Rows = NDArray[np.int32]
NEVER = int(np.iinfo(np.int64).min)  # a clock that is not the run's may have instants before 0
FOREVER = int(np.iinfo(np.int64).max)

KERNELS = (Kind.COMPUTE, Kind.COMMUNICATION)


class Work(NamedTuple):
    """Device work of each step.

    Attributes:
        by: "launch", "time", or None where no process with steps has device rows.
        busy: int64 ns, union over streams and devices; `NONE` for steps of a process without device rows.
        until: int64 ns, end of the last piece; `NEVER` for a step without any.
        kernels: int64, computing and communicating ones; `NONE` as in `busy`.
    """

    by: str | None
    busy: Ints
    until: Ints
    kernels: Ints


def of_steps(timeline: Timeline, process: Ints, start: Ints, closed: Ints) -> Work:
    """Give each device row to the last step of its process that had started when it was launched.

    Where the file links no launches, to the last that had started when it ran.

    Args:
        process, start: of the steps, sorted by both.
        closed: int64 ns, when each step was over for certain: what was launched later is of no step.
    """
    rows = np.flatnonzero(timeline.on_device).astype(np.int32)
    known = _have_rows(timeline, rows, process)
    if not known.any():
        unknown = np.full(start.size, NONE, np.int64)
        return Work(None, unknown, np.full(start.size, NEVER), unknown)
    calls = find_calls(timeline, rows)
    by = "launch" if bool((calls != NONE).any()) else "time"
    if by == "time":  # the device may be at it long after
        calls, closed = rows, np.full(start.size, FOREVER)
    owner = _owners(timeline, rows, calls, process, start, closed)
    del calls  # of a large capture every column counts
    rows, owner = _grouped(rows, owner)
    busy, until, kernels = np.zeros((3, start.size), np.int64)
    for first, last in _blocks(owner, start.size):
        part = slice(*np.searchsorted(owner, [first, last]))
        found = _measured(timeline, rows[part], owner[part].astype(np.int64) - first, last - first)
        busy[first:last], until[first:last], kernels[first:last] = found
    return Work(by, np.where(known, busy, NONE), until, np.where(known, kernels, NONE))


def _have_rows(timeline: Timeline, rows: Rows, process: Ints) -> NDArray[np.bool_]:
    """Which of these processes, one a step, any of the rows is of: what another one annotates is not its own work."""
    of = timeline.process[rows]
    having = [each for each in np.unique(process) if bool((of == each).any())]
    return np.isin(process, having)


def _owners(timeline: Timeline, rows: Rows, causes: Rows, process: Ints, start: Ints, closed: Ints) -> Rows:
    """Index of the step that each row belongs to, by when its cause (another row; `NONE`) started; or `NONE`."""
    owner = np.full(rows.size, NONE, np.int32)
    for each in np.unique(process):
        first, last = np.searchsorted(process, [each, each + 1])
        for at in range(0, rows.size, BLOCK):
            block = slice(at, at + BLOCK)
            mine = (timeline.process[rows[block]] == each) & (causes[block] != NONE)
            at_ns = timeline.start[causes[block][mine]]
            step = np.searchsorted(start[first:last], at_ns, side="right") - 1 + first
            owner[block][mine] = np.where((step < first) | (at_ns > closed[step]), NONE, step)
    return owner


def _grouped(rows: Rows, owner: Rows) -> tuple[Rows, Rows]:
    """The rows that belong to a step, those of each step together, in order of time within it."""
    if bool((owner == NONE).any()):
        rows, owner = rows[owner != NONE], owner[owner != NONE]
    if bool((owner[1:] < owner[:-1]).any()):
        order = np.argsort(owner, kind="stable")
        rows, owner = rows[order], owner[order]
    return rows, owner


def _blocks(owner: Rows, steps: int) -> Iterator[tuple[int, int]]:
    """Ranges of steps that hold about `BLOCK` rows each."""
    first = 0
    while first < steps:
        next_row = int(np.searchsorted(owner, first)) + BLOCK
        last = max(int(owner[next_row]), first + 1) if next_row < owner.size else steps
        yield first, last
        first = last


def _measured(timeline: Timeline, rows: Rows, owner: Ints, steps: int) -> tuple[Ints, Ints, Ints]:
    """Busy time, last end and number of kernels of each of some steps, whose rows these are."""
    until = np.full(steps, NEVER)
    if not rows.size:
        return np.zeros(steps, np.int64), until, np.zeros(steps, np.int64)
    starts, ends = timeline.start[rows], timeline.end[rows]
    np.maximum.at(until, owner, ends)
    kernel = np.isin(timeline.kind[rows], [int(kind) for kind in KERNELS])
    return _busy(starts, ends, owner, steps), until, np.bincount(owner[kernel], minlength=steps)


def _busy(starts: Ints, ends: Ints, owner: Ints, steps: int) -> Ints:
    """Time in which any of a step's rows runs: the union, done for all steps at once by laying them end to end."""
    zero = int(starts.min())
    length = int(ends.max()) - zero + 1
    place = owner * length - zero
    spans = union(starts + place, ends + place)
    return np.bincount(spans.starts // length, weights=spans.lengths, minlength=steps).astype(np.int64)
