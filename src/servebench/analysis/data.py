"""A run as numpy columns: what every function of the analysis works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from servebench.record.columns import Outcome, TokenSource
from servebench.workload.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = int(np.iinfo(np.int64).min)  # "did not happen" in an int64 column; never 0, which is a value
OUTCOMES = tuple(Outcome)
SOURCES = tuple(TokenSource)

NUMBERS = (
    "index",
    "worker",
    "class_id",
    "input_planned",
    "output_planned",
    "http_status",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "chunks",
    "first_chunk_tokens",
    "bytes_received",
    "coalesced_reads",
)
INSTANTS = (
    "scheduled",
    "slot",
    "dispatched",
    "connected",
    "sent",
    "first_token",
    "first_visible",
    "last_token",
    "end",
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class RunSource(Protocol):
    """What the analysis needs of a run directory."""

    @property
    def path(self) -> Path: ...
    @property
    def manifest(self) -> dict[str, Any]: ...
    @property
    def plan_path(self) -> Path: ...
    @property
    def incomplete(self) -> bool: ...
    def requests(self) -> pa.Table: ...
    def chunks(self) -> pa.Table: ...
    def telemetry(self) -> pa.Table: ...


@dataclass(frozen=True, slots=True)
class Requests:
    """The columns of requests.parquet, sorted by index; int64, `MISSING` where an event did not happen.

    Attributes:
        outcome: index into `OUTCOMES`.
        token_source: index into `SOURCES`, or −1.
        kernel_stamps: 1, 0, or −1 when nothing was received.
        finish_reason, error: as Python strings or None.
    """

    index: Ints
    worker: Ints
    class_id: Ints
    scheduled: Ints
    input_planned: Ints
    output_planned: Ints
    slot: Ints
    dispatched: Ints
    connected: Ints
    sent: Ints
    first_token: Ints
    first_visible: Ints
    last_token: Ints
    end: Ints
    http_status: Ints
    input_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    chunks: Ints
    first_chunk_tokens: Ints
    bytes_received: Ints
    coalesced_reads: Ints
    outcome: NDArray[np.int8]
    token_source: NDArray[np.int8]
    kernel_stamps: NDArray[np.int8]
    finish_reason: tuple[str | None, ...]
    error: tuple[str | None, ...]

    def __len__(self) -> int:
        return int(self.index.size)

    def ended(self, *outcomes: Outcome) -> Bools:
        """Mask of the requests that ended in one of `outcomes`."""
        return np.isin(self.outcome, [OUTCOMES.index(o) for o in outcomes])

    @property
    def ok(self) -> Bools:
        """Mask of the requests that ended well."""
        return self.ended(Outcome.OK)


@dataclass(frozen=True, slots=True)
class Chunks:
    """The received chunks, sorted by (request, arrival), as segments of one request each.

    Attributes:
        arrival: int64 ns, all chunks.
        tokens: int32, tokens of each chunk.
        starts: first chunk of each segment, and the number of chunks as a last entry (segments + 1).
        rows: row of `Requests` of each segment.
    """

    arrival: Ints
    tokens: NDArray[np.int32]
    starts: Ints
    rows: Ints

    def __len__(self) -> int:
        return int(self.arrival.size)

    @property
    def lengths(self) -> Ints:
        """Chunks in each segment."""
        return np.diff(self.starts)

    def of(self, wanted: Bools) -> Bools:
        """Mask over the chunks: those of the requests for which `wanted` (over the rows of `Requests`) is true."""
        return np.repeat(wanted[self.rows], self.lengths)

    def sum_tokens(self) -> Ints:
        """Tokens received of each segment."""
        return np.add.reduceat(self.tokens, self.starts[:-1], dtype=np.int64) if self.rows.size else self.starts[:0]


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one name of one device, in the order of time."""

    t: Ints
    value: NDArray[np.float64]

    def within(self, start: int, end: int) -> Series:
        """The samples with start ≤ t < end."""
        mask = (self.t >= start) & (self.t < end)
        return Series(self.t[mask], self.value[mask])


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything that the analysis reads of a run.

    Attributes:
        manifest: run.json.
        plan: None when the directory has none.
        telemetry: by (source, device, name).
        incomplete: the run did not come to its end in order.
    """

    manifest: Mapping[str, Any]
    plan: Plan | None
    requests: Requests
    chunks: Chunks
    telemetry: Mapping[tuple[str, str, str], Series]
    incomplete: bool

    @property
    def load(self) -> Mapping[str, Any]:
        """The scenario's `load` section as resolved."""
        return (self.manifest.get("scenario") or {}).get("load") or {}

    @property
    def closed(self) -> bool:
        """Whether the load was a closed loop, in which latencies count from `sent`."""
        return self.load.get("closed") is not None

    @property
    def origin(self) -> Ints:
        """Where `ttft` and `e2e` count from: `scheduled` in an open loop, `sent` in a closed one."""
        return self.requests.sent if self.closed else self.requests.scheduled

    def workers(self, name: str, source: str = "client") -> dict[str, Series]:
        """The series called `name` of every device of `source`."""
        return {d: s for (src, d, n), s in self.telemetry.items() if src == source and n == name}


