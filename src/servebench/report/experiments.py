"""The report of an experiment: what was asked and how many runs answered it, then what its kind has to show."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from servebench.report.figures import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 110
REPORTS = {
    "sweep": "sweep",
    "capacity": "capacity",
    "ab": "effects",
    "compare": "effects",
    "gate": "gate",
    "plan": "fleet",
}


def render(document: Mapping[str, Any]) -> RenderableType:
    """The report of an experiment as something that rich prints.

    Args:
        document: the content of experiment.json, with its result.
    """
    return Group(*_parts(document))


def print_experiment(document: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the report to `console`, by default standard output; `WIDTH` columns where that is no terminal."""
    if console is None:
        plain = Console(highlight=False)
        console = plain if plain.is_terminal else Console(highlight=False, width=WIDTH)
    console.print(render(document))


def _parts(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(f"{document['kind']} {document['name']}: {_counted(document)}", style="bold")
    if document.get("simulated"):
        yield Text("SIMULATED: figures of the simulated engine, not of a real server", style="bold yellow")
    failed = [cell for cell in document["cells"] if cell["status"] != "done"]
    if failed:
        yield _failures(failed)
    report = _report_of(str(document["kind"]))
    if report is None or document.get("result") is None:
        yield cells_table(document["cells"])
    else:
        yield report(document["result"])


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
        labels = (str(cell["labels"].get(name, "")) for name in names)
        table.add_row(cell["name"], *labels, cell["verdict"] or cell["status"], f"{cell['seconds']:.1f}")
    return table
