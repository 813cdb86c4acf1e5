"""What an export tells about itself, the devices and the capture."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from servebench.profile.readers.nsys.export import METADATA, Export
from servebench.profile.timeline import Alignment

MESSAGES = "DIAGNOSTIC_EVENT"
STARTED, STOPPED = "Profiling has started", "Profiling has stopped"
WARNING, ERROR = 2, 3  # of a diagnostic's severities
DEVICE_MEMORY = (2, 3, 5)  # of CUPTI's kinds of memory: on the device, an array, static; managed may lie anywhere
NOISE = re.compile(r"No (?!CUDA|NVTX)[\w ]+ events collected|IP samples|backtraces", re.I)
LOSS = re.compile(r"\b(drop|lost|discard|overflow|incomplete|missing)", re.I)
MOST_DIAGNOSTICS = 10
LONGEST_DIAGNOSTIC = 240


def read_facts(export: Export) -> dict[str, Any]:
    """Facts for a timeline: the tool, versions, peak of memory (a key only where the file knows it)."""
    table = next(name for name in METADATA if name in export.tables)
    stated = dict(export.select(table, "name", "value"))
    facts: dict[str, Any] = {"tool": stated.get("EXPORT_PRODUCT_NAME", "Nsight Systems")}
    facts["version"] = stated.get("EXPORT_PRODUCT_VERSION")
    facts["schema"] = stated.get("EXPORT_SCHEMA_VERSION")
    if peaks := peak_memory(export):
        facts["peak_memory_bytes"] = max(peaks.values())
        facts["peak_memory_by_device"] = {str(device): peak for device, peak in sorted(peaks.items())}
    return facts


def read_alignment(export: Export) -> tuple[int, Alignment | None]:
    """What to add to the file's instants to have CLOCK_REALTIME, ns; 0 and None where the file does not tell."""
    times = [at for (at,) in export.numbers("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") if at > 0]
    if not times:
        return 0, None
    return times[0], Alignment("the session's start as the file states it", reason="not bounded yet")


def read_devices(export: Export) -> dict[int, str]:
    """Name of each device by CUDA's number, which is not the tool's own."""
    rows = list(export.select("TARGET_INFO_GPU", "id", "cuDevice", "name"))
    return {own if cuda is None else cuda: name for own, cuda, name in rows if name}


def read_span(export: Export) -> tuple[int, int] | None:
    """When the capture started and stopped on the file's clock, as its messages tell; None where they do not."""
    at: dict[str, int] = {}
    for when, _, text in messages(export):
        at.update({message: when for message in (STARTED, STOPPED) if text.startswith(message)})
    return (at[STARTED], at[STOPPED]) if len(at) == 2 and at[STOPPED] > at[STARTED] else None


def read_diagnostics(export: Export) -> list[str]:
    """The tool's errors and warnings that bear on a timeline, errors first, and whatever tells of lost events."""
    found: dict[str, int] = {}
    for _, severity, text in messages(export):
        line = " ".join(text.split())[:LONGEST_DIAGNOSTIC]
        if LOSS.search(line) or (severity in (WARNING, ERROR) and not NOISE.search(line)):
            found[line] = max(severity, found.get(line, 0))
    lines = sorted(found, key=lambda line: found[line] != ERROR)
    more = [f"nsys: {len(lines) - MOST_DIAGNOSTICS} more messages"] if len(lines) > MOST_DIAGNOSTICS else []
    return [f"nsys: {line}" for line in lines[:MOST_DIAGNOSTICS]] + more


def messages(export: Export) -> list[tuple[int, int, str]]:
    """When the tool said what, and how grave it is."""
    if not export.has(MESSAGES, "text"):
        return []
    listed = ", ".join(export.integer(MESSAGES, column) for column in ("timestamp", "severity"))
    return export.database.execute(f"SELECT {listed}, ifnull(CAST(text AS TEXT), '') FROM {MESSAGES}").fetchall()


def peak_memory(export: Export) -> dict[int, int]:
    """Most bytes that were allocated on each device at once, of what was allocated within the capture."""
    columns = ("start", "memoryOperationType", "memKind", "deviceId", "globalPid", "address", "bytes")
    events = [row for row in export.numbers("CUDA_GPU_MEMORY_USAGE_EVENTS", *columns) if row[2] in DEVICE_MEMORY]
    held: dict[tuple[int, int], int] = {}
    now: dict[int, int] = defaultdict(int)
    peak: dict[int, int] = {}
    for _, freed, _, device, process, address, size in sorted(events):
        now[device] += -held.pop((process, address), 0) if freed else size
        if not freed:
            held[process, address] = size
        peak[device] = max(peak.get(device, 0), now[device])
    return peak
