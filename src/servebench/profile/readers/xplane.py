"""A capture of XLA's profiler (.xplane.pb, from JAX on TPU, GPU or CPU) as a `Timeline`.

Instants of a capture that came through the profiler's server count from `profile_start_time`, which the file states on
the server's CLOCK_REALTIME; those of older ones count from 1970. XLA runs the operations of its CPU backend on threads
of the host, and tells for each the ordinal of the device that it stands for: they become rows of that device.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.xspace import Ints, Line, Plane, Space, read_space
from servebench.profile.timeline import NONE, Alignment, Kind, Timeline
from servebench.profile.tool import ProfileError

CLOCK = "the server's CLOCK_REALTIME, as the file states it"
SINCE_1970_NS = 10**17  # 1973: an instant beyond it counts from 1970, one before it from the start of the capture
WANTED = frozenset({"step_num", "hlo_op", "device_ordinal", "correlation_id", "memcpy_details"})
MARKERS = ("ThreadpoolListener::", "end: ")  # where work was handed on, not work

_DEVICE = re.compile(r"/device:([A-Z_]+):(\d+)")
_STREAM = re.compile(r"Stream #(\d+)")
_BYTES = re.compile(r"\bsize:(\d+)")
_COLLECTIVE = re.compile(
    r"nccl|rccl|all-?reduce|all-?gather|all-?to-?all|reduce-?scatter|collective-?(permute|broadcast)|\b(send|recv)\b",
    re.I,
)
_COPIES = {
    "MemcpyH2D": Kind.COPY_HTOD,
    "MemcpyD2H": Kind.COPY_DTOH,
    "MemcpyD2D": Kind.COPY_DTOD,
    "MemcpyP2P": Kind.COPY_PEER,
    "MemcpyH2H": Kind.COPY_HTOH,
    "MemcpyOther": Kind.COPY_OTHER,
    "Memset": Kind.FILL,
}


def read_xplane(path: Path) -> Timeline:
    """Read what one host recorded.

    Steps that the server marked (`jax.profiler.StepTraceAnnotation`) are ranges, named in `facts["step_names"]`;
    programs as a device ran them ("XLA Modules") are ranges with that device. `facts["threads"]` names the threads of
    the host, which the rows number in that order.

    Raises:
        ProfileError: the file cannot be read, or is no XSpace.
    """
    try:
        return _timeline(read_space(path, WANTED))
    except (OSError, ValueError, OverflowError) as error:
        raise ProfileError(f"{path} cannot be read as a profile of XLA: {error}") from None


def _timeline(space: Space) -> Timeline:
    capture = _Capture(_environment(space))
    for plane in space.planes:
        device = _DEVICE.match(plane.name)
        if device is not None:
            capture.devices[int(device[2])] = f"{device[1]} {device[2]}"
            _add_device(capture, plane, int(device[2]))
        elif plane.name.startswith("/host:"):
            _add_host(capture, plane)
    return capture.timeline(space)


@dataclass(slots=True)
class _Capture:
    """The rows so far: columns, a piece for each line."""

    environment: dict[str, int]
    pieces: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    threads: list[str] = field(default_factory=list)
    steps: set[str] = field(default_factory=set)
    left_out: dict[str, int] = field(default_factory=dict)

    def add(self, line: Line, names: dict[int, str], rows: NDArray[Any], **columns: NDArray[Any] | int) -> None:
        """Add some rows of a line; a column that is one number holds for all of them."""
        base = 0 if line.timestamp_ns > SINCE_1970_NS else self.environment.get("profile_start_time", 0)
        start = line.timestamp_ns + base + line.offset_ps[rows] // 1000
        self._append("start", start)
        self._append("end", line.timestamp_ns + base + (line.offset_ps[rows] + line.duration_ps[rows]) // 1000)
        self._append("name", self._numbered(line.event[rows], names))
        for key in ("kind", "device", "stream", "process", "thread", "correlation", "bytes"):
            self._append(key, np.broadcast_to(columns.get(key, NONE), start.shape))

    def note(self, what: str, number: int) -> None:
        """Count what was left out."""
        if number:
            self.left_out[what] = self.left_out.get(what, 0) + number

    def timeline(self, space: Space) -> Timeline:
        """The whole of it."""
        columns = {key: np.concatenate(pieces) for key, pieces in self.pieces.items()}
        columns = columns or {"start": np.zeros(0, np.int64), "end": np.zeros(0, np.int64)}
        start, stop = self.environment.get("profile_start_time"), self.environment.get("profile_stop_time")
        known = start is not None or bool((columns["start"] > SINCE_1970_NS).any())
        return Timeline.of_columns(
            "xprof",
            tuple(self.names),
            columns,
            span=(start, stop) if start and stop else None,
            alignment=Alignment(CLOCK, reason="nothing tells how far that clock is from the client's")
            if known
            else None,
            devices=self.devices,
            facts={"tool": "xprof", "hosts": space.hosts, "threads": self.threads, "step_names": sorted(self.steps)},
            notes=(*space.problems, *(f"{number} {what} left out" for what, number in self.left_out.items())),
        )

    def _append(self, key: str, column: NDArray[Any]) -> None:
        self.pieces.setdefault(key, []).append(column)

    def _numbered(self, events: Ints, names: dict[int, str]) -> NDArray[np.int32]:
        ids, inverse = np.unique(events, return_inverse=True)
        numbers = [self.names.setdefault(names.get(int(each), f"event {each}"), len(self.names)) for each in ids]
        return np.array(numbers, np.int32)[inverse]


def _environment(space: Space) -> dict[str, int]:
    """When the capture began and ended, in ns since 1970, as the profiler's server wrote it."""
    stats = next((plane.stats for plane in space.planes if plane.name == "Task Environment"), {})
    return {key: int(stats[key]) for key in ("profile_start_time", "profile_stop_time") if key in stats}


