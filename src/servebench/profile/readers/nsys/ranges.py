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
COLUMNS = ("eventType", "start", "end", "globalTid", "text", "textId", "domainId")


def read_ranges(export: Export, names: Names, rows: Rows, stop: int | None) -> list[str]:
    """Add ranges, and marks as ranges without length; to be called when all other rows are there.

    Args:
        stop: when the capture stopped, if the file tells: ranges still open end then, or at the last instant seen.

    Returns:
        notes: how many were still open.
    """
    if not export.has(TABLE):
        return []
    export.require(TABLE, *COLUMNS[:5])
    domains, open_number = domains_of(export), 0
    stop = last_instant(export, rows, stop)
    for events in batches(export):
        start, end, thread = (np.array([event[place] for event in events], np.int64) for place in (1, 2, 3))
        still_open = end == NONE
        open_number += int(np.count_nonzero(still_open))
        where = {"process": process_of(thread), "thread": thread_of(thread)}
        name = named(events, names, domains)
        rows.add("ranges", start, np.where(still_open, stop, end), kind=Kind.RANGE, name=name, **where)
    note = f"{open_number} NVTX ranges were still open when the capture ended, and are taken to end there"
    return [note] if open_number else []


def batches(export: Export) -> Iterator[list[tuple[Any, ...]]]:
    """Marks and ranges, some at a time: `COLUMNS`, whose text is that of the strings' table where there is none."""
    number = "textId" if export.has(TABLE, "textId") else "NULL"
    domain = "domainId" if export.has(TABLE, "domainId") else "NULL"
    found = export.database.execute(
        f'SELECT eventType, start, CASE eventType WHEN {MARK} THEN start ELSE ifnull("end", {NONE}) END, '
        f"ifnull(globalTid, {NONE}), ifnull(text, (SELECT value FROM StringIds WHERE id = {number})), "
        f"ifnull({domain}, 0) FROM {TABLE} WHERE eventType IN ({MARK}, {PUSH_POP}, {START_END})"
    )
    while events := found.fetchmany(BLOCK_ROWS):
        yield events


def named(events: list[tuple[Any, ...]], names: Names, domains: dict[tuple[int, int], str]) -> Indices:
    """The name of each event: its text, after its domain's name where it has one."""
    texts = (domains.get((thread >> 24 & BITS, domain), "") + (text or UNKNOWN) for *_, thread, text, domain in events)
    return np.fromiter(map(names.index, texts), np.int32, len(events))


def domains_of(export: Export) -> dict[tuple[int, int], str]:
    """What to put before a text, by process and number of the domain."""
    events = [event for event in export.select(TABLE, *COLUMNS) if event[0] == DOMAIN]
    texts = dict(export.select("StringIds", "id", "value")) if any(event[4] is None for event in events) else {}
    return {
        (thread >> 24 & BITS, domain): f"{text or texts.get(number, UNKNOWN)}:"
        for _, _, _, thread, text, number, domain in events
        if thread is not None and domain is not None
    }


def last_instant(export: Export, rows: Rows, stop: int | None) -> int:
    """When ranges end that never did."""
    (last,) = export.database.execute(f'SELECT max(max(start), max(ifnull("end", start))) FROM {TABLE}').fetchone()
    return max(instant for instant in (stop, rows.last, last, 0) if instant is not None)
