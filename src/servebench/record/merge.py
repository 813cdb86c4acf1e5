"""Merging the workers' journals: chunk rows into the order (request, arrival), a bounded number at a time.

A worker writes the chunks of a request in one piece, so ordering 2 million chunks only means ordering 20 thousand
pieces: the index below holds where each piece lies, and the pieces are gathered from the memory-mapped files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from servebench.record.columns import CHUNKS
from servebench.record.stream import arrow_array, journal_files, read_batches

ROWS_AT_ONCE = 131_072

_Columns = list[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """Where the chunks of each request lie; one entry a request, sorted by request.

    Attributes:
        batches_of: the columns of every journalled batch, as arrays over the mapped file.
        request: int64, the request of each piece.
        batch: int32, index into `batches_of`.
        start, count: int64, first row and number of rows within the batch.
    """

    batches_of: list[_Columns]
    request: NDArray[np.int64]
    batch: NDArray[np.int32]
    start: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, directory: Path) -> ChunkIndex:
        """Index the chunk journals in `directory`."""
        files = journal_files(directory, "chunks")
        batches = [_arrays(batch) for path in files for batch in read_batches(path, CHUNKS) if batch.num_rows]
        starts = [_run_starts(columns[0]) for columns in batches]
        sizes = [len(columns[0]) for columns in batches]
        request = _joined([columns[0][start] for columns, start in zip(batches, starts, strict=True)])
        count = _joined([np.diff(start, append=size) for start, size in zip(starts, sizes, strict=True)])
        batch = np.repeat(np.arange(len(batches), dtype=np.int32), [len(start) for start in starts])
        order = np.argsort(request, kind="stable")
        return cls(batches, request[order], batch[order], _joined(starts)[order], count[order])

    def counts(self, requests: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of journalled chunks of each of `requests`; 0 where there is none."""
        if not len(self.request):
            return np.zeros(len(requests), np.int64)
        at = np.minimum(np.searchsorted(self.request, requests), len(self.request) - 1)
        return np.where(self.request[at] == requests, self.count[at], 0)

    def batches(self, requests: NDArray[np.int64], rows: int = ROWS_AT_ONCE) -> Iterator[pa.RecordBatch]:
        """Yield the chunks of `requests` (sorted) in the order (request, arrival), about `rows` rows at a time."""
        wanted = np.flatnonzero(np.isin(self.request, requests, assume_unique=True))
        ends = np.cumsum(self.count[wanted])
        while len(wanted):
            taken = max(1, int(np.searchsorted(ends, rows, side="right")))
            yield self._gather(wanted[:taken])
            wanted, ends = wanted[taken:], ends[taken:] - ends[taken - 1]

    def _gather(self, pieces: NDArray[np.intp]) -> pa.RecordBatch:
        where = [
            (self.batches_of[b], slice(s, s + n))
            for b, s, n in zip(
                self.batch[pieces].tolist(), self.start[pieces].tolist(), self.count[pieces].tolist(), strict=True
            )
        ]
        columns = [np.concatenate([batch[i][rows] for batch, rows in where]) for i in range(len(CHUNKS))]
        arrays = [arrow_array(column, field.type) for column, field in zip(_by_arrival(columns), CHUNKS, strict=True)]
        return pa.record_batch(arrays, schema=CHUNKS)


def whole_requests(requests: pa.Table, chunks: ChunkIndex) -> pa.Table:
    """The rows of `requests` whose chunks are all there, sorted by index.

    One that states none is whole whatever else there is: its worker died between the writing of its chunks and of
    itself, and the parent recorded the loss.
    """
    stated = requests["chunks"].to_numpy()
    found = chunks.counts(requests["index"].to_numpy())
    return requests.filter(pa.array((stated == found) | (stated == 0))).sort_by("index")


def owners(requests: pa.Table) -> NDArray[np.int64]:
    """The indices of the requests that state chunks, in their order."""
    streamed: NDArray[np.int64] = requests.filter(pa.array(requests["chunks"].to_numpy() > 0))["index"].to_numpy()
    return streamed


def _arrays(batch: pa.RecordBatch) -> _Columns:
    return [column.to_numpy(zero_copy_only=True) for column in batch.columns]


def _run_starts(request: NDArray[np.int64]) -> NDArray[np.int64]:
    """First row of each stretch of equal values."""
    return np.concatenate(([0], np.flatnonzero(np.diff(request)) + 1)).astype(np.int64)


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _by_arrival(columns: _Columns) -> _Columns:
    """Sort rows that are already grouped by request; nearly always they are in order, which costs one comparison."""
    request, arrival = columns[0], columns[1]
    if not np.any((np.diff(arrival) < 0) & (np.diff(request) == 0)):
        return columns
    order = np.lexsort((arrival, request))
    return [column[order] for column in columns]
