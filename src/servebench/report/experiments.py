"""The report of an experiment: what was asked and how many runs answered it, then what its kind has to show."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from servebench.errors import UsageError
from servebench.report.console import LEAST_WIDTH, WIDTH, stdout_console
from servebench.report.figures import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORTS = {"sweep": "sweep", "capacity": "capacity", "ab": "effects"}
WITH_PANEL = frozenset({"ab"})  # their reports begin with the verdict and end with the list of files


def render(document: Mapping[str, Any], path: Path | None = None) -> RenderableType:
    """The report of an experiment as something that rich prints.

    Args:
        document: the content of experiment.json, with its result.
        path: the experiment's directory.
    """
    return Group(*_parts(document, path))


def print_experiment(document: Mapping[str, Any], path: Path | None = None, console: Console | None = None) -> None:
    """Print the report to `console`, by default standard output; at most `WIDTH` columns wide."""
    console = console or stdout_console()
    console.print(render(document, path), width=max(LEAST_WIDTH, min(WIDTH, console.width)))


def write_files(document: Mapping[str, Any], path: Path) -> None:
    """Write anew what a kind of experiment keeps beside experiment.json: an A/B has its record.md.

    Raises:
        UsageError: the directory cannot be written to.
    """
    if document["kind"] != "ab":
        return
    from servebench.report.optimisation_record import write_record

    try:
        write_record(path, document)
    except OSError as error:
        raise UsageError(f"cannot write the record into {path}: {error.strerror}") from error


def _parts(document: Mapping[str, Any], path: Path | None) -> Iterator[RenderableType]:
    kind, result = str(document["kind"]), document.get("result")
    report = None if result is None else _report_of(kind)
    failed = [cell for cell in document["cells"] if cell["status"] != "done"]
    if report is None or kind not in WITH_PANEL:
        yield from _head(document)
    if failed:
        yield _failures(failed)
    if report is None:
        yield cells_table(document["cells"])
    else:
        yield report(result, path) if kind in WITH_PANEL else report(result)


def _head(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(f"{document['kind']} {document['name']}: {_counted(document)}", style="bold")
    if document.get("simulated"):
        yield Text("SIMULATED: figures of the simulated engine, not of a real server", style="bold yellow")


def _counted(document: Mapping[str, Any]) -> str:
    cells = document["cells"]
    failed = sum(cell["status"] != "done" for cell in cells)
    return plural(len(cells), "run") + (f", {failed} of them failed" if failed else "")


def _report_of(kind: str) -> Any:
    """The function that renders a result of this kind; None where there is no such report."""
    name = f"servebench.report.{REPORTS.get(kind, kind)}"
    if importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name).render


def _failures(failed: list[dict[str, Any]]) -> Text:
    return Text("\n".join(f"✘ {cell['name']}: {cell['reason']}" for cell in failed), style="red")


def cells_table(cells: list[dict[str, Any]]) -> Table:
    """The runs with their labels and verdicts."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["labels"]))
    table = Table("run", *names, "verdict", "seconds", box=None, pad_edge=False)
    for cell in cells:
        labels = (Text(str(cell["labels"].get(name, ""))) for name in names)  # not markup, whatever is in brackets
        table.add_row(cell["name"], *labels, cell["verdict"] or cell["status"], f"{cell['seconds']:.1f}")
    return table
