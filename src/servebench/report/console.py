"""The final table: the verdict first, then the figures with n, unit, population and definition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from servebench.report import figures, joined, reconcile, sections

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

WIDTH = 100
LEAST_WIDTH = 70

STATUS_STYLE = {"VALID": "bold white on green4", "SUSPECT": "bold black on yellow3", "INVALID": "bold white on red3"}
LEVEL_MARK = {"ok": ("✔", "green"), "warn": ("!", "yellow"), "fail": ("✘", "red")}

LATENCIES = {"ttft": "TTFT", "ttfv": "TTFV", "tpot": "TPOT", "e2e": "E2E", "stall": "stall"}
POOLED = {"itl": "ITL", "icl": "ICL"}
QUANTILES = ("p50", "p95", "p99", "p99_9")


def render(
    summary: dict[str, Any], path: Path | None = None, definitions: dict[str, Any] | None = None
) -> RenderableType:
    """The report of a summary as something that rich prints.

    Args:
        summary: the document of summary.json.
        path: the run directory, for the list of files.
        definitions: of `servebench.analysis.definitions.under`, to show the run under another tool's formulas too.
    """
    return Report(summary, path, definitions)


def print_report(
    summary: dict[str, Any],
    path: Path | None = None,
    definitions: dict[str, Any] | None = None,
    console: Console | None = None,
) -> None:
    """Print the report to `console`, by default standard output; at most `WIDTH` columns wide."""
    console = console or stdout_console()
    console.print(render(summary, path, definitions), width=max(LEAST_WIDTH, min(WIDTH, console.width)))


def stdout_console(width: int = WIDTH) -> Console:
    """Standard output; where that is no terminal, `width` columns."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


class Report:
    """A summary as a rich renderable, which adapts to the width that it is given."""

    def __init__(self, summary: dict[str, Any], path: Path | None, definitions: dict[str, Any] | None) -> None:
        self.summary = summary
        self.path = path
        self.definitions = definitions

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield verdict_panel(self.summary)
        yield Padding(Text(sections.headline(self.summary), style="bold"), (1, 3, 0, 3))
        if any(self.summary["metrics"][name]["n"] for name in (*LATENCIES, *POOLED)):
            yield Padding(latency_table(self.summary), (0, 2))
            yield Padding(footnotes(self.summary), (0, 3, 1, 3))
            yield Rule(style="dim")
        yield Padding(details(self.summary, self.path), (1, 3))
        yield Rule(style="dim")
        yield Padding(joined.Joined(self.summary), (1, 3))
        if self.definitions is not None:
            yield Rule(style="dim")
            yield reconcile.render(self.definitions, self.summary)


def verdict_panel(summary: dict[str, Any]) -> Panel:
    """The verdict, with every code that is not ok: its figure, its limit and the next step."""
    status = summary["verdict"]["status"]
    raised = [c for c in summary["verdict"]["codes"] if c["level"] != "ok"]
    parts: list[RenderableType] = [
        Text.assemble(
            (f" {status} ", STATUS_STYLE[status]), "  ", sections.verdict_sentence(summary), *_slo_words(summary)
        )
    ]
    if raised:
        parts += [Text(), _codes(raised)]
    if summary["warnings"]:
        parts += [Text(), *(Text(f"note: {warning}", style="dim") for warning in summary["warnings"])]
    name = summary["name"] or "unnamed"
    return Panel(
        Group(*parts),
        box=box.ROUNDED,
        title=Text.assemble(" ", ("servebench", "bold"), f" · {name} ", *_banners(summary), style="default not dim"),
        title_align="left",
        subtitle=Text(f" {sections.subtitle(summary)} "),
        subtitle_align="left",
        border_style="dim",
        padding=(1, 2),
    )


def _slo_words(summary: dict[str, Any]) -> list[tuple[str, str]]:
    if summary["slo"] is None:
        return []
    return [(" · SLO met", "green")] if summary["slo"]["met"] else [(" · SLO missed", "bold red")]


def _banners(summary: dict[str, Any]) -> list[Text]:
    """What a reader must not miss: that no real engine or no real model made these figures."""
    words = (("simulated", "SIMULATED"), ("random_weights", "RANDOM WEIGHTS"), ("incomplete", "INCOMPLETE"))
    return [Text.assemble((f" {word} ", "bold white on magenta"), " ") for key, word in words if summary[key]]


def _codes(codes: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for code in codes:
        mark, style = LEVEL_MARK[code["level"]]
        text = Text(code["text"])
        if code["value"] is not None and code["limit"] is not None:
            text.append(f" [{sections.figure(code)}]", style=style)
        if code["next"]:
            text.append(f"\n→ {code['next']}", style="dim")
        table.add_row(Text(f"{mark} {code['code']}", style=style), text)
    return table


def latency_table(summary: dict[str, Any]) -> Table:
    """Latencies at p50, p95, p99 and p99.9; pooled ones apart from those with one value a request."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1), header_style="dim", expand=True)
    table.add_column("latency", no_wrap=True)
    table.add_column("unit", style="dim", no_wrap=True)
    for name in QUANTILES:
        table.add_column(f"{name.replace('_', '.')} ", justify="right", no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("n", justify="right")
    same = sections.repeated(summary)
    for names in (LATENCIES, POOLED):
        table.add_section()
        for name, title in names.items():
            if name not in same:
                table.add_row(*_latency_row(title, summary["metrics"][name]))
    return table


def _latency_row(title: str, metric: dict[str, Any]) -> list[RenderableType]:
    *quantiles, mean = figures.row([metric[q] for q in (*QUANTILES, "mean")])
    few = set(metric["below_floor"]) if metric["n"] else set()
    marked = [f"{v}{'†' if q in few else ' '}" for q, v in zip(QUANTILES, quantiles, strict=True)]
    n = figures.plural(metric["n"], metric["each"])
    return [Text(title, style="bold"), metric["unit"], *marked, mean, Text(n, style="dim")]


def footnotes(summary: dict[str, Any]) -> RenderableType:
    """Definitions and populations, the quantile rule, and what the mark means."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="dim", ratio=1)
    same = sections.repeated(summary)
    for name, title in (*LATENCIES.items(), *POOLED.items()):
        metric = summary["metrics"][name]
        words = f"{metric['definition']}: {same[name]}" if name in same else sections.definition(metric)
        table.add_row(title, words)
    for mark, note in sections.notes(summary, (*LATENCIES, *POOLED)):
        table.add_row(mark, note)
    return table


def details(summary: dict[str, Any], path: Path | None) -> RenderableType:
    """Everything else, as labelled lines."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=1)
    for label, lines in sections.labelled(summary, path):
        for i, line in enumerate(lines):
            table.add_row("" if i else label, Text(line.text, style=line.style))
    return table
