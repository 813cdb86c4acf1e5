"""Annotations that the program made with NVTX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from servebench.profile.readers.nsys.columns import BLOCK_ROWS
from servebench.profile.readers.nsys.export import Export
from servebench.profile.readers.nsys.ids import BITS, process_of, thread_of
from servebench.profile.readers.nsys.names import UNKNOWN, Indices, Names
from servebench.profile.readers.nsys.rows import Rows
from servebench.profile.timeline import NONE, Kind

TABLE = "NVTX_EVENTS"
MARK, PUSH_POP, START_END, DOMAIN = 34, 59, 60, 75
TAKEN = f"{MARK}, {PUSH_POP}, {START_END}"


def read_ranges(export: Export, names: Names, rows: Rows, stop: int | None) -> list[str]:
    """Add ranges, and marks as ranges without length; to be called when all other rows are there.

    Args:
        stop: when the capture stopped, if the file tells: ranges still open end then, or at the last instant seen.

    Returns:
        notes: how many were still open.
    """
    if not export.has(TABLE):
        return []
    export.require(TABLE, "eventType", "start", "end", "globalTid", "text")
    domains, open_number = domains_of(export), 0
    stop = last_instant(export, rows, stop)
    for events in batches(export):
        kind, start, end, thread = (np.array([event[place] for event in events], np.int64) for place in range(4))
        still_open = (end == NONE) & (kind != MARK)
        open_number += int(np.count_nonzero(still_open))
        end = np.where(kind == MARK, start, np.where(still_open, stop, end))
        where = {"process": process_of(thread), "thread": thread_of(thread)}
        rows.add("ranges", start, end, kind=Kind.RANGE, name=named(events, names, domains), **where)
    note = f"{open_number} NVTX ranges were still open when the capture ended, and are taken to end there"
    return [note] if open_number else []


def batches(export: Export) -> Iterator[list[tuple[Any, ...]]]:
    """Marks and ranges, some at a time: when, in which thread and domain, and the text, inline or registered."""
    listed = [export.integer(TABLE, column) for column in ("eventType", "start", "end", "globalTid", "domainId")]
    found = export.database.execute(
        f"SELECT {', '.join(listed)}, {text_of(export)} FROM {TABLE} WHERE eventType IN ({TAKEN})"
    )
    while events := found.fetchmany(BLOCK_ROWS):
        yield events


def text_of(export: Export) -> str:
    """SQL for the text of an event, wherever this generation keeps it."""
    return f"CAST(ifnull(text, (SELECT value FROM StringIds WHERE id = {export.integer(TABLE, 'textId')})) AS TEXT)"


def named(events: list[tuple[Any, ...]], names: Names, domains: dict[tuple[int, int], str]) -> Indices:
    """The name of each event: its text, after its domain's name where it has one."""
    texts = (domains.get((thread >> 24 & BITS, domain), "") + (text or UNKNOWN) for *_, thread, domain, text in events)
    return np.fromiter(map(names.index, texts), np.int32, len(events))


def domains_of(export: Export) -> dict[tuple[int, int], str]:
    """What to put before a text, by process and number of the domain."""
    thread, domain = (export.integer(TABLE, column) for column in ("globalTid", "domainId"))
    events = f"SELECT {thread}, {domain}, {text_of(export)} FROM {TABLE} WHERE eventType = {DOMAIN}"
    found = export.database.execute(events)
    return {(thread >> 24 & BITS, domain): f"{text or UNKNOWN}:" for thread, domain, text in found}


def last_instant(export: Export, rows: Rows, stop: int | None) -> int:
    """When ranges end that never did."""
    instants = ", ".join(f"max({export.integer(TABLE, column)})" for column in ("start", "end"))
    begun, ended = export.database.execute(f"SELECT {instants} FROM {TABLE}").fetchone()
    return max(instant for instant in (stop, rows.last, begun, ended, 0) if instant is not None)
