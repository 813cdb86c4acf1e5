"""What people and machines read of a run: the console report, summary.json, the HDR log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servebench.record.rundir import RunDir

__all__ = ["write_reports"]


def write_reports(run: RunDir) -> dict[str, Any]:
    """Compute the summary of `run`, write summary.json and histograms.hlog beside its data, and return the summary.

    Raises:
        UsageError: the directory's tables are damaged or contradict each other, or it cannot be written to.
    """
    from servebench.report.summary_io import write_reports as write  # numpy and pyarrow only when a run is analysed

    return write(run)
