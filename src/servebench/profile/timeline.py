"""A timeline: what a profiler saw, as columns that no longer tell which profiler it was."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SCHEMA = 1
NONE = -1  # in an integer column: the row has no such thing


class Kind(IntEnum):
    """What a row is. The first group happens on a device, the second on the host."""

    COMPUTE = 0
    COMMUNICATION = auto()  # a collective: NCCL, RCCL, an XLA all-reduce
    COPY_HTOD = auto()
    COPY_DTOH = auto()
    COPY_DTOD = auto()
    COPY_PEER = auto()
    COPY_HTOH = auto()
    COPY_OTHER = auto()
    FILL = auto()  # memset
    GRAPH = auto()  # a whole CUDA graph, where the tool does not resolve its nodes
    API = auto()  # a driver or runtime call
    SYNC = auto()  # such a call, that waits for a device
    OPERATOR = auto()  # a framework's operator on the host; they nest
    RANGE = auto()  # an annotation: NVTX, record_function; they nest
    SYSTEM = auto()  # a call of the operating system's runtime
    OVERHEAD = auto()  # the profiler's own time


DEVICE_KINDS = tuple(kind for kind in Kind if kind < Kind.API)
COPY_KINDS = (Kind.COPY_HTOD, Kind.COPY_DTOH, Kind.COPY_DTOD, Kind.COPY_PEER, Kind.COPY_HTOH, Kind.COPY_OTHER)
COLUMNS: dict[str, type[np.generic]] = {
    "start": np.int64,
    "end": np.int64,
    "kind": np.int8,
    "name": np.int32,
    "device": np.int16,
    "stream": np.int32,
    "process": np.int32,
    "thread": np.int32,
    "correlation": np.int64,
    "bytes": np.int64,
    "graph": np.int64,
}


@dataclass(frozen=True, slots=True)
class Alignment:
    """How a timeline's instants were brought onto CLOCK_REALTIME, the clock of a run.

    Attributes:
        method: in words, such as "the session's start as the file states it".
        offset_ns: what was added to the file's instants beyond what the file itself states.
        residual_ns: how far an instant may still be off, at most; None where nothing bounds it, with a reason.
        reason: why there is no residual.
    """

    method: str
    offset_ns: int = 0
    residual_ns: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows of a capture, sorted by start. All columns have one length; integers are `NONE` where a row has none.

    Attributes:
        source: "nsys", "torch", "xprof", ...
        names: what the column `name` points into.
        start, end: int64 ns of CLOCK_REALTIME (of the file's own clock where `alignment` is None); end ≥ start.
        kind: int8, of `Kind`.
        name: int32, index into `names`.
        device: int16, number of the accelerator; `NONE` for what happened on the host.
        stream: int32, of the device.
        process: int32, process id of the host (of the launching process, for device rows).
        thread: int32, thread id; `NONE` for device rows.
        correlation: int64, joins the API row that launched something with its device rows, within a process.
        bytes: int64, of copies and fills.
        graph: int64, id of the CUDA graph that a kernel was replayed from.
        span: first and last instant of the capture, ns: what the tool states, else of the first and last row.
        alignment: None where the file's clock is not known to be the run's.
        devices: name of each accelerator by number.
        facts: what else the file says: "tool", "version", "schema", "peak_memory_bytes", ... JSON values only.
        notes: what a reader must know: events that the tool dropped, absurd durations left out, truncation.
    """

    source: str
    names: tuple[str, ...]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    device: NDArray[np.int16]
    stream: NDArray[np.int32]
    process: NDArray[np.int32]
    thread: NDArray[np.int32]
    correlation: NDArray[np.int64]
    bytes: NDArray[np.int64]
    graph: NDArray[np.int64]
    span: tuple[int, int]
    alignment: Alignment | None = None
    devices: dict[int, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.start.size)

    @classmethod
    def of_columns(
        cls,
        source: str,
        names: tuple[str, ...],
        columns: dict[str, NDArray[Any]],
        *,
        span: tuple[int, int] | None = None,
        alignment: Alignment | None = None,
        devices: dict[int, str] | None = None,
        facts: dict[str, Any] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Timeline:
        """Make a timeline of unsorted columns; those left out are `NONE` throughout ("start" and "end" must be there).

        Args:
            columns: by name, equal lengths, any integer type that fits `COLUMNS`.
            span: by default from the first start to the last end; (0, 0) without rows.

        Raises:
            ValueError: columns of unequal length, unknown ones, or an end before its start.
        """
        size = int(columns["start"].size)
        if unknown := columns.keys() - COLUMNS.keys():
            raise ValueError(f"unknown columns: {', '.join(sorted(unknown))}")
        if any(column.size != size for column in columns.values()):
            raise ValueError("columns of unequal length")
        if size and bool((columns["end"] < columns["start"]).any()):
            raise ValueError("a row ends before it starts")
        ordered = bool((columns["start"][1:] >= columns["start"][:-1]).all())
        order = slice(None) if ordered else np.argsort(columns["start"], kind="stable")
        arrays = {
            key: np.broadcast_to(kind(NONE), size)
            if key not in columns
            else columns[key][order].astype(kind, copy=False)
            for key, kind in COLUMNS.items()
        }
        if span is None:
            span = (int(arrays["start"][0]), int(arrays["end"].max())) if size else (0, 0)
        return cls(
            source,
            names,
            **arrays,
            span=span,
            alignment=alignment,
            devices=devices or {},
            facts=facts or {},
            notes=notes,
        )

    def take(self, rows: NDArray[Any] | slice) -> Timeline:
        """Return the timeline of some rows: a mask, or indices in ascending order. Its span stays."""
        return replace(self, **{key: getattr(self, key)[rows] for key in COLUMNS})

    def of_kind(self, *kinds: Kind) -> NDArray[np.bool_]:
        """Mask of the rows of `kinds`."""
        wanted = np.zeros(len(Kind), np.bool_)
        wanted[list(kinds)] = True
        mask: NDArray[np.bool_] = wanted[self.kind]
        return mask

    @property
    def on_device(self) -> NDArray[np.bool_]:
        """Mask of the rows that a device spent its time on."""
        mask: NDArray[np.bool_] = self.kind < Kind.API
        return mask

    def shifted(self, offset_ns: int, alignment: Alignment) -> Timeline:
        """Return it with every instant moved by `offset_ns`, and how that was found."""
        span = (self.span[0] + offset_ns, self.span[1] + offset_ns)
        return replace(self, start=self.start + offset_ns, end=self.end + offset_ns, span=span, alignment=alignment)

    def write(self, path: Path) -> None:
        """Store it as Parquet (zstd; instants delta-coded). Raises OSError."""
        import pyarrow.parquet as pq

        scratch = path.with_name(f".{path.name}.new")
        options = {key: "DELTA_BINARY_PACKED" for key, kind in COLUMNS.items() if kind is np.int64}
        try:
            pq.write_table(self._table(), scratch, compression="zstd", use_dictionary=False, column_encoding=options)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> Timeline:
        """Read what `write` stored.

        Raises:
            ValueError: the file is something else, or of a later version.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path) as file:
                head = json.loads((file.schema_arrow.metadata or {})[b"servebench.timeline"])
                known = head["schema"] == SCHEMA
                columns = {key: _column(file, key) for key in COLUMNS if known}
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise ValueError(f"{path} holds no timeline: {error}") from None
        if not known:
            raise ValueError(f"{path} was written by a later version of servebench")
        alignment = Alignment(**head["alignment"]) if head["alignment"] else None
        return cls(
            source=head["source"],
            names=tuple(head["names"]),
            **columns,
            span=(head["span"][0], head["span"][1]),
            alignment=alignment,
            devices={int(number): name for number, name in head["devices"].items()},
            facts=head["facts"],
            notes=tuple(head["notes"]),
        )

    def _table(self) -> pa.Table:
        import pyarrow as pa

        alignment = None
        if self.alignment is not None:
            alignment = {each.name: getattr(self.alignment, each.name) for each in fields(self.alignment)}
        head = {
            "schema": SCHEMA,
            "source": self.source,
            "names": self.names,
            "span": self.span,
            "alignment": alignment,
            "devices": self.devices,
            "facts": self.facts,
            "notes": self.notes,
        }
        table = pa.table({key: pa.array(getattr(self, key)) for key in COLUMNS})
        return table.replace_schema_metadata({"servebench.timeline": json.dumps(head, ensure_ascii=False)})


def _column(file: pq.ParquetFile, key: str) -> NDArray[Any]:
    """One column; by itself, for a capture may fill most of the memory. Raises KeyError where there is none."""
    column: NDArray[Any] = file.read(columns=[key])[key].to_numpy()
    return column.astype(COLUMNS[key], copy=False)
