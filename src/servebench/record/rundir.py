"""The run directory: one run, self-contained, from which every figure can be computed again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from servebench.errors import UsageError
from servebench.record.columns import CHUNKS, REQUESTS, TELEMETRY
from servebench.record.document import make_unused, read_document, replace_document, sync
from servebench.record.journal import read_journals
from servebench.record.merge import ROWS_AT_ONCE, ChunkIndex, owners, whole_requests
from servebench.record.redaction import clean
from servebench.record.stream import SUFFIX, read_table

MANIFEST_SCHEMA = 1
MANIFEST = "run.json"

Manifest = dict[str, Any]


class RunDir:
    """A run directory that exists; make one with `create` or `create_under`, or `open` one.

    Attributes:
        path: the directory.
        manifest: the content of run.json; change it, then `save_manifest`.
        secrets: what must not be written, wherever it turns up in the manifest.
    """

    secrets: tuple[str, ...] = ()

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def create(cls, path: Path | str, exist_ok: bool = False) -> RunDir:
        """Start a run in `path`, making the directory where needed.

        Args:
            path: the directory; it may exist as long as no run lies in it.
            exist_ok: open the run that lies there instead of refusing.

        Raises:
            UsageError: a run lies there already, or the directory cannot be made.
        """
        path = Path(path)
        if (path / MANIFEST).exists():
            if exist_ok:
                return cls.open(path)
            raise UsageError(f"{path} already holds a run; choose another --out directory")
        try:
            (path / "journal").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the run directory {path}: {error.strerror}") from error
        return cls._begin(path)

    @classmethod
    def create_under(cls, results: Path | str, name: str, when: float | None = None) -> RunDir:
        """Start a run in `results/<name>-YYYYMMDD-HHMMSS` (local time), with `-2`, `-3`, ... if that is taken.

        Args:
            results: folder of the runs, made where needed.
            name: of the scenario.
            when: seconds since the epoch; now by default.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(when))
        try:
            path = make_unused(Path(results), f"{name}-{stamp}")
            (path / "journal").mkdir()
        except OSError as error:
            raise UsageError(f"cannot make a run directory in {results}: {error.strerror}") from error
        return cls._begin(path)

    @classmethod
    def _begin(cls, path: Path) -> RunDir:
        run = cls(path, {"schema": MANIFEST_SCHEMA, "status": "running", "created_ns": time.time_ns()})
        run.save_manifest()
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunDir:
        """Open a run, finished or not.

        Raises:
            UsageError: there is no run, its run.json is damaged, or a newer version wrote it.
        """
        path = Path(path)
        return cls(path, read_document(path / MANIFEST, MANIFEST_SCHEMA, "run directory"))

    def save_manifest(self) -> None:
        """Replace run.json as a whole; after a crash at any instant the old or the new one is there.

        What may not be written (see `redaction`) is taken out of `manifest`, too, so that no report can repeat it.
        """
        shown = clean(self.manifest, self.secrets)
        self.manifest.clear()
        self.manifest.update(shown)
        replace_document(self.path / MANIFEST, self.manifest)

    @property
    def plan_path(self) -> Path:
        """Where the plan lies."""
        return self.path / "plan.parquet"

    @property
    def journal_dir(self) -> Path:
        """Where the workers write; gone once the run is finalised."""
        return self.path / "journal"

    @property
    def summary_path(self) -> Path:
        """Where the figures of the report lie."""
        return self.path / "summary.json"

    @property
    def histogram_path(self) -> Path:
        """Where the HDR interval log lies."""
        return self.path / "histograms.hlog"

    def log_path(self, name: str) -> Path:
        """Where the log of the process `name` ("server", "worker-0") lies."""
        return self.path / f"{name}.log"

    @property
    def incomplete(self) -> bool:
        """True unless the run came to its end and its journals were merged."""
        return self.manifest.get("status") != "complete" or bool(self._journals())

    def _journals(self) -> list[Path]:
        return sorted(self.journal_dir.glob(f"*{SUFFIX}"))

    @property
    def _finalised(self) -> bool:
        return self._table_path("requests").exists()  # the last of the three to appear

    def _table_path(self, table: str) -> Path:
        return self.path / f"{table}.parquet"

    def requests(self) -> pa.Table:
        """The requests, sorted by index; from the journals while the run is not finalised."""
        return self._read("requests")

    def chunks(self) -> pa.Table:
        """The chunks of all requests, sorted by (request, arrival)."""
        return self._read("chunks")

    def telemetry(self) -> pa.Table:
        """The samples, sorted by time."""
        return self._read("telemetry")

    def _read(self, table: str) -> pa.Table:
        if self._finalised:
            return _read_parquet(self._table_path(table))
        return dict(zip(("requests", "chunks", "telemetry"), read_journals(self.journal_dir), strict=True))[table]

    def finalise(self) -> None:
        """Merge the journals into Parquet and remove them; may be repeated after a crash. No worker writes any more.

        Chunks are streamed, so memory grows with the number of requests and not with the number of chunks.
        """
        if not self._finalised:
            self._merge()
        for path in self._journals():
            path.unlink()
        if self.journal_dir.exists() and not any(self.journal_dir.iterdir()):
            self.journal_dir.rmdir()

    def _merge(self) -> None:
        chunks = ChunkIndex.of(self.journal_dir)
        requests = whole_requests(read_table(self.journal_dir, "requests"), chunks)
        samples = read_table(self.journal_dir, "telemetry").sort_by("t_ns")
        _write(self._table_path("telemetry"), TELEMETRY, samples.to_batches())
        _write(self._table_path("chunks"), CHUNKS, chunks.batches(owners(requests)))
        _write(self._table_path("requests"), REQUESTS, requests.to_batches())


def _read_parquet(path: Path) -> pa.Table:
    """Read one file; unlike `read_table`, which would make columns of folders that are called "a=b"."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return file.read()
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: the run directory is not whole") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path} is damaged: {error}") from error


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a Parquet file that appears under its name only when it is whole and on the disk."""
    import pyarrow.parquet as pq

    scratch = path.with_name(f".{path.name}.new")
    with pq.ParquetWriter(
        scratch, schema, compression="zstd", use_dictionary=_texts(schema), **_encodings(schema)
    ) as out:
        for batch in batches:
            out.write_batch(batch, row_group_size=ROWS_AT_ONCE)
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    scratch.replace(path)
    sync(path.parent)


def _texts(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if pa.types.is_string(field.type)]


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    return {"column_encoding": {f.name: "DELTA_BINARY_PACKED" for f in schema if pa.types.is_integer(f.type)}}
