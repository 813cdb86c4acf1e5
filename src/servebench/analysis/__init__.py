"""Pure functions over a run: metrics, populations, quantiles, the verdict, and the summary made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servebench.errors import ExitCode

if TYPE_CHECKING:
    from servebench.analysis.data import RunSource

__all__ = ["exit_code", "summarize"]


def summarize(run: RunSource) -> dict[str, Any]:
    """The document of summary.json for a run directory, finished or not.

    Raises:
        ValueError: the directory's tables contradict each other, or its plan does not match its hash.
    """
    from servebench.analysis.summary import summarize as compute  # numpy and pyarrow only when a run is analysed

    return compute(run)


def exit_code(summary: dict[str, Any]) -> ExitCode:
    """What the process exits with for a summary: 3 INVALID, 4 an objective missed, else 0."""
    return ExitCode(summary["verdict"]["exit_code"])
