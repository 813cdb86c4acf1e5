"""The tables of Nsight Systems' SQLite exports that servebench reads, as three generations of the schema have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DIRECTIONS = {
    "Unknown": 0,
    "HtoD": 1,
    "DtoH": 2,
    "HtoA": 3,
    "AtoH": 4,
    "AtoA": 5,
    "AtoD": 6,
    "DtoA": 7,
    "DtoD": 8,
    "HtoH": 9,
    "PtoP": 10,
    "UVM_HtoD": 11,
    "UVM_DtoH": 12,
    "UVM_DtoD": 13,
}
SYNC_TYPES = {"unknown": 0, "event": 1, "stream_wait": 2, "stream": 3, "context": 4}
ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": {number: name for name, number in DIRECTIONS.items()},
    "ENUM_NSYS_EVENT_TYPE": {34: "NvtxMark", 59: "NvtxPushPopRange", 60: "NvtxStartEndRange", 75: "NvtxDomainCreate"},
    "ENUM_CUPTI_SYNC_TYPE": {number: name for name, number in SYNC_TYPES.items()},
}


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: as the file spells it.
        required: NOT NULL.
        kind: SQLite's type.
        key: whether it is the primary key.
    """

    name: str
    required: bool = False
    kind: str = "INTEGER"
    key: bool = False

    @property
    def declaration(self) -> str:
        """As CREATE TABLE has it."""
        return f'"{self.name}" {self.kind}{" NOT NULL" * self.required}{" PRIMARY KEY" * self.key}'


def columns(text: str) -> tuple[Column, ...]:
    """Columns from a line of words: `name!` is NOT NULL, `name$` TEXT, `name%` REAL, `name#` the primary key."""
    kinds = {"$": "TEXT", "%": "REAL"}
    return tuple(
        Column(
            word.rstrip("!$%#"),
            "!" in word or "#" in word,
            next((kind for mark, kind in kinds.items() if mark in word), "INTEGER"),
            "#" in word,
        )
        for word in text.split()
    )


_PLACE = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid"
_COPY = "deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause"
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": columns(
        f"{_PLACE} demangledName! shortName! mangledName launchType cacheConfig registersPerThread! gridX! gridY! "
        "gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! "
        "localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig graphId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": columns(f"{_PLACE} bytes! copyKind! {_COPY} graphNodeId virtualAddress name$"),
    "CUPTI_ACTIVITY_KIND_MEMSET": columns(f"{_PLACE} value! bytes! graphNodeId memKind"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": columns(f"{_PLACE} graphId! graphExecId!"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": columns(f"{_PLACE} syncType! eventId!"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": columns(
        "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId name$"
    ),
    "NVTX_EVENTS": columns(
        "start! end eventType! rangeId category color text$ globalTid endGlobalTid textId domainId uint64Value "
        "int64Value doubleValue% uint32Value int32Value floatValue% jsonTextId jsonText$"
    ),
    "OSRT_API": columns("start! end! eventClass! globalTid nameId! returnValue! nestingLevel callchainId!"),
    "PROFILER_OVERHEAD": columns("start! end! globalTid nameId! returnValue!"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": columns(
        "start! globalPid! deviceId! contextId! address! pc! bytes! memKind! memoryOperationType! name$ correlationId"
    ),
    "DIAGNOSTIC_EVENT": columns("timestamp! timestampType! source! severity! text!$ globalPid"),
    "TARGET_INFO_GPU": columns("vmId! id! name$ busLocation$ isDiscrete l2CacheSize totalMemory cuDevice"),
}


@dataclass(frozen=True)
class Generation:
    """What a generation of the schema is like.

    Attributes:
        tool, schema: versions.
        lazy: tables without rows are not created.
        enums: there are ENUM tables.
        metadata: name of the table with the export's facts.
        without: tables, and columns as TABLE.column or of any table, that it does not have.
    """

    tool: str
    schema: str
    lazy: bool
    enums: bool
    metadata: str
    without: frozenset[str]

    def tables(self) -> list[str]:
        """Names of the tables that it knows."""
        return [table for table in TABLES if table not in self.without]

    def columns(self, table: str) -> tuple[Column, ...]:
        """The columns of a table."""
        lacking = [column for column in TABLES[table] if {column.name, f"{table}.{column.name}"} & self.without]
        return tuple(column for column in TABLES[table] if column not in lacking)

    def facts(self) -> dict[str, dict[str, str]]:
        """What the tables of metadata hold."""
        exported = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            "EXPORT_PRODUCT_VERSION": self.tool,
            "EXPORT_SCHEMA_VERSION": self.schema,
        }
        captured = {"META_DATA_CAPTURE": {"DEVICE_ID": "Local (CLI)"}} if self.metadata == "META_DATA_EXPORT" else {}
        return {self.metadata: exported, **captured}


_OLD = frozenset({"greenContextId", "CUPTI_ACTIVITY_KIND_KERNEL.graphId"})  # a node's upper half is its graph then
GENERATIONS = {
    "2.9": Generation("2022.2.1.31", "2.9.1", False, False, "EXPORT_META_DATA", _OLD | {"DIAGNOSTIC_EVENT"}),
    "3.0": Generation("2022.4.2.1", "3.0.0", True, True, "EXPORT_META_DATA", _OLD),
    "3.13": Generation(
        "2024.5.1.113",
        "3.13.2",
        True,
        True,
        "META_DATA_EXPORT",
        frozenset({"CUPTI_ACTIVITY_KIND_RUNTIME.name", "CUPTI_ACTIVITY_KIND_MEMCPY.name"}),
    ),
}
