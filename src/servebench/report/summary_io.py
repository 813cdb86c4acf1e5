"""summary.json and histograms.hlog: written from a run directory, byte for byte the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from servebench.analysis.data import RunData, load
from servebench.analysis.facts import gather
from servebench.analysis.profile.stored import summary_of
from servebench.analysis.summary import document
from servebench.errors import UsageError
from servebench.record.rundir import RunDir
from servebench.report.histograms import write_histograms


def write_reports(run: RunDir) -> dict[str, Any]:
    """See `servebench.report.write_reports`."""
    data = read(run)
    summary = document(gather(data), summary_of(run.path))
    try:
        _replace(run.summary_path, encode(summary))
        write_histograms(run.histogram_path, data, summary["phases"]["start_ns"], summary["phases"]["end_s"])
    except OSError as error:
        raise UsageError(f"cannot write the report into {run.path}: {error.strerror}") from error
    return summary


def read(run: RunDir) -> RunData:
    """The run as the analysis reads it; raises UsageError when its tables are damaged or contradict each other."""
    try:
        return load(run)
    except ValueError as error:
        raise UsageError(f"{run.path} cannot be analysed: {error}") from error


def encode(summary: dict[str, Any]) -> str:
    """The text of summary.json."""
    return json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write a file that is either the old or the whole new one."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
