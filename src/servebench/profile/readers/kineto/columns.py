"""Events gathered into columns, a list at a time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.kineto.kinds import CATEGORIES, ON_DEVICE, Category
from servebench.profile.readers.kineto.stream import Args, Event
from servebench.profile.timeline import COLUMNS, NONE

Columns = dict[str, NDArray[Any]]
NO_ARGS = Args()
NUMBER = re.compile(r"-?\d+")
PLAIN = (Category.OPERATOR, Category.RANGE, Category.OVERHEAD)  # what their details say is their own affair
THREAD_MASK = 0x7FFFFFFF  # some systems number threads by their address


class Gathering:
    """What is kept of a trace.

    Attributes:
        names: number of each name.
        left_out: how many events there are of the categories that become no rows.
        endless: events without a begin or a duration.
        stated: begin and end of the capture in µs, as the profiler itself has them; None where it does not tell.
        processes: names by process id.
        peak_bytes: most memory that was allocated on an accelerator at a time.
    """

    def __init__(self) -> None:
        self.names: defaultdict[str, int] = defaultdict()
        self.names.default_factory = self.names.__len__
        self.left_out: Counter[str] = Counter()
        self.endless = 0
        self.stated: tuple[float, float] | None = None
        self.processes: dict[int, str] = {}
        self.peak_bytes: int | None = None
        self._parts: list[Columns] = []

    def add(self, events: list[Event]) -> None:
        """Keep what is wanted of these events."""
        kept = [each for each in events if each.ph == "X" and each.cat in CATEGORIES]
        whole = [each for each in kept if each.ts is not None and each.dur is not None]
        self.endless += len(kept) - len(whole)
        self._parts.append(_columns(whole, self.names))
        if len(kept) < len(events):
            for event in events:
                self._note(event)

    def columns(self) -> Columns:
        """All rows: "ts" and "dur" in µs, "category", and the integers of a timeline; one call."""
        parts, self._parts = self._parts or [_columns([], self.names)], []
        return {key: np.concatenate([part.pop(key) for part in parts]) for key in list(parts[0])}

    def _note(self, event: Event) -> None:
        """Take what an event that is no row says."""
        args = event.args or NO_ARGS
        if event.ph == "X" and event.cat not in CATEGORIES:
            self._note_span(event)
        elif event.name == "process_name" and isinstance(args.name, str):
            self.processes[_number(event.pid)] = args.name
        elif event.name == "[memory]" and args.memory_type and isinstance(args.allocated, int):  # type 0 is the host
            self.peak_bytes = max(self.peak_bytes or 0, args.allocated)

    def _note_span(self, event: Event) -> None:
        if event.cat == "Trace" and event.ts is not None and event.dur is not None:
            begin, end = self.stated or (event.ts, event.ts)
            self.stated = min(begin, event.ts), max(end, event.ts + event.dur)
        else:
            self.left_out[event.cat or "none"] += 1


def _columns(events: list[Event], names: dict[str, int]) -> Columns:
    category = np.array([CATEGORIES[each.cat] for each in events], np.int8)
    columns: Columns = {
        "ts": np.array([each.ts for each in events], np.float64),
        "dur": np.array([each.dur for each in events], np.float64),
        "category": category,
        "name": np.array([names[each.name] for each in events], np.int32),
        "process": _numbers([each.pid for each in events]).astype(np.int32),
        "thread": (_numbers([each.tid for each in events]) & THREAD_MASK).astype(np.int32),
    }
    return columns | _details(events, columns)


def _details(events: list[Event], columns: Columns) -> Columns:
    """What only calls and what happens on a device have: numbers that join them, where it ran, how much was moved."""
    detailed = np.flatnonzero(~np.isin(columns["category"], PLAIN))
    args = [events[row].args or NO_ARGS for row in detailed.tolist()]
    on_device = np.isin(columns["category"][detailed], ON_DEVICE)
    read = {
        "correlation": _numbers([each.correlation for each in args]),
        "device": _numbers([each.device for each in args]),
        "stream": _numbers([each.stream for each in args]),
        "bytes": _numbers([each.size for each in args]),
        "graph": _numbers([each.graph for each in args]),
    }
    wide = {key: _spread(values.astype(COLUMNS[key]), detailed, len(events)) for key, values in read.items()}
    _place(wide, columns, detailed[on_device], detailed[~on_device])
    return wide


def _spread(values: NDArray[Any], rows: NDArray[np.int64], size: int) -> NDArray[Any]:
    column = np.full(size, NONE, values.dtype)
    column[rows] = values
    return column


def _place(wide: Columns, columns: Columns, on_device: NDArray[np.int64], calls: NDArray[np.int64]) -> None:
    """For rows of a device, `pid` and `tid` are its number and the stream's; a call happens on no device."""
    for key, given in (("device", "process"), ("stream", "thread")):
        unsaid = on_device[wide[key][on_device] == NONE]
        wide[key][unsaid] = columns[given][unsaid]
        columns[given][on_device] = NONE
        wide[key][calls] = NONE


def _numbers(values: list[Any]) -> NDArray[np.int64]:
    try:
        return np.array(values, np.int64)  # what nearly all files have: integers
    except (TypeError, ValueError, OverflowError):
        return np.array([_number(each) for each in values], np.int64)


def _number(value: Any) -> int:
    """The integer that a value is or begins with, as in "stream 7"; `NONE` if there is none."""
    found = NUMBER.search(str(value)) if isinstance(value, (str, int, float)) else None
    number = int(found[0]) if found else NONE
    return number if abs(number) < 1 << 63 else NONE
