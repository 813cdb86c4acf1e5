"""A timeline cut into the steps of the engine.

A step's *duration* is that of its annotation on the host. An engine that schedules asynchronously leaves that range
while the device still works, and samples after it; so each step also has a *period*, from its start to the start of the
next one of the same process, and its *busy* time: what it launched, wherever on the device's clock that ran. In steady
state the period is what one token costs. A step that is followed by a pause has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.profile import step_names, step_work
from servebench.analysis.profile.step_names import KINDS, Named
from servebench.profile.intervals import Ints, Spans, union
from servebench.profile.timeline import NONE, Kind, Timeline

# Engines schedule the next step within milliseconds. After a longer break there was nothing to do, and what is launched
# then (a dummy batch beside other replicas, a warm-up) is of no step.
PAUSE_NS = 50_000_000
NO_NAMES = (
    "no annotation is named like a step of vLLM (execute_context_R(T)_generation_R(T)) or SGLang (step[DECODE bs=N]); "
    "give a pattern of your engine's step names"
)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in the order of process and start; integers are `NONE` where something is not known.

    Attributes:
        found_by: "names", "pattern" or "none"; `reason` says why there are none.
        truncated: how many of the window's steps its edges cut, which are left out.
        work_by: how device time was given to steps: "launch" (by the API call that launched it), "time" (by when it
            ran, as the file links no launches) or None (no device rows of a process that has steps).
        start, end: int64 ns, of the annotation.
        kind: int8, index into `KINDS`.
        context_requests, context_tokens, generation_requests, generation_tokens: int64, as the name tells.
        process: int64.
        period: int64 ns to the next step's start; `NONE` where a pause of `PAUSE_NS` or the end of the capture follows.
        busy: int64 ns in which any device worked at what the step launched.
        until: int64 ns: when its annotation and its device work were both over.
        kernels: int64, those that the step launched.
    """

    found_by: str
    reason: str | None
    truncated: int
    work_by: str | None
    start: Ints
    end: Ints
    kind: NDArray[np.int8]
    context_requests: Ints
    context_tokens: Ints
    generation_requests: Ints
    generation_tokens: Ints
    process: Ints
    period: Ints
    busy: Ints
    until: Ints
    kernels: Ints

    def __len__(self) -> int:
        return int(self.start.size)

    @property
    def duration(self) -> Ints:
        """Length of each annotation, ns."""
        return self.end - self.start

    @property
    def time(self) -> Ints:
        """What each step took, ns: its period, or to the end of its work where no other follows."""
        return np.where(self.period == NONE, self.until - self.start, self.period)

    @property
    def idle(self) -> Ints:
        """Time of each period for which the step gave the devices no work, ns; `NONE` without a period or devices."""
        known = (self.period != NONE) & (self.busy != NONE)
        return np.where(known, np.maximum(self.period - self.busy, 0), NONE)

    def of(self, rows: NDArray[Any]) -> Steps:
        """Some of them: a mask."""
        return replace(self, **{key: getattr(self, key)[rows] for key in COLUMNS})

    def spans(self, process: int | None = None) -> Spans:
        """The time that steps took, of all processes or of one."""
        rows = slice(None) if process is None else self.process == process
        return union(self.start[rows], (self.start + self.time)[rows])


COLUMNS = tuple(each.name for each in fields(Steps))[4:]


def find_steps(timeline: Timeline, start: int, end: int, pattern: str | None = None) -> Steps:
    """Find the steps within [start, end).

    Args:
        pattern: a regular expression for the names of steps, tried instead of the known engines' names; its groups
            may be named as in `step_names.GROUPS`.

    Raises:
        UsageError: the pattern is no regular expression.
    """
    read: Callable[[str], Named | None] = step_names.parse
    if pattern is not None:
        read = partial(step_names.parse_with, step_names.compiled(pattern))
    rows, named = _annotations(timeline, read)
    if not rows.size and pattern is None:
        rows, named = _annotations(timeline, partial(step_names.parse_listed, timeline.facts.get("step_names") or ()))
    if not rows.size:
        reason = NO_NAMES if pattern is None else f'no annotation or operator matches "{pattern}"'
        return none(reason)
    found = _measured(timeline, rows, named, "names" if pattern is None else "pattern")
    return _within(found, start, end, timeline.span[1])


