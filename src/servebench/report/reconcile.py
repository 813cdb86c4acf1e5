"""A run under another tool's formulas, beside our figures that come nearest."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servebench.report.figures import number, row

MARKS = ("mean", "p50", "p95", "p99")
OURS = "cyan"
RATES = {"requests_per_s": "requests/s", "output_tokens_per_s": "tokens/s"}


def render(found: dict[str, Any], summary: dict[str, Any]) -> RenderableType:
    """The figures of `servebench.analysis.definitions.under`, each above our nearest one; then the formulas."""
    title = Text.assemble(
        ("under the definitions of ", "bold"), (found["tool"], "bold reverse"), ("  ours below", OURS)
    )
    note = Text(found["note"], style="dim")
    parts = (title, note, _figures(found, summary), _formulas(found, summary))
    return Padding(Group(*parts), (1, 2, 0, 2))


def _figures(found: dict[str, Any], summary: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("metric")
    table.add_column("unit", style="dim", no_wrap=True)
    for mark in (*MARKS, "n"):
        table.add_column(mark, justify="right", no_wrap=True)
    for metric in found["metrics"]:
        table.add_row(Text(metric["name"], style="bold"), metric["unit"], *_cells(metric))
        if metric["ours"]:
            table.add_row(*_ours(metric["ours"], summary), style=OURS)
    return table


def _cells(metric: dict[str, Any]) -> list[str]:
    if metric["n"] is None:
        return [number(metric["mean"]), "", "", "", ""]
    return [*row([metric[mark] for mark in MARKS]), number(metric["n"])]


def _ours(name: str, summary: dict[str, Any]) -> list[str]:
    """Our row: a latency with its quantiles, or a rate."""
    if name in summary["metrics"]:
        metric = summary["metrics"][name]
        return [f"  {name}", metric["unit"], *_cells(metric)]
    return [f"  {name}", RATES[name], number(summary["throughput"][name]), "", "", "", ""]


def _formulas(found: dict[str, Any], summary: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", max_width=34)
    table.add_column(style="dim", ratio=1)
    for metric in found["metrics"]:
        table.add_row(metric["name"], metric["formula"])
    for name in dict.fromkeys(m["ours"] for m in found["metrics"] if m["ours"]):
        ours = summary["metrics"].get(name, {}).get("definition") or summary["definitions"]["throughput"]
        table.add_row(Text(f"  {name}", style=OURS), ours)
    return table
