"""The recorded tables as they are, for whatever reads Parquet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from servebench.record.rundir import RunDir
from servebench.report.exports import OURS
from servebench.report.summary_io import encode

TABLES = ("requests", "chunks", "telemetry")


class ParquetExporter:
    """A folder: each table, the plan, and the figures, which say what the run was."""

    name = "parquet"
    help = OURS[name]

    def write(self, run: RunDir, summary: dict[str, Any], out: Path) -> list[Path]:
        """See `Exporter.write`; tables of a finished run are copied byte for byte."""
        out.mkdir()
        files = [_table(run, name, out / f"{name}.parquet") for name in TABLES]
        if run.plan_path.exists():
            files.append(Path(shutil.copyfile(run.plan_path, out / run.plan_path.name)))
        (out / "summary.json").write_text(encode(summary), encoding="utf-8")
        return [*files, out / "summary.json"]


def _table(run: RunDir, name: str, target: Path) -> Path:
    """Copy a table; while the run is not finalised there are only journals, from which it is made."""
    if (run.path / "requests.parquet").exists():  # the last of them to appear
        return Path(shutil.copyfile(run.path / target.name, target))
    import pyarrow.parquet as pq

    tables = {"requests": run.requests, "chunks": run.chunks, "telemetry": run.telemetry}
    pq.write_table(tables[name](), target, compression="zstd")
    return target


exporter = ParquetExporter()
