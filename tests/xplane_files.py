"""Makes .xplane.pb files as XLA's profiler writes them, from a description of what happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from servebench.profile.readers.wire_format import field as encoded

START = 1_800_000_000_000_000_000  # ns since 1970, of every capture
US = 1_000_000  # ps


@dataclass
class Event:
    """One event: its name, start and duration in us after the line's instant, statistics by name.

    One that stands for several (`occurrences`) has no start.
    """

    name: str
    start_us: float
    us: float
    stats: dict[str, int | str] = field(default_factory=dict)
    display: str = ""
    occurrences: int = 0


def write_space(
    path: Path,
    planes: dict[str, dict[str, list[Event]]],
    *,
    process: int = 7,
    absolute: bool = False,
    environment: bool = True,
    warnings: Iterable[str] = (),
) -> Path:
    """Write planes, each of lines of events. Line instants are 1000 ns after the start, or (absolute) after 1970."""
    space = b""
    for name, lines in planes.items():
        space += encoded(1, _plane(name, lines, START + 1000 if absolute else 1000, {"process_id": process}))
    if environment:
        times = {"profile_start_time": START, "profile_stop_time": START + 1_000_000_000}
        space += encoded(1, _plane("Task Environment", {}, 0, times))
    for warning in warnings:
        space += encoded(3, warning)
    path.write_bytes(space + encoded(4, "host-a"))
    return path


def _plane(name: str, lines: dict[str, list[Event]], timestamp: int, stats: dict[str, int | str]) -> bytes:
    events: dict[tuple[str, str], int] = {}
    kinds: dict[str, int] = {}
    plane = encoded(2, name)
    for line, happened in lines.items():
        plane += encoded(3, _line(line, happened, timestamp, events, kinds))
    own = b"".join(encoded(6, _stat(key, value, kinds)) for key, value in stats.items())
    for (full, display), number in events.items():
        metadata = encoded(1, number) + encoded(2, full) + (encoded(4, display) if display else b"")
        plane += encoded(4, encoded(1, number) + encoded(2, metadata))
    for kind, number in kinds.items():
        plane += encoded(5, encoded(1, number) + encoded(2, encoded(1, number) + encoded(2, kind)))
    return plane + own


def _line(
    name: str, happened: list[Event], timestamp: int, events: dict[tuple[str, str], int], kinds: dict[str, int]
) -> bytes:
    pieces = [encoded(1, 2**62 + 5) + encoded(2, name) + encoded(3, timestamp)]
    for each in happened:
        number = events.setdefault((each.name, each.display), len(events) + 1)
        when = encoded(5, each.occurrences) if each.occurrences else encoded(2, round(each.start_us * US))
        event = encoded(1, number) + when + encoded(3, round(each.us * US))
        event += b"".join(encoded(4, _stat(key, value, kinds)) for key, value in each.stats.items())
        pieces.append(encoded(4, event))
    return b"".join(pieces)


def _stat(key: str, value: int | str, kinds: dict[str, int]) -> bytes:
    """Strings as references, as the profiler writes those that repeat, except details, which do not."""
    number = kinds.setdefault(key, len(kinds) + 1)
    if isinstance(value, int):
        return encoded(1, number) + encoded(4, value)
    if key.endswith("details"):
        return encoded(1, number) + encoded(5, value)
    return encoded(1, number) + encoded(7, kinds.setdefault(value, len(kinds) + 1))
