"""summary.json and histograms.hlog: written from a run directory, byte for byte the same each time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from servebench.record.rundir import RunDir


def write_reports(run: RunDir) -> dict[str, Any]:
    """Compute the summary of `run`, write summary.json and histograms.hlog beside its data, and return the summary.

    Raises:
        UsageError: the directory's tables are damaged or contradict each other, or it cannot be written to.
    """
    from servebench.errors import UsageError
    from servebench.report.histograms import write_histograms

    summary = compute(run)
    try:
        _replace(run.summary_path, encode(summary))
        write_histograms(run, summary)
    except OSError as error:
        raise UsageError(f"cannot write the report into {run.path}: {error.strerror}") from error
    return summary


def compute(run: RunDir) -> dict[str, Any]:
    """The summary of `run`, without writing anything; raises UsageError when its data contradict each other."""
    from servebench.analysis import summarize
    from servebench.errors import UsageError

    try:
        return summarize(run)
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
