"""What one device did within a window: its rows, and the time that they take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.profile import launches
from servebench.profile import intervals
from servebench.profile.intervals import Ints, Spans
from servebench.profile.timeline import COPY_KINDS, NONE, Kind, Timeline

KERNELS = (Kind.COMPUTE, Kind.COMMUNICATION, Kind.GRAPH)
COMPUTE = (Kind.COMPUTE, Kind.GRAPH)  # a replay that is not resolved into its kernels is mostly that

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Occupancy:
    """Rows of one device that touch a window, in order of their starts.

    Only the columns that are asked for are copied, for a capture may fill most of the memory.

    Attributes:
        timeline: the whole capture.
        device: number of the device.
        start, end: of the window, int ns.
        rows: int32, of the timeline.
        preceding: row of the timeline that ran last before the window; None if none did.
        following: the first one after it.
    """

    timeline: Timeline
    device: int
    start: int
    end: int
    rows: NDArray[np.int32]
    preceding: int | None
    following: int | None

    @classmethod
    def of(cls, timeline: Timeline, device: int, start: int, end: int) -> Occupancy:
        """Find the rows of `device` in [start, end)."""
        own = timeline.on_device & (timeline.device == device)
        before = own & (timeline.end <= start) & (timeline.start < start)
        after = own & (timeline.start >= end)
        return cls(
            timeline,
            device,
            start,
            end,
            np.flatnonzero(own & ~before & ~after).astype(np.int32),
            _last_to_end(timeline, before),
            int(after.argmax()) if after.any() else None,
        )

    @property
    def length(self) -> int:
        """Of the window, ns."""
        return self.end - self.start

    @property
    def size(self) -> int:
        """Number of the rows."""
        return int(self.rows.size)

    def column(self, name: str) -> NDArray[Any]:
        """A column of the timeline at the rows."""
        column: NDArray[Any] = getattr(self.timeline, name)[self.rows]
        return column

    @cached_property
    def starts(self) -> Ints:
        """Start of each row, or of the window."""
        starts: Ints = self.column("start")
        np.maximum(starts, self.start, out=starts)
        return starts

    @cached_property
    def ends(self) -> Ints:
        """End of each row, or of the window."""
        ends: Ints = self.column("end")
        np.minimum(ends, self.end, out=ends)
        return ends

    def durations(self, rows: Bools) -> Ints:
        """Of some rows, a mask, as long as they were, also where the window's edges cut them; ns."""
        where = self.rows[rows]
        durations = self.timeline.end[where]
        durations -= self.timeline.start[where]
        return durations

    @cached_property
    def kind(self) -> NDArray[np.int8]:
        """Kind of each row."""
        return self.column("kind")

    @cached_property
    def name(self) -> NDArray[np.int32]:
        """Name of each row, as index into `names`."""
        return self._renamed[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that the device's rows have."""
        return tuple(self.timeline.names[number] for number in self.name_ids)

    @property
    def name_ids(self) -> NDArray[np.int32]:
        """Index into the timeline's names of each of `names`."""
        return self._renamed[1]

    @cached_property
    def busy(self) -> Spans:
        """Time in which any of the rows runs, of whatever stream."""
        return intervals.union(self.starts, self.ends)

    @cached_property
    def launched_by(self) -> NDArray[np.int32]:
        """Row of the timeline that is the call which launched each row, or `NONE`.

        One more than there are rows: the last is of `following`.
        """
        if self.following is None:
            return np.append(launches.find_calls(self.timeline, self.rows), np.int32(NONE))
        return launches.find_calls(self.timeline, np.append(self.rows, np.int32(self.following)))

    def is_a(self, *kinds: Kind) -> Bools:
        """Mask of the rows of `kinds`."""
        wanted = np.zeros(len(Kind), np.bool_)
        wanted[list(kinds)] = True
        mask: Bools = wanted[self.kind]
        return mask

    def time_of(self, *kinds: Kind) -> Spans:
        """Time in which rows of `kinds` run."""
        rows = self.is_a(*kinds)
        if bool(rows.all()):
            return self.busy
        return intervals.union(self.starts[rows], self.ends[rows])

    def exposed(self) -> tuple[Spans, NDArray[np.int32]]:
        """Time in which only rows of one name run, in pieces, and that name of each, as index into `names`."""
        pieces, owners = intervals.alone(self.starts, self.ends, self.name)
        return pieces, owners.astype(np.int32)

    def exposed_by_name(self) -> Ints:
        """That time of each of `names`, ns."""
        total = np.zeros(len(self.names), np.int64)
        for pieces, owners in intervals.alone_in_blocks(self.starts, self.ends, self.name):
            total += np.bincount(owners, weights=pieces.lengths, minlength=total.size).astype(np.int64)
        return total

    @cached_property
    def _renamed(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The names numbered anew without the many that only host rows have."""
        name = self.column("name")
        used = np.flatnonzero(np.bincount(name)).astype(np.int32)
        number = np.zeros(int(used[-1]) + 1 if used.size else 0, np.int32)
        number[used] = np.arange(used.size, dtype=np.int32)
        return number[name], used


def is_copy(kind: NDArray[np.int8]) -> Bools:
    """Mask of the kinds that are copies."""
    mask: Bools = (kind >= min(COPY_KINDS)) & (kind <= max(COPY_KINDS))
    return mask


def numbers(timeline: Timeline) -> list[int]:
    """The devices that did anything in the capture."""
    return [int(number) for number in np.unique(timeline.device[timeline.on_device])]


def _last_to_end(timeline: Timeline, rows: Bools) -> int | None:
    where = np.flatnonzero(rows)[::-1]  # of several that end together, the one that began last
    return int(where[np.argmax(timeline.end[where])]) if where.size else None