def load(run: RunSource) -> RunData:
    """Read a run directory into columns. Raises ValueError when its plan does not match its hash."""
    import pyarrow as pa

    plan = Plan.read(run.plan_path) if run.plan_path.exists() else None
    requests = request_columns(run.requests())
    chunks = chunk_columns(run.chunks(), requests.index)
    series = telemetry_series(run.telemetry())
    pa.default_memory_pool().release_unused()  # the tables are gone, but their allocator keeps the memory
    return RunData(run.manifest, plan, requests, chunks, series, bool(run.incomplete))


def request_columns(table: pa.Table) -> Requests:
    """Turn a table of the REQUESTS schema into columns, sorted by index."""
    index = table["index"].to_numpy()
    if np.any(np.diff(index) < 0):
        table = table.take(np.argsort(index, kind="stable"))
    columns: dict[str, Any] = {name: _int64(table[name]) for name in NUMBERS}
    columns |= {name: _int64(table[f"{name}_ns"]) for name in INSTANTS}
    return Requests(
        outcome=_codes(table["outcome"], [str(o) for o in OUTCOMES]),
        token_source=_codes(table["token_source"], [str(s) for s in SOURCES]),
        kernel_stamps=_int64(table["kernel_stamps"].cast("int8"), -1).astype(np.int8),
        finish_reason=tuple(table["finish_reason"].to_pylist()),
        error=tuple(table["error"].to_pylist()),
        **columns,
    )


def chunk_columns(table: pa.Table, index: Ints) -> Chunks:
    """Turn a table of the CHUNKS schema, sorted by (request, arrival), into segments; `index` as in `Requests`.

    Raises ValueError when the table is not sorted or holds chunks of a request that has no row.
    """
    request = table["request"].to_numpy()
    starts = _segment_starts(request)
    firsts = request[starts[:-1]]
    del request
    rows = np.searchsorted(index, firsts)
    if np.any(np.diff(firsts) <= 0) or np.any(rows >= index.size) or np.any(index[rows] != firsts):
        raise ValueError("chunks are not sorted by request, or belong to requests without a record")
    arrival = table["arrival_ns"].to_numpy()
    _require_sorted(arrival, starts)
    return Chunks(arrival, table["tokens"].to_numpy(), starts, rows.astype(np.int64))


def telemetry_series(table: pa.Table) -> dict[tuple[str, str, str], Series]:
    """Group a table of the TELEMETRY schema by (source, device, name); samples without a value are left out."""
    words = [table[name].combine_chunks().dictionary_encode() for name in ("source", "device", "name")]
    group = np.zeros(len(table), np.int64)  # one number for each combination of the three words
    for word in words:
        group = group * len(word.dictionary) + word.indices.to_numpy()
    t, value = table["t_ns"].to_numpy(), table["value"].to_numpy(zero_copy_only=False)
    order = np.lexsort((t, group))
    edges = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    series: dict[tuple[str, str, str], Series] = {}
    for rows in (order[a:b] for a, b in pairwise(edges.tolist())):
        source, device, name = (str(word[int(rows[0])]) for word in words)
        known = rows[~np.isnan(value[rows])]
        series[source, device, name] = Series(t[known], value[known])
    return dict(sorted(series.items()))


def _int64(column: pa.ChunkedArray, missing: int = MISSING) -> Ints:
    import pyarrow.compute as pc

    wide = column.cast("int64")
    values = pc.fill_null(wide, missing) if wide.null_count else wide
    return np.asarray(values.to_numpy(), dtype=np.int64)


def _codes(column: pa.ChunkedArray, words: list[str]) -> NDArray[np.int8]:
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = pc.fill_null(pc.index_in(column, value_set=pa.array(words)), -1)
    unknown = pc.unique(column.filter(pc.and_(pc.equal(codes, -1), pc.is_valid(column)))).to_pylist()
    if unknown:
        raise ValueError(f"unknown word {unknown[0]!r}, expected one of {', '.join(words)}")
    return np.asarray(codes.to_numpy(), dtype=np.int8)


def _segment_starts(request: Ints) -> Ints:
    changes = np.flatnonzero(request[1:] != request[:-1]) + 1
    ends = [0] if request.size else []
    return np.concatenate([ends, changes, [request.size]]).astype(np.int64)


def _require_sorted(arrival: Ints, starts: Ints) -> None:
    backwards = np.flatnonzero(arrival[1:] < arrival[:-1]) + 1
    if not np.all(np.isin(backwards, starts)):
        raise ValueError("the chunks of a request are not sorted by arrival")
