"""A trace of torch's profiler as a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from servebench.profile.readers.kineto.columns import Columns, Gathering
from servebench.profile.readers.kineto.kinds import ON_DEVICE, Category, kinds_of, replays_graph
from servebench.profile.readers.kineto.origin import UNKNOWN, find_origin
from servebench.profile.readers.kineto.stream import EventStream
from servebench.profile.timeline import NONE, Timeline

Span = tuple[float, float]
SLACK_US = 60e6  # a row may leave the capture by this much: kernels end late, but not by hours
UNSTATED_US = 12 * 3600e6  # where the file does not state the capture's begin and end: about the middle of its rows
ANY_GRAPH = 0  # of a graph whose number the file does not tell
OURS = ("schemaVersion", "deviceProperties", "baseTimeNanoseconds", "trace_id", "distributedInfo")


def read_kineto(path: Path) -> Timeline:
    """Read one file, JSON or gzipped JSON, of any version of torch.

    Python's own functions (`with_stack`) are left out: there are millions, and the operators tell the same in fewer
    words. Device rows get the process of the file's host rows, for a file is of one process. Kernels that a graph's
    launch started have graph `ANY_GRAPH` where the file does not number its graphs.

    Raises:
        ValueError: something else, a trace of something else, or an unfinished one; one line.
        OSError: it cannot be read.
    """
    stream, gathering = EventStream(path), Gathering()
    for events in stream:
        gathering.add(events)
    columns = gathering.columns()
    if not columns["ts"].size and not any(key in stream.facts for key in OURS):
        raise ValueError(f"{path} is no trace of torch's profiler, but of something else that writes Chrome's format")
    return _timeline(path, stream.facts, gathering, columns)


def _timeline(path: Path, said: dict[str, Any], gathering: Gathering, columns: Columns) -> Timeline:
    names = tuple(gathering.names)
    total = columns["ts"].size
    columns, stated = _sane(columns, gathering.stated)
    notes = _notes(gathering, total - columns["ts"].size)
    rows = _rows(columns, names)
    first, last = _span(rows, stated)
    base = said.get("baseTimeNanoseconds")
    origin = find_origin(first, last, base if isinstance(base, int) else None, path.stat().st_mtime_ns)
    if origin.alignment is None:
        notes.append(f"{path.name}: {UNKNOWN}")
    timeline = Timeline.of_columns(
        "torch",
        names,
        rows,
        span=(first, last),
        devices=_devices(said, rows),
        facts=_facts(said, gathering),
        notes=tuple(notes),
    )
    return timeline.shifted(origin.offset_ns, origin.alignment) if origin.alignment else timeline


def _sane(columns: Columns, stated: Span | None) -> tuple[Columns, Span | None]:
    """Leave out rows that cannot be: CUPTI's clocks overflow now and then, to durations of centuries.

    Returns:
        the rest, and the capture's begin and end where they are stated and the rows agree.
    """
    start, length = columns["ts"], columns["dur"]
    if not start.size:
        return columns, stated
    middle = float(np.median(start))
    if stated and not stated[0] - SLACK_US <= middle <= stated[1] + SLACK_US:
        stated = None
    begin, end = (
        (stated[0] - SLACK_US, stated[1] + SLACK_US) if stated else (middle - UNSTATED_US, middle + UNSTATED_US)
    )
    sane = (length >= 0) & (start >= begin) & (start + length <= end)
    return {key: column[sane] for key, column in columns.items()}, stated


def _rows(columns: Columns, names: tuple[str, ...]) -> Columns:
    """The columns of a timeline, in ns of the file's own clock."""
    start = np.rint(columns.pop("ts") * 1000).astype(np.int64)
    length = np.rint(columns.pop("dur") * 1000).astype(np.int64)
    category = columns.pop("category")
    columns |= {"start": start, "end": start + length, "kind": kinds_of(category, columns["name"], names)}
    _own(columns, np.isin(category, ON_DEVICE))
    _mark_graphs(columns, names, category)
    return columns


def _own(columns: Columns, on_device: Any) -> None:
    """Give device rows the process that most host rows are of."""
    host = columns["process"][~on_device]
    if host.size:
        numbers, counts = np.unique(host, return_counts=True)
        columns["process"][on_device] = numbers[counts.argmax()]


def _mark_graphs(columns: Columns, names: tuple[str, ...], category: Any) -> None:
    replaying = np.array([replays_graph(each) for each in names], np.bool_)
    launches = (category == Category.CALL) & replaying[columns["name"]] if names else category == Category.CALL
    kernels = np.isin(category, (Category.KERNEL, Category.COPY, Category.FILL)) & (columns["correlation"] != NONE)
    replayed = kernels & np.isin(columns["correlation"], columns["correlation"][launches])
    columns["graph"][replayed & (columns["graph"] == NONE)] = ANY_GRAPH


def _span(rows: Columns, stated: Span | None) -> tuple[int, int]:
    """Begin and end of the capture: as stated, and of its rows where those go further."""
    edges = [round(edge * 1000) for edge in stated] if stated else []
    if rows["start"].size:
        edges += [int(rows["start"].min()), int(rows["end"].max())]
    return (min(edges), max(edges)) if edges else (0, 0)


def _devices(said: dict[str, Any], rows: Columns) -> dict[int, str]:
    """The accelerators that have rows: a process sees all of its machine, and uses one."""
    named = [each for each in _properties(said) if isinstance(each.get("id"), int) and "name" in each]
    known = {each["id"]: each["name"] for each in named}
    used = np.unique(rows["device"][rows["device"] != NONE]).tolist()
    return {number: str(known.get(number, f"device {number}")) for number in used}


def _properties(said: dict[str, Any]) -> list[dict[str, Any]]:
    listed = said.get("deviceProperties")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _facts(said: dict[str, Any], gathering: Gathering) -> dict[str, Any]:
    group = said.get("distributedInfo")
    group = group if isinstance(group, dict) else {}
    facts = {
        "tool": "torch.profiler",
        "schema": said.get("schemaVersion"),
        "host": said.get("host_name"),
        "vllm_version": said.get("vllm_version"),
        "rank": group.get("rank"),
        "ranks": group.get("world_size"),
        "accelerators": [each.get("name") for each in _properties(said)],
        "processes": {str(number): name for number, name in gathering.processes.items() if number > 0},
        "left_out": dict(gathering.left_out),
        "peak_memory_bytes": gathering.peak_bytes,
    }
    return {key: value for key, value in facts.items() if value not in (None, {}, [])}


def _notes(gathering: Gathering, absurd: int) -> list[str]:
    notes = []
    if absurd:
        notes.append(
            f"{absurd} events were left out: they end before they begin, or lie a minute or more outside the capture"
        )
    if gathering.endless:
        notes.append(f"{gathering.endless} events were left out: they have no duration")
    return notes
