"""The table of a comparison (ab, compare): the verdict, the answer in a sentence, then what was tested and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from servebench.report import effect_words as words
from servebench.report.console import LEAST_WIDTH, LEVEL_MARK, STATUS_STYLE, WIDTH, stdout_console
from servebench.report.figures import plural

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Document = Mapping[str, Any]

VERDICT_STYLE = {
    "better": "bold green",
    "worse": "bold red",
    "no difference": "",
    "undecided": "yellow",
    "not tested": "dim",
}
BANNERS = (("simulated", "SIMULATED"), ("random_weights", "RANDOM WEIGHTS"))
FILES = ("experiment.json", "record.md", "cells")
MOST_DIFFERENCES = 8


def render(result: Document, path: Path | None = None) -> RenderableType:
    """The report of an `ab` or `compare` result as something that rich prints.

    Args:
        result: as `servebench.experiment.ab.judge` returns it.
        path: the experiment's directory, for the list of files.
    """
    return Comparison(result, path)


def print_effects(result: Document, path: Path | None = None, console: Console | None = None) -> None:
    """Print the report to `console`, by default standard output; at most `WIDTH` columns wide."""
    console = console or stdout_console()
    console.print(render(result, path), width=max(LEAST_WIDTH, min(WIDTH, console.width)))


class Comparison:
    """A result as a rich renderable, which adapts to the width that it is given."""

    def __init__(self, result: Document, path: Path | None) -> None:
        self.result = result
        self.path = path

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield verdict_panel(self.result)
        for answer in words.answers(self.result):
            yield Padding(Text(answer.sentence, style="bold"), (1, 3, 0, 3))
        for comparison in self.result["comparisons"]:
            yield Padding(effects_table(comparison), (0, 2))
            yield Padding(footnotes(comparison), (0, 3, 1, 3))
        yield Rule(style="dim")
        yield Padding(details(self.result, self.path), (1, 3))


def verdict_panel(result: Document) -> Panel:
    """The verdict on the experiment as a whole, with every code that is not ok and its next step."""
    status = result["verdict"]["status"]
    raised = [code for code in result["verdict"]["codes"] if code["level"] != "ok"]
    parts: list[RenderableType] = [
        Text.assemble((f" {status} ", STATUS_STYLE[status]), "  ", _sentence(result, raised))
    ]
    if raised:
        parts += [Text(), _codes(raised)]
    banners = [Text.assemble((f" {word} ", "bold white on magenta"), " ") for key, word in BANNERS if result[key]]
    name = f" {result['kind']} · {result['design']['name']} "
    return Panel(
        Group(*parts),
        box=box.ROUNDED,
        title=Text.assemble(" ", ("servebench", "bold"), name, *banners, style="default not dim"),
        title_align="left",
        subtitle=Text(f" {_subtitle(result)} "),
        subtitle_align="left",
        border_style="dim",
        padding=(1, 2),
    )


def _sentence(result: Document, raised: list[Document]) -> str:
    number_of = len(result["verdict"]["codes"])
    failed = sum(code["level"] == "fail" for code in raised)
    if failed:
        return f"do not use this comparison: {plural(failed, 'check')} of {number_of} failed"
    if raised:
        return f"use this comparison with care: {plural(len(raised), 'warning')} from {number_of} checks"
    return f"all {number_of} checks of the comparison passed"


def _subtitle(result: Document) -> str:
    arms = [f"{name} {plural(arm['used'], 'run')}" for name, arm in result["arms"].items()]
    return " · ".join(arms)


def _codes(codes: list[Document]) -> Table:
    table = _grid()
    for code in codes:
        mark, style = LEVEL_MARK[code["level"]]
        text = Text(code["text"])
        if code["next"]:
            text.append(f"\n→ {code['next']}", style="dim")
        table.add_row(Text(f"{mark} {code['code']}", style=style), text)
    return table


def _grid(style: str = "") -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style=style, no_wrap=True)
    table.add_column(ratio=1)
    return table


def effects_table(comparison: Document) -> Table:
    """What was tested, the primary figure first; then estimates, which no verdict rests on."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1), header_style="dim", expand=True)
    table.add_column("figure", ratio=1, min_width=12, no_wrap=True)
    for name in (comparison["base"], comparison["cand"]):
        table.add_column(Text(name), justify="right", max_width=14, overflow="ellipsis", no_wrap=True)
    for name in ("change", "interval", "A/A", "p", "adj. p"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for effect in words.tested(comparison):
        table.add_row(*_row(effect))
    table.add_section()
    for effect in words.estimates(comparison):
        table.add_row(*_row(effect), style="dim")
    return table


def _row(effect: Document) -> Iterator[RenderableType]:
    tested, mark = effect["role"] in words.TESTED, " ●" if effect["role"] == "primary" else ""
    yield Text(f"{words.title(effect['figure'])}{mark}", style="bold" if tested else "")
    yield words.value(effect, "base")
    yield words.value(effect, "cand")
    yield words.change(effect)
    yield words.interval(effect)
    yield words.floor(effect)
    yield words.probability(effect["p"]) if tested else ""
    yield words.probability(effect["p_adjusted"]) if tested else ""
    yield Text(effect["verdict"], style=VERDICT_STYLE[effect["verdict"]])


def footnotes(comparison: Document) -> RenderableType:
    """Why each verdict; and what the columns mean."""
    table = _grid("dim")
    for effect in words.tested(comparison):
        table.add_row(words.title(effect["figure"]), Text(effect["reason"], style="dim"))
    for label, text in _legend(comparison["effects"]):
        table.add_row(label, Text(text, style="dim"))
    return table


def _legend(effects: list[Document]) -> Iterator[tuple[str, str]]:
    paired = bool(effects) and effects[0]["paired"]
    reached = {effect["confidence"] for effect in effects if effect["confidence"] is not None}
    yield "●", "the primary figure, named in advance; dimmed figures are estimates, not tested"
    if paired:
        yield "change", "median of the pairs' ratios, candidate over base; base and candidate: medians over the runs"
    else:
        yield "change", "ratio of the geometric means, candidate over base; base and candidate: medians over the runs"
    if reached:
        yield "interval", f"{100 * min(reached):.3g} %, of runs, by inverting the permutation test"
    yield "adj. p", "after Holm's correction over all tested figures, most of the level kept for the primary"
    yield "A/A", "noise floor: nine of ten experiments with nothing changed stay below it; a dash: not measured (--aa)"


def details(result: Document, path: Path | None) -> RenderableType:
    """Design, lost runs, correctness, side effects, differences and files, as labelled lines."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=1)
    for label, lines in _sections(result, path):
        for i, line in enumerate(lines):
            table.add_row("" if i else label, line)
    return table


def _sections(result: Document, path: Path | None) -> Iterator[tuple[str, list[RenderableType]]]:
    if result["design"]["hypothesis"]:
        yield "Hypothesis", [Text(result["design"]["hypothesis"])]
    yield "Design", [Text(line) for line in words.design_lines(result)]
    yield "Lost runs", [Text(words.lost_text(each), style="yellow") for each in result["pairs"]["lost"]]
    yield "Correctness", [Text(line, style="" if good else "yellow") for line, good in words.correctness_lines(result)]
    yield "Side effects", _side_effects(result)
    yield "Differences", _differences(result)
    if path is not None:
        there = " · ".join(name for name in FILES if (path / name).exists())
        yield "Files", [Text(f"{path}/"), Text(there, style="dim")]


def _side_effects(result: Document) -> list[RenderableType]:
    known, missing = words.side_effects(result)
    if not known and not missing:
        return []
    names = [name for name, arm in result["arms"].items() if arm["role"] != "again"]
    candidates = [name for name in names if result["arms"][name]["role"] == "candidate"]
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("median of the runs")
    for heading in (*names, *("change" if len(candidates) == 1 else f"{name} / base" for name in candidates)):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in known:
        values = [words.amount(row["arms"].get(name), row["unit"]) for name in names]
        table.add_row(row["title"], *values, *(words.side_ratio(row, name) for name in candidates))
    absent = [Text(f"not measured: {'; '.join(title for title, _ in missing)}", style="dim")] if missing else []
    return [table, *absent]


def _differences(result: Document) -> list[RenderableType]:
    found = sorted(result["differences"], key=lambda each: (not each["named"], each["kind"] == "observed"))
    if not any(arm["used"] for arm in result["arms"].values() if arm["role"] != "base"):
        return [Text("not known: there is nothing to compare", style="yellow")]
    if not found:
        return [Text("none was found between the arms", style="yellow" if result["kind"] == "ab" else "")]
    several = len({each["arm"] for each in found}) > 1
    tell = _difference if result["kind"] == "ab" else _any_difference
    lines: list[RenderableType] = [Text(*tell(each, several)) for each in found[:MOST_DIFFERENCES]]
    rest = len(found) - MOST_DIFFERENCES
    return lines + ([Text(f"and {rest} more, in experiment.json", style="dim")] if rest > 0 else [])


def _difference(each: Document, several: bool) -> tuple[str, str]:
    where = f"{each['arm']}: " if several else ""
    if each["named"]:
        return f"✔ {where}{words.difference_text(each)}", "green"
    if each["kind"] == "observed":
        return f"  {where}{words.difference_text(each)} (a consequence)", "dim"
    return f"! {where}{words.difference_text(each)} (not named)", "yellow"


def _any_difference(each: Document, several: bool) -> tuple[str, str]:
    """Of runs that were made before anybody said what is to differ."""
    return words.difference_text(each), "dim" if each["kind"] == "observed" else ""