def none(reason: str) -> Steps:
    """No steps, and why."""
    empty = np.zeros(0, np.int64)
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, empty) | {"kind": empty.astype(np.int8)}
    return Steps("none", reason, 0, None, **columns)


def _annotations(timeline: Timeline, read: Callable[[str], Named | None]) -> tuple[Ints, list[Named]]:
    """Rows that are steps, one for each step, in the order of process and start; and what their names say."""
    ranges = np.flatnonzero(timeline.of_kind(Kind.RANGE, Kind.OPERATOR))
    used = np.unique(timeline.name[ranges])
    by_id = {int(k): found for k in used if k >= 0 and (found := read(timeline.names[k])) is not None}
    is_step = np.zeros(len(timeline.names) + 1, np.bool_)  # the last is for NONE
    is_step[list(by_id)] = True
    rows = ranges[is_step[timeline.name[ranges]]]
    kept = [_distinct(timeline, rows[timeline.process[rows] == p]) for p in np.unique(timeline.process[rows])]
    chosen: Ints = np.concatenate([np.zeros(0, np.int64), *kept])
    return chosen, [by_id[int(k)] for k in timeline.name[chosen]]


def _distinct(timeline: Timeline, rows: Ints) -> Ints:
    """Of one process's rows, each step once.

    A profiler repeats the host's annotation on each stream of the device, and two annotators may nest theirs: what
    lies in an earlier one, or shares more than half of its time with it, is the same step.
    """
    host = rows[timeline.device[rows] == NONE]
    rows = host if host.size else rows
    start, end = timeline.start[rows], timeline.end[rows]
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    before = np.concatenate([start[:1] - 1, np.maximum.accumulate(end)[:-1]])
    fresh = (end > before) & (2 * (before - start) <= end - start)
    return rows[order][fresh]


def _measured(timeline: Timeline, rows: Ints, named: list[Named], found_by: str) -> Steps:
    """The steps of these rows, with what they had the devices do and when the next one began."""
    start, end = timeline.start[rows], timeline.end[rows]
    process = timeline.process[rows].astype(np.int64)
    work = step_work.of_steps(timeline, process, start, end + PAUSE_NS)
    until = np.maximum(end, work.until)
    numbers = np.array([each[1:] for each in named], np.int64).reshape(-1, len(step_names.GROUPS))
    return Steps(
        found_by=found_by,
        reason=None,
        truncated=0,
        work_by=work.by,
        start=start,
        end=end,
        kind=np.array([KINDS.index(each.kind) for each in named], np.int8),
        **{key: numbers[:, column] for column, key in enumerate(step_names.GROUPS)},
        process=process,
        period=_periods(process, start, until),
        busy=work.busy,
        until=until,
        kernels=work.kernels,
    )


def _periods(process: Ints, start: Ints, until: Ints) -> Ints:
    """To the start of the next step of the same process, unless a pause lies between."""
    period = np.full(start.size, NONE, np.int64)
    follows = (process[1:] == process[:-1]) & (start[1:] - until[:-1] <= PAUSE_NS)
    period[:-1][follows] = np.diff(start)[follows]
    return period


def _within(found: Steps, start: int, end: int, capture_end: int) -> Steps:
    """The whole steps of the window.

    One that ends with the capture was still open: readers close it there, and torch's profiler where it began.
    """
    touching = (found.start < end) & (found.end > start)
    was_open = (found.end >= capture_end) | ((found.end == found.start) & (found.period == NONE))
    inside = (found.start >= start) & (found.end <= end) & ~was_open
    kept = found.of(inside)
    truncated = int((touching & ~inside).sum())
    if len(kept):
        return replace(kept, truncated=truncated)
    reason = f"no whole step lies in the window ({truncated} cut by its edges)"
    return replace(kept, found_by="none", reason=reason, truncated=truncated)
