"""Arrow IPC stream files that are appended to a whole message at a time and read up to wherever they were cut."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from servebench.errors import ServebenchError, UsageError
from servebench.record.columns import CHUNKS, REQUESTS, TELEMETRY

TABLES = {"requests": REQUESTS, "chunks": CHUNKS, "telemetry": TELEMETRY}
SUFFIX = ".arrows"

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class JournalError(ServebenchError):
    """The journal cannot be written: the disk is full or has gone."""


def arrow_array(values: Sequence[Any] | NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Values as an Arrow array; a numpy array of `kind` is wrapped and not copied.

    `pa.array` would import pandas, where it is installed, at the first numpy array it meets: a pause of hundreds of
    milliseconds in the middle of a run.
    """
    if not isinstance(values, np.ndarray):
        return pa.array(values, kind)
    values = np.ascontiguousarray(values, kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class StreamFile:
    """One Arrow IPC stream file being written; raises JournalError where the disk refuses.

    Args:
        path: a file that does not exist yet.
        schema: its columns, without dictionaries (a dictionary would be one more message that can be lost).
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._broken = False
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(f"cannot create the journal {path.name}: {error.strerror}") from error
        self._append(schema.serialize())

    def write(self, columns: Sequence[Any]) -> None:
        """Append one record batch, given its columns in the order of the schema."""
        arrays = [arrow_array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._append(pa.record_batch(arrays, schema=self._schema).serialize())

    def _append(self, message: pa.Buffer | bytes) -> None:
        if self._broken:
            raise JournalError(f"the journal {self._path.name} failed before and takes no more")
        view = memoryview(message)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._broken = True  # half a message may be on disk; anything behind it could not be read
            raise JournalError(f"cannot write the journal {self._path.name}: {error.strerror}") from error

    def close(self) -> None:
        """Mark the end of the stream and close the file."""
        try:
            if not self._broken:
                self._append(_END_OF_STREAM)
        finally:
            os.close(self._fd)


def read_batches(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the whole batches of a stream file, memory-mapped; a cut or half-written end simply ends them.

    Raises:
        UsageError: the file is a whole Arrow stream of another schema.
    """
    if path.stat().st_size == 0:
        return
    with pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_stream(source)
        except (pa.ArrowInvalid, OSError):
            return
        if not reader.schema.equals(schema):
            raise UsageError(f"{path.name} has other columns than this version of servebench writes")
        while (batch := _next_batch(reader)) is not None:
            yield batch


def _next_batch(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    try:
        batch: pa.RecordBatch = reader.read_next_batch()
    except (StopIteration, pa.ArrowInvalid, OSError):
        return None
    return batch


def journal_files(directory: Path, table: str) -> list[Path]:
    """The stream files of one table, one a writer, sorted by name."""
    return sorted(directory.glob(f"*.{table}{SUFFIX}"))


def read_table(directory: Path, table: str) -> pa.Table:
    """All whole batches of one table of all writers, in the order of the files."""
    schema = TABLES[table]
    files = journal_files(directory, table)
    return pa.Table.from_batches([batch for path in files for batch in read_batches(path, schema)], schema)
