"""Makes SQLite exports as Nsight Systems writes them, of three generations of its schema, with a truth that is known.

Instants are ns after the session's start. A file is described by what happened:

    file = NsysFile("3.13")
    file.kernel("gemm<float>(int)", 1_000, 5_000, launch=(200, 400))       # an API call from 200 to 400 launched it
    file.copy("HtoD", 5_000, 6_000, size=4096, stream=8, launch=(500, 700))
    file.graph_launch((7_000, 7_500), [("attn", 8_000, 9_000), ("mlp", 9_000, 9_500)], graph=3)
    file.api("cudaStreamSynchronize_v3020", 7_600, 9_600)
    file.range("execute_context_0(0)_generation_8(8)", 100, 9_700)
    path = file.write(tmp_path / "capture.sqlite")

`GENERATIONS` is what a test is parametrised with. Device rows belong to process `PID`, host rows to its thread `TID`,
unless told otherwise; each launch gets the next correlation id of its process, which begin at 1 in every process.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsys_schema import DIRECTIONS, ENUMS, GENERATIONS, SYNC_TYPES, Column, Generation, columns

__all__ = ["EPOCH_NS", "GENERATIONS", "PID", "TID", "NsysFile"]

PID, TID = 4_242, 4_250
EPOCH_NS = 1_790_000_000_000_000_000  # when the session started, on CLOCK_REALTIME
STREAM = 7
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
Call = tuple[int, int]


def global_pid(pid: int) -> int:
    """A process as the files write it."""
    return 1 << 48 | pid << 24


def global_tid(pid: int, tid: int) -> int:
    """A thread as the files write it."""
    return global_pid(pid) | tid


@dataclass
class NsysFile:
    """One export. Every method adds what one thing leaves in the file; those that launch return the correlation id.

    Attributes:
        generation: of the schema: "2.9", "3.0" or "3.13".
        epoch_ns: the session's start; None leaves its table out.
        strings: number of each.
        correlations: the last correlation id of each process.
        rows: of each table, by the columns of the newest schema; those that a generation lacks are not written.
    """

    generation: str = "3.13"
    epoch_ns: int | None = EPOCH_NS
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    strings: dict[str, int] = field(default_factory=dict)
    correlations: Counter[int] = field(default_factory=Counter)

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        device: int = 0,
        stream: int = STREAM,
        pid: int = PID,
        tid: int = TID,
        launch: Call | None = None,
        api: str = "cudaLaunchKernel_v7000",
        correlation: int | None = None,
        graph: int | None = None,
        node: int = 1,
    ) -> int:
        """Add a kernel; with `launch` also the call that launched it."""
        correlation = self._launched(pid, tid, launch, api, correlation)
        self._device(KERNEL, start, end, device, stream, pid, correlation, graph, node)
        short = self._string(name.split("(")[0].split("<")[0].split(" ")[-1])
        self.rows[KERNEL][-1] |= {"demangledName": self._string(name), "shortName": short, "mangledName": short}
        return correlation

    def copy(
        self,
        direction: str,
        start: int,
        end: int,
        *,
        size: int = 1 << 20,
        device: int = 0,
        stream: int = STREAM,
        pid: int = PID,
        tid: int = TID,
        launch: Call | None = None,
        api: str = "cudaMemcpyAsync_v3020",
        correlation: int | None = None,
        graph: int | None = None,
        node: int = 1,
    ) -> int:
        """Add a copy of `size` bytes; `direction` is a key of `DIRECTIONS`: HtoD, DtoH, DtoD, PtoP, HtoH, ..."""
        correlation = self._launched(pid, tid, launch, api, correlation)
        self._device("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, device, stream, pid, correlation, graph, node)
        self.rows["CUPTI_ACTIVITY_KIND_MEMCPY"][-1] |= {"bytes": size, "copyKind": DIRECTIONS[direction]}
        return correlation

    def fill(
        self,
        start: int,
        end: int,
        *,
        size: int = 4096,
        device: int = 0,
        stream: int = STREAM,
        pid: int = PID,
        tid: int = TID,
        launch: Call | None = None,
        correlation: int | None = None,
        graph: int | None = None,
        node: int = 1,
    ) -> int:
        """Add a memset."""
        correlation = self._launched(pid, tid, launch, "cudaMemsetAsync_v3020", correlation)
        self._device("CUPTI_ACTIVITY_KIND_MEMSET", start, end, device, stream, pid, correlation, graph, node)
        self.rows["CUPTI_ACTIVITY_KIND_MEMSET"][-1]["bytes"] = size
        return correlation

    def graph_launch(
        self,
        launch: Call,
        kernels: Iterable[tuple[str, int, int]],
        *,
        graph: int = 1,
        device: int = 0,
        stream: int = STREAM,
        pid: int = PID,
        tid: int = TID,
    ) -> int:
        """Add a replay, traced by nodes: one call, and (name, start, end) of each kernel, under one correlation id."""
        correlation = self.api("cudaGraphLaunch_v10000", *launch, pid=pid, tid=tid)
        for node, (name, start, end) in enumerate(kernels):
            place: dict[str, Any] = {"device": device, "stream": stream, "pid": pid, "graph": graph, "node": node}
            self.kernel(name, start, end, correlation=correlation, **place)
        return correlation

    def whole_graph(
        self,
        start: int,
        end: int,
        *,
        graph: int = 1,
        device: int = 0,
        stream: int = STREAM,
        pid: int = PID,
        tid: int = TID,
        launch: Call | None = None,
    ) -> int:
        """Add a replay, traced as a whole."""
        correlation = self._launched(pid, tid, launch, "cudaGraphLaunch_v10000", None)
        self._device("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start, end, device, stream, pid, correlation, None, 0)
        self.rows["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"][-1] |= {"graphId": graph, "graphExecId": graph + 1}
        return correlation

    def api(self, name: str, start: int, end: int, *, pid: int = PID, tid: int = TID) -> int:
        """Add a call of the CUDA runtime or driver that launches nothing on the device."""
        return self._launched(pid, tid, (start, end), name, None)

    def sync(
        self,
        start: int,
        end: int,
        *,
        what: str = "stream",
        device: int = 0,
        stream: int = STREAM,
        pid: int = PID,
        correlation: int | None = None,
    ) -> None:
        """Add CUPTI's own record of a wait ("event", "stream_wait", "stream" or "context"), beside the call's row."""
        correlation = self._launched(pid, TID, None, "", correlation)
        self._device("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start, end, device, stream, pid, correlation, None, 0)
        self.rows["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"][-1]["syncType"] = SYNC_TYPES[what]

    def range(
        self,
        text: str,
        start: int,
        end: int | None,
        *,
        registered: bool = False,
        push_pop: bool = True,
        domain: int = 0,
        pid: int = PID,
        tid: int = TID,
        end_tid: int | None = None,
    ) -> None:
        """Add an NVTX range: its text inline or `registered` (by id), of push and pop or of start and end."""
        thread = global_tid(pid, tid)
        ends = {"endGlobalTid": None if end_tid is None else global_tid(pid, end_tid)}
        self._nvtx(59 if push_pop else 60, start, end, text, registered, globalTid=thread, domainId=domain, **ends)

    def mark(self, text: str, at: int, *, registered: bool = False, pid: int = PID, tid: int = TID) -> None:
        """Add an NVTX mark."""
        self._nvtx(34, at, None, text, registered, globalTid=global_tid(pid, tid), domainId=0)

    def domain(self, name: str, number: int, at: int = 0, *, pid: int = PID, tid: int = TID) -> None:
        """Name an NVTX domain."""
        self._nvtx(75, at, None, name, False, globalTid=global_tid(pid, tid), domainId=number)

    def system(self, name: str, start: int, end: int, *, pid: int = PID, tid: int = TID) -> None:
        """Add a call of the operating system's runtime."""
        names = {"nameId": self._string(name), "globalTid": global_tid(pid, tid), "eventClass": 27, "nestingLevel": 0}
        self.rows["OSRT_API"].append({"start": start, "end": end, **names})

    def overhead(self, name: str, start: int, end: int, *, pid: int = PID, tid: int = TID) -> None:
        """Add time that the profiler took."""
        names = {"nameId": self._string(name), "globalTid": global_tid(pid, tid)}
        self.rows["PROFILER_OVERHEAD"].append({"start": start, "end": end, **names})

    def memory(
        self,
        at: int,
        size: int,
        *,
        free: bool = False,
        kind: int = 2,
        address: int = 0x7F00_0000_0000,
        device: int = 0,
        pid: int = PID,
    ) -> None:
        """Add an allocation at an address of device memory (`kind` 2; 1 is pinned on the host), or its end."""
        event = {"bytes": size, "memoryOperationType": int(free), "memKind": kind, "address": address}
        where = {"globalPid": global_pid(pid), "deviceId": device}
        self.rows["CUDA_GPU_MEMORY_USAGE_EVENTS"].append({"start": at, **where, **event})

    def diagnostic(self, text: str, *, severity: int = 2, at: int = 0) -> None:
        """Add a message of the tool's: severity 1 is information, 2 a warning, 3 an error."""
        how = {"timestamp": at, "timestampType": 1, "source": 2, "severity": severity, "globalPid": global_pid(PID)}
        self.rows["DIAGNOSTIC_EVENT"].append({"text": text, **how})

    def gpu(self, device: int, name: str, *, row: int | None = None) -> None:
        """Name a device: `device` is CUDA's number, `row` the tool's own, which may differ."""
        self.rows["TARGET_INFO_GPU"].append({"id": device if row is None else row, "cuDevice": device, "name": name})

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        generation = GENERATIONS[self.generation]
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as database, database:
            self._write_facts(database, generation)
            for table in generation.tables():
                if self.rows.get(table) or not generation.lazy:
                    insert(database, table, generation.columns(table), self.rows.get(table, []))
        return path

    def _write_facts(self, database: sqlite3.Connection, generation: Generation) -> None:
        insert(database, "StringIds", "id# value!$", [{"id": key, "value": text} for text, key in self.strings.items()])
        for table, facts in generation.facts().items():
            insert(database, table, "name!$ value$", [{"name": key, "value": value} for key, value in facts.items()])
        if self.epoch_ns is not None:
            insert(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs utcTime$", [{"utcEpochNs": self.epoch_ns}])
        for table, labels in ENUMS.items() if generation.enums else ():
            insert(database, table, "id# label$", [{"id": key, "label": label} for key, label in labels.items()])
        # an environment need not be UTF-8, and a capture's never quite is; the details have another origin of time
        insert(database, "TARGET_INFO_SYSTEM_ENV", "nameEnum! value$", [{"nameEnum": 610}])
        database.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = CAST(? AS TEXT)", (b"A=\xff\xfe",))
        details = {"duration": 2_269_032_514, "startTime": 1_170_854_025, "stopTime": 3_439_886_539}
        insert(database, "ANALYSIS_DETAILS", "globalVid! duration! startTime! stopTime!", [details])

    def _launched(self, pid: int, tid: int, launch: Call | None, api: str, correlation: int | None) -> int:
        if correlation is None:
            self.correlations[pid] += 1
            correlation = self.correlations[pid]
        if launch is not None:
            call = {"start": launch[0], "end": launch[1], "correlationId": correlation, "nameId": self._string(api)}
            driver = not api.startswith("cuda")
            self.rows[RUNTIME].append({**call, "globalTid": global_tid(pid, tid), "eventClass": int(driver)})
        return correlation

    def _device(
        self,
        table: str,
        start: int,
        end: int,
        device: int,
        stream: int,
        pid: int,
        correlation: int,
        graph: int | None,
        node: int,
    ) -> None:
        where = {"deviceId": device, "contextId": 1, "streamId": stream, "globalPid": global_pid(pid)}
        nodes = {} if graph is None else {"graphId": graph, "graphNodeId": graph << 32 | node}
        self.rows[table].append({"start": start, "end": end, "correlationId": correlation, **where, **nodes})

    def _nvtx(self, kind: int, start: int, end: int | None, text: str, registered: bool, **values: Any) -> None:
        words = {"textId": self._string(text)} if registered else {"text": text}
        self.rows["NVTX_EVENTS"].append({"start": start, "end": end, "eventType": kind, **words, **values})

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)


def insert(
    database: sqlite3.Connection, table: str, shape: str | tuple[Column, ...], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Create a table and fill it: what a row leaves out is NULL, or 0 where it must not be."""
    shape = columns(shape) if isinstance(shape, str) else shape
    database.execute(f"CREATE TABLE {table} ({', '.join(column.declaration for column in shape)})")
    values = ([row.get(column.name, 0 if column.required else None) for column in shape] for row in rows)
    database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(shape))})", values)
