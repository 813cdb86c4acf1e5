"""An .xplane.pb file of XLA's profiler: planes of lines of events, as columns.

The message is `tensorflow.profiler.XSpace` of OpenXLA's xplane.proto; the numbers below are its field numbers. A space
has planes (a device, or all threads of the host), a plane has lines (a stream, a thread), a line has events. Names of
events and of their statistics are kept once a plane, by id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.wire_format import BYTES, Value, double, scan, signed, text, varint

Ints = NDArray[np.int64]
Scalar = int | float | str
EMPTY = memoryview(b"")
_INTEGERS = (0x18, 0x20, 0x38)  # keys of uint64_value, int64_value and ref_value
_REFERENCE = 0x38


@dataclass(frozen=True, slots=True)
class Line:
    """Events of one thread or stream, in the order of the file.

    Attributes:
        timestamp_ns: what the offsets count from.
        event: int64, id of each event's name in `Plane.names`.
        offset_ps, duration_ps: int64.
        stats: by name, the values of the events that have that statistic, by index.
        aggregates: how many entries stand for several events without an instant, which are left out.
    """

    name: str
    timestamp_ns: int
    event: Ints
    offset_ps: Ints
    duration_ps: Ints
    stats: dict[str, dict[int, Scalar]]
    aggregates: int


@dataclass(frozen=True, slots=True)
class Plane:
    """A device, the host, or facts on the capture ("Task Environment", which has no lines).

    Attributes:
        names: of events by id: what a viewer displays.
        stats: of the plane itself.
    """

    name: str
    lines: tuple[Line, ...]
    names: dict[int, str]
    stats: dict[str, Scalar]


@dataclass(slots=True)
class Space:
    """All that one host recorded; `problems` are the profiler's own errors and warnings."""

    planes: list[Plane] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)


def read_space(path: Path, wanted: frozenset[str]) -> Space:
    """Read a file, with the statistics of events whose names are `wanted`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no XSpace, or cut short.
    """
    try:
        return _space(path.read_bytes(), wanted)
    except IndexError:
        raise ValueError("a message is cut short") from None


def _space(data: bytes, wanted: frozenset[str]) -> Space:
    space = Space()
    for number, value in scan(data):
        if not isinstance(value, memoryview) or not 1 <= number <= 4:
            raise ValueError("not an XSpace message")
        if number == 1:
            space.planes.append(_plane(value, wanted))
        elif number == 4:
            space.hosts.append(text(value))
        else:
            space.problems.append(text(value))
    return space


def _plane(data: memoryview, wanted: frozenset[str]) -> Plane:
    name, lines, stats = "", [], []
    events: dict[int, str] = {}
    kinds: dict[int, str] = {}
    for number, value in scan(data):
        if number == 2:
            name = text(value)
        elif number == 3:
            lines.append(_view(value))
        elif number == 4:
            _add_name(events, value, display=4)
        elif number == 5:
            _add_name(kinds, value, display=None)
        elif number == 6:
            stats.append(_view(value))
    # names come after the lines that use them
    of_plane = dict(_stat(each, kinds) for each in stats)
    return Plane(name, tuple(_line(each, kinds, wanted) for each in lines), events, of_plane)


def _add_name(names: dict[int, str], entry: Value, display: int | None) -> None:
    """Add one entry of a map from ids to metadata, whose field 2 is its name; a display name is preferred."""
    pair = dict(scan(_view(entry)))
    metadata = dict(scan(_view(pair.get(2, EMPTY))))
    shown = text(metadata.get(display, EMPTY)) if display else ""
    names[_number(pair.get(1, 0))] = shown or text(metadata.get(2, EMPTY))


def _line(data: memoryview, kinds: dict[int, str], wanted: frozenset[str]) -> Line:
    name, shown, timestamp = "", "", 0
    events = _Events({id_: kind for id_, kind in kinds.items() if kind in wanted}, kinds)
    for number, value in scan(data):
        if number == 4:
            events.add(bytes(_view(value)))
        elif number == 2:
            name = text(value)
        elif number == 3:
            timestamp = signed(_number(value))
        elif number == 11:
            shown = text(value)
    event, offset, duration = np.array(events.rows, np.int64).reshape(-1, 3).T
    return Line(shown or name, timestamp, event, offset, duration, events.stats, events.aggregates)


class _Events:
    """Collects the events of a line; the innermost loop of the reader, so it reads bytes and not fields."""

    def __init__(self, wanted: dict[int, str], kinds: dict[int, str]) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.stats: dict[str, dict[int, Scalar]] = {}
        self.aggregates = 0
        self._wanted = wanted
        self._kinds = kinds

    def add(self, data: bytes) -> None:
        """Add an encoded XEvent: its fields 1, 2, 3 and 5 are numbers, 4 is a statistic."""
        values = [0, 0, 0, 0, 0, 0]
        at, end = 0, len(data)
        while at < end:
            key = data[at]
            value, at = varint(data, at + 1)
            if key & 7 == BYTES:
                if key >> 3 == 4:
                    self._add_stat(data, at, at + value)
                at += value
            elif key >> 3 < len(values):
                values[key >> 3] = value
        if values[5]:
            self.aggregates += 1
            for found in self.stats.values():
                found.pop(len(self.rows), None)
        else:
            self.rows.append((values[1], signed(values[2]), signed(values[3])))

    def _add_stat(self, data: bytes, at: int, end: int) -> None:
        """Add an XStat; nearly all are a short id (field 1) and then an integer or a reference, and are not wanted."""
        number = data[at + 1]
        if data[at] == 0x08 and number < 0x80:
            kind = self._wanted.get(number)
            if kind is None:
                return
            if data[at + 2] in _INTEGERS:
                value, _ = varint(data, at + 3)
                referred = data[at + 2] == _REFERENCE
                self._keep(kind, self._kinds.get(value, "") if referred else signed(value))
                return
        kind, decoded = _stat(memoryview(data)[at:end], self._kinds)
        if kind in self._wanted.values():
            self._keep(kind, decoded)

    def _keep(self, kind: str, value: Scalar) -> None:
        self.stats.setdefault(kind, {})[len(self.rows)] = value


def _stat(data: memoryview, kinds: dict[int, str]) -> tuple[str, Scalar]:
    """The name and the value of an XStat; a reference is the name that it refers to."""
    kind, found = "", 0
    result: Scalar = 0
    for number, value in scan(data):
        if number == 1:
            found = _number(value)
            kind = kinds.get(found, str(found))
        elif number == 7:
            result = kinds.get(_number(value), "")
        else:
            result = _DECODED[number](value) if number in _DECODED else 0
    return kind, result


def _number(value: Value) -> int:
    if isinstance(value, memoryview):
        raise ValueError("a string where a number belongs")
    return value


def _view(value: Value) -> memoryview:
    if not isinstance(value, memoryview):
        raise ValueError("a number where a message belongs")
    return value


_DECODED: dict[int, Callable[[Value], Scalar]] = {
    2: lambda value: double(_number(value)),
    3: _number,
    4: lambda value: signed(_number(value)),
    5: text,
    6: text,
}
