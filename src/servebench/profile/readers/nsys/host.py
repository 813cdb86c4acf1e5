"""What happened on the host: calls of CUDA and of the operating system, waits, and the profiler's own time."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.nsys.columns import Block, blocks
from servebench.profile.readers.nsys.export import Export
from servebench.profile.readers.nsys.ids import process_of, thread_of
from servebench.profile.readers.nsys.names import Names
from servebench.profile.readers.nsys.pages import Ints
from servebench.profile.readers.nsys.rows import Rows
from servebench.profile.timeline import Kind

CALL = ("start", "end", "globalTid", "nameId")
WAITS = re.compile(r"cu(da)?(Device|Stream|Event|Ctx|Thread)Synchronize")
STREAM_WAIT = 2  # of CUPTI's kinds of synchronisation: a stream waits then, not the host
SYNC_NAMES = {1: "event synchronize", 3: "stream synchronize", 4: "context synchronize"}


def read_host_rows(export: Export, names: Names, rows: Rows) -> None:
    """Add all that happened on the host, but for annotations."""
    read_calls(export, names, rows, Waits(export))
    for table, kind, what in (
        ("OSRT_API", Kind.SYSTEM, "calls of the system"),
        ("PROFILER_OVERHEAD", Kind.OVERHEAD, "spans of the profiler's"),
    ):
        for block in blocks(export, table, CALL):
            name, where = names.of_ids(block["nameId"]), place(block)
            real = ~names.which(is_marker)[name]
            rows.add(what, **{key: value[real] for key, value in where.items()}, kind=kind, name=name[real])


def is_marker(name: str) -> bool:
    """Whether a call is none, but tells when tracing began or ended: in a later capture of a session, long before."""
    return name.endswith(("profiling started", "profiling finished"))


def waits(name: str) -> bool:
    """Whether a call of CUDA waits for a device, by its name."""
    return WAITS.match(name) is not None


class Waits:
    """CUPTI's own records of waits. Nearly all repeat a call that has a row, and tell that it waited."""

    def __init__(self, export: Export) -> None:
        columns = ("start", "end", "globalPid", "correlationId", "syncType")
        found = list(blocks(export, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns))
        every = {
            key: np.concatenate([block[key] for block in found]) if found else np.empty(0, np.int64) for key in columns
        }
        host = every["syncType"] != STREAM_WAIT
        keys = joint(process_of(every["globalPid"]), every["correlationId"])[host]
        order = np.argsort(keys, kind="stable")
        self._rows = {key: column[host][order] for key, column in every.items()}
        self._keys = keys[order]
        self._met = np.zeros(keys.size, np.bool_)

    def among(self, process: Ints, correlation: Ints) -> NDArray[np.bool_]:
        """Which of these calls waited."""
        if not self._keys.size:
            return np.zeros(process.size, np.bool_)
        keys = joint(process, correlation)
        at = np.minimum(np.searchsorted(self._keys, keys), self._keys.size - 1)
        waited: NDArray[np.bool_] = self._keys[at] == keys
        self._met[at[waited]] = True
        return waited

    def add_rest(self, names: Names, rows: Rows) -> None:
        """Add those that no call was found for."""
        alone = ~np.isin(self._keys, self._keys[self._met])  # a call may have left several
        rest = {key: column[alone] for key, column in self._rows.items()}
        texts = [SYNC_NAMES.get(number, "synchronize") for number in rest["syncType"].tolist()]
        name = np.fromiter(map(names.index, texts), np.int32, len(texts))
        process, correlation = process_of(rest["globalPid"]), rest["correlationId"]
        times = {"start": rest["start"], "end": rest["end"]}
        rows.add("waits", **times, kind=Kind.SYNC, name=name, process=process, correlation=correlation)


def read_calls(export: Export, names: Names, rows: Rows, waits_met: Waits) -> None:
    """Add the calls of CUDA's runtime and driver, and the waits that have none."""
    for block in blocks(export, "CUPTI_ACTIVITY_KIND_RUNTIME", (*CALL, "correlationId")):
        where, name, correlation = place(block), names.of_ids(block["nameId"]), block["correlationId"]
        waited = names.which(waits)[name] | waits_met.among(where["process"], correlation)
        kind = np.where(waited, Kind.SYNC, Kind.API).astype(np.int8)
        rows.add("calls of CUDA", **where, kind=kind, name=name, correlation=correlation)
    waits_met.add_rest(names, rows)


def place(block: Block) -> dict[str, Ints]:
    """When, and in which thread."""
    thread = block["globalTid"]
    return {"start": block["start"], "end": block["end"], "process": process_of(thread), "thread": thread_of(thread)}


def joint(process: Ints, correlation: Ints) -> Ints:
    """One number for a process and a correlation id, which repeats across processes."""
    return process << 32 | correlation & 0xFFFFFFFF
