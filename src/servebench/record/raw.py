"""Raw response bytes with the stamp of the read that brought them, for those who want to check the stamps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from servebench.record.stream import SUFFIX, StreamFile, read_batches

RAW = pa.schema(
    [
        pa.field("request", pa.int64(), nullable=False),
        pa.field("arrival_ns", pa.int64(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
FLUSH_BYTES = 256 << 10  # well under a millisecond of work, so that sockets are not kept waiting


class RawWriter:
    """Appends to ``raw/worker-<n>.arrows``, an Arrow IPC stream of (request, arrival_ns, data).

    Args:
        directory: made where needed.
        worker: number of the worker.
    """

    def __init__(self, directory: Path, worker: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._stream = StreamFile(directory / f"worker-{worker}{SUFFIX}", RAW)
        self._clear()

    def _clear(self) -> None:
        self._requests: list[int] = []
        self._stamps: list[int] = []
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, request: int, parts: Sequence[bytes], stamps: Sequence[int]) -> None:
        """Keep the body pieces of a request with the arrival (CLOCK_REALTIME ns) of each."""
        self._requests += [request] * len(parts)
        self._stamps += stamps
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        if self._requests:
            self._stream.write([self._requests, self._stamps, self._parts])
        self._clear()

    def close(self) -> None:
        """Flush and end the stream."""
        self.flush()
        self._stream.close()


def read_raw(directory: Path) -> pa.Table:
    """All raw pieces of a run (``RUNDIR/raw``), by worker; columns request, arrival_ns, data. A cut end is left out."""
    files = sorted(directory.glob(f"worker-*{SUFFIX}"))
    return pa.Table.from_batches([batch for path in files for batch in read_batches(path, RAW)], RAW)
