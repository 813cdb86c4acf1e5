"""The journal: what a worker has recorded so far, on disk within a second, readable after `kill -9`.

Each worker appends to three Arrow IPC streams of its own, one per table. A flush is one encapsulated record batch per
table, given to the kernel by one `write`. There is no fsync: once `write` has returned, the bytes are in the page cache
and outlive the process; only a power cut could lose them, and an fsync would stall the event loop by milliseconds.

Chunks are written before the requests they belong to, so a request that can be read has all of its chunks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from servebench.record.columns import CHUNKS, REQUESTS, RequestRecord
from servebench.record.merge import ChunkIndex, owners, whole_requests
from servebench.record.stream import SUFFIX, TABLES, StreamFile, read_table

FLUSH_AFTER_NS = 1_000_000_000
FLUSH_REQUESTS = 64  # this many rows cost the event loop about 0.4 ms at once
FLUSH_CHUNKS = 8_192
FLUSH_SAMPLES = 4_096

_FOREIGN_TEXT = [REQUESTS.get_field_index(name) for name in ("error", "finish_reason")]
_NO_NS: NDArray[np.int64] = np.empty(0, np.int64)
_NO_COUNT: NDArray[np.int32] = np.empty(0, np.int32)
_NO_CHANNEL: NDArray[np.int8] = np.empty(0, np.int8)

_Sample = tuple[str, str, str, int, float | None]


class JournalWriter:
    """Appends what one worker saw; bounded memory, one flush a second.

    Args:
        directory: where the files go; it exists.
        worker: number of the worker, or a word for another writer ("parent").

    Arrays given to `add` are kept by reference until the next flush and must not be changed after the call.
    """

    def __init__(self, directory: Path, worker: int | str) -> None:
        stem = f"worker-{worker}" if isinstance(worker, int) else worker
        self._streams = {
            name: StreamFile(directory / f"{stem}.{name}{SUFFIX}", schema) for name, schema in TABLES.items()
        }
        self._closed = False
        self._clear(time.monotonic_ns())

    def _clear(self, now: int) -> None:
        self._records: list[RequestRecord] = []
        self._arrivals: list[NDArray[np.int64]] = []
        self._tokens: list[NDArray[np.int32]] = []
        self._channels: list[NDArray[np.int8]] = []
        self._bytes: list[NDArray[np.int32]] = []
        self._samples: list[_Sample] = []
        self._chunk_rows = 0
        self._flush_due = now + FLUSH_AFTER_NS

    def add(
        self,
        record: RequestRecord,
        arrival_ns: NDArray[np.int64] = _NO_NS,
        tokens: NDArray[np.int32] = _NO_COUNT,
        channel: NDArray[np.int8] = _NO_CHANNEL,
        nbytes: NDArray[np.int32] = _NO_COUNT,
    ) -> None:
        """Record a finished request and its token-bearing chunks; flushes when a bound of rows or time is passed.

        Args:
            record: the request; `record.chunks` is the length of the arrays.
            arrival_ns, tokens, channel, nbytes: one value a chunk, in the order of arrival.

        Raises:
            ValueError: the lengths disagree.
            JournalError: a flush was due and failed.
        """
        count = len(arrival_ns)
        if not (count == record.chunks == len(tokens) == len(channel) == len(nbytes)):
            raise ValueError(f"request {record.index}: {record.chunks} chunks stated, {count} arrivals given")
        self._records.append(record)
        if count:
            self._arrivals.append(arrival_ns)
            self._tokens.append(tokens)
            self._channels.append(channel)
            self._bytes.append(nbytes)
            self._chunk_rows += count
        if (
            self._chunk_rows >= FLUSH_CHUNKS
            or len(self._records) >= FLUSH_REQUESTS
            or time.monotonic_ns() >= self._flush_due
        ):
            self.flush()

    def sample(self, source: str, device: str, name: str, t_ns: int, value: float | None) -> None:
        """Record one telemetry value (CLOCK_REALTIME ns); None where the source had none."""
        self._samples.append((source, device, name, t_ns, value))
        if len(self._samples) >= FLUSH_SAMPLES:
            self.flush()

    def flush(self) -> None:
        """Hand all that is pending to the kernel; cheap when there is nothing. Call it at least once a second.

        Raises:
            JournalError: the disk refused; what was pending stays pending and the journal takes no more writes.
        """
        if self._chunk_rows:
            self._streams["chunks"].write(self._chunk_columns())
        if self._records:
            self._streams["requests"].write(_request_columns(self._records))
        if self._samples:
            self._streams["telemetry"].write(list(zip(*self._samples, strict=True)))
        self._clear(time.monotonic_ns())

    def _chunk_columns(self) -> list[NDArray[Any]]:
        streamed = [record for record in self._records if record.chunks]
        owners = np.fromiter((record.index for record in streamed), np.int64, len(streamed))
        counts = np.fromiter((record.chunks for record in streamed), np.int64, len(streamed))
        parts: tuple[list[Any], ...] = (self._arrivals, self._tokens, self._channels, self._bytes)
        return [np.repeat(owners, counts), *(np.concatenate(part) for part in parts)]

    def close(self) -> None:
        """Flush, end the streams and close the files; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            for stream in self._streams.values():
                stream.close()


def _request_columns(records: Sequence[RequestRecord]) -> list[Sequence[Any]]:
    columns: list[Sequence[Any]] = list(zip(*map(msgspec.structs.astuple, records), strict=True))
    for number in _FOREIGN_TEXT:
        columns[number] = [text if text is None else _encodable(text) for text in columns[number]]
    return columns


def _encodable(text: str) -> str:
    """Text from outside may hold lone surrogates, which UTF-8 cannot carry; they become "?"."""
    return text.encode("utf-8", "replace").decode()


def read_journals(directory: Path) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Read what the workers wrote, whether they ended well or were killed.

    Returns:
        requests sorted by index, chunks sorted by (request, arrival), telemetry sorted by time. Every request has all
        of its chunks and every chunk its request; rows of a pair torn apart by a lost end are left out.
    """
    chunks = ChunkIndex.of(directory)
    requests = whole_requests(read_table(directory, "requests"), chunks)
    rows = pa.Table.from_batches(list(chunks.batches(owners(requests))), CHUNKS)
    return requests, rows, read_table(directory, "telemetry").sort_by("t_ns")