def _add_device(capture: _Capture, plane: Plane, device: int) -> None:
    """Add a device's streams as CUPTI recorded them (GPU), or else the operations that XLA derived (TPU)."""
    streams = [line for line in plane.lines if _STREAM.match(line.name)]
    operations = [line for line in plane.lines if line.name in ("XLA Ops", "Async XLA Ops")]
    for number, line in enumerate(streams or operations):
        found = _STREAM.match(line.name)
        _add_operations(capture, plane, line, _timed(line), device, int(found[1]) if found else number)
    for line in plane.lines:
        if line.name == "XLA Modules":
            capture.add(line, plane.names, _timed(line), kind=int(Kind.RANGE), device=device)


def _add_operations(capture: _Capture, plane: Plane, line: Line, rows: Ints, device: Any, stream: int) -> None:
    leaves = _leaves(line, rows)
    capture.note("operations that only contain others", rows.size - leaves.size)
    capture.add(
        line,
        plane.names,
        leaves,
        kind=_per_name(line, leaves, plane.names, _kind_of),
        device=device if isinstance(device, int) else device[leaves],
        stream=stream,
        process=int(plane.stats.get("process_id", NONE)),
        correlation=_stat(line, "correlation_id")[leaves],
        bytes=_copied(line)[leaves],
    )


def _add_host(capture: _Capture, plane: Plane) -> None:
    for line in plane.lines:
        timed = _timed(line)
        device = _stat(line, "device_ordinal")
        marker = _per_name(line, timed, plane.names, lambda name: name.startswith(MARKERS)).astype(np.bool_)
        capture.note("markers and aggregates", line.event.size - timed.size + int(marker.sum()) + line.aggregates)
        on_device = _has(line, "hlo_op")[timed] & (device[timed] >= 0)
        _add_cpu_backend(capture, plane, line, timed[on_device & ~marker], device)
        _add_thread(capture, plane, line, timed[~on_device & ~marker])


def _add_cpu_backend(capture: _Capture, plane: Plane, line: Line, rows: Ints, device: Ints) -> None:
    if not rows.size:
        return
    for number in np.unique(device[rows]).tolist():
        capture.devices.setdefault(number, f"CPU {number} (threads of the host)")
    _add_operations(capture, plane, line, rows, device, len(capture.threads))


def _add_thread(capture: _Capture, plane: Plane, line: Line, rows: Ints) -> None:
    if plane.name == "/host:CUPTI":
        kind = _per_name(line, rows, plane.names, lambda name: Kind.SYNC if "Synchronize" in name else Kind.API)
    else:
        step = _has(line, "step_num")[rows]
        kind = np.where(step, np.int8(Kind.RANGE), np.int8(Kind.OPERATOR))
        capture.steps |= {plane.names.get(each, "") for each in np.unique(line.event[rows][step]).tolist()}
    capture.add(
        line,
        plane.names,
        rows,
        kind=kind,
        process=int(plane.stats.get("process_id", NONE)),
        thread=len(capture.threads),
        correlation=_stat(line, "correlation_id")[rows],
    )
    capture.threads.append(line.name)


def _timed(line: Line) -> Ints:
    """Rows that took time, in order of their starts; of those that start together the longest first."""
    rows = np.flatnonzero(line.duration_ps > 0)
    return rows[np.lexsort((-line.duration_ps[rows], line.offset_ps[rows]))]


def _leaves(line: Line, rows: Ints) -> Ints:
    """Those of the rows, sorted by start, that contain no other: a loop would hide the operations of its body."""
    start, end = line.offset_ps[rows], line.offset_ps[rows] + line.duration_ps[rows]
    contains = (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
    leaves: Ints = rows[~np.append(contains, False)[: rows.size]]
    return leaves


def _per_name(line: Line, rows: Ints, names: dict[int, str], of: Callable[[str], Any]) -> NDArray[np.int8]:
    """What `of` says of the name of each row, asked once a name."""
    ids, inverse = np.unique(line.event[rows], return_inverse=True)
    return np.array([int(of(names.get(int(each), ""))) for each in ids], np.int8)[inverse]


def _kind_of(name: str) -> Kind:
    if name in _COPIES:
        return _COPIES[name]
    return Kind.COMMUNICATION if _COLLECTIVE.search(name) else Kind.COMPUTE


def _has(line: Line, stat: str) -> NDArray[np.bool_]:
    mask = np.zeros(line.event.size, np.bool_)
    mask[list(line.stats.get(stat, {}))] = True
    return mask


def _stat(line: Line, stat: str) -> Ints:
    """An integer statistic of each event, `NONE` where it has none."""
    column = np.full(line.event.size, NONE, np.int64)
    found = line.stats.get(stat, {})
    column[list(found)] = [int(value) for value in found.values()]
    return column


def _copied(line: Line) -> Ints:
    """Bytes of each copy, which CUPTI's details tell as "size:4096"."""
    column = np.full(line.event.size, NONE, np.int64)
    for row, details in line.stats.get("memcpy_details", {}).items():
        if size := _BYTES.search(str(details)):
            column[row] = int(size[1])
    return column
