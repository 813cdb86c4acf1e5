"""Traces of several workers as one timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from servebench.profile.readers.kineto.trace import read_kineto
from servebench.profile.timeline import COLUMNS, NONE, Alignment, Timeline

PROCESSES = 1 << 22  # Linux has no larger process number


def read_ranks(paths: Sequence[Path]) -> Timeline:
    """Read the files of several workers of one capture, in the order of `paths`, into one timeline.

    Workers that each see their own accelerator as number 0 get numbers of their own; so do processes that have the
    same number in different containers. Beside files whose clock is known, those on an unknown one are left out.

    Raises:
        ValueError: as `read_kineto`; or no files.
        OSError: one cannot be read.
    """
    timelines = _on_one_clock([read_kineto(path) for path in paths])
    if not timelines:
        raise ValueError("there is no trace to read")
    return timelines[0] if len(timelines) == 1 else _merged(_told_apart(timelines))


def _on_one_clock(timelines: list[Timeline]) -> list[Timeline]:
    aligned = [each for each in timelines if each.alignment is not None]
    other = len(timelines) - len(aligned)
    if not aligned or not other:
        return timelines
    note = f"{other} of {len(timelines)} traces left out: nothing says what their instants count from"
    return [replace(aligned[0], notes=(*aligned[0].notes, note)), *aligned[1:]]


def _told_apart(timelines: list[Timeline]) -> list[Timeline]:
    devices: set[int] = set()
    processes: set[int] = set()
    apart = []
    for number, timeline in enumerate(timelines):
        timeline = _with_own_devices(timeline, devices)
        timeline = _with_own_processes(timeline, processes, number)
        devices |= set(timeline.devices)
        processes |= set(np.unique(timeline.process).tolist())
        apart.append(timeline)
    return apart


def _with_own_devices(timeline: Timeline, taken: set[int]) -> Timeline:
    if not taken & set(timeline.devices):
        return timeline
    fresh = (number for number in range(len(taken) + len(timeline.devices) + max(taken) + 1) if number not in taken)
    numbers = dict(zip(timeline.devices, fresh, strict=False))
    device = timeline.device.copy()
    for old, new in numbers.items():
        device[timeline.device == old] = new
    devices = {numbers[old]: name for old, name in timeline.devices.items()}
    told = ", ".join(f"{old} → {new}" for old, new in numbers.items())
    note = f"rank {timeline.facts.get('rank', '?')} numbers its devices as another rank does; renumbered: {told}"
    return replace(timeline, device=device, devices=devices, notes=(*timeline.notes, note))


def _with_own_processes(timeline: Timeline, taken: set[int], number: int) -> Timeline:
    if not taken & (set(np.unique(timeline.process).tolist()) - {NONE}):
        return timeline
    process = np.where(timeline.process == NONE, NONE, timeline.process + number * PROCESSES).astype(np.int32)
    note = f"file {number + 1} has process numbers of another file; {number} · 2²² was added to them"
    return replace(timeline, process=process, notes=(*timeline.notes, note))


def _merged(timelines: list[Timeline]) -> Timeline:
    numbers: dict[str, int] = {}
    for timeline in timelines:
        for name in timeline.names:
            numbers.setdefault(name, len(numbers))
    columns = {key: np.concatenate([getattr(each, key) for each in timelines]) for key in COLUMNS}
    columns["name"] = np.concatenate([_renamed(each, numbers) for each in timelines])
    alignment = _joint(timelines)
    return Timeline.of_columns(
        "torch",
        tuple(numbers),
        columns,
        span=(min(each.span[0] for each in timelines), max(each.span[1] for each in timelines)),
        alignment=alignment,
        devices={number: name for each in timelines for number, name in each.devices.items()},
        facts=_joint_facts([each.facts for each in timelines]),
        notes=tuple(dict.fromkeys(note for each in timelines for note in each.notes)),
    )


def _renamed(timeline: Timeline, numbers: dict[str, int]) -> Any:
    table = np.array([numbers[name] for name in timeline.names], np.int32)
    return table[timeline.name] if table.size else timeline.name


def _joint(timelines: list[Timeline]) -> Alignment | None:
    """The alignment of all; none where one is not aligned, or where their clocks are not the same one."""
    methods = {each.alignment.method if each.alignment else None for each in timelines}
    return timelines[0].alignment if len(methods) == 1 else None


def _joint_facts(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """The first one's facts; processes and what was left out of all; the largest peak."""
    joint = dict(facts[0]) | {"files_merged": len(facts)}
    joint.pop("rank", None)
    joint["processes"] = {number: name for each in facts for number, name in each.get("processes", {}).items()}
    peaks = [each["peak_memory_bytes"] for each in facts if "peak_memory_bytes" in each]
    return joint | ({"peak_memory_bytes": max(peaks)} if peaks else {})
