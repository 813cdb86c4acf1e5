"""A profile for people: of each window the answer in a sentence and what to try next, then the tables behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from servebench.report import profile_tables as tables
from servebench.report import profile_words as words
from servebench.report.console import LEAST_WIDTH, stdout_console

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

WIDTH = 140  # names of kernels are long: more than the other reports take
MOST_DEVICES = 2  # with all tables; ranks do much the same
NARROW = 84  # columns, below which labels stand above their part

Document = Mapping[str, Any]


def print_profile(windows: Sequence[Document], console: Console | None = None) -> None:
    """Print the answers of some windows to `console`, by default standard output.

    Args:
        windows: each as `servebench.analysis.profile.answers.answers` returns it; of `summary["profile"]`, "windows".
        console: where to.
    """
    console = console or stdout_console()
    width = max(LEAST_WIDTH, min(WIDTH, console.width))
    for answers in windows:
        console.print(Window(answers), width=width)


class Window:
    """The answers of one window as a rich renderable, which adapts to the width that it is given."""

    def __init__(self, answers: Document) -> None:
        self.answers = answers

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield panel(self.answers)
        parts = [(label, part) for label, part in _sections(self.answers) if part]
        yield Padding(_beside(parts) if options.max_width >= NARROW else _stacked(parts), (1, 3))


def panel(answers: Document) -> Panel:
    """The window's headline, and every finding with the next experiment."""
    parts: list[RenderableType] = [Text(words.headline(answers), style="yellow" if answers["empty"] else "bold")]
    if answers["no_device"]:
        parts.append(Text(answers["no_device"], style="dim"))
    if answers["findings"]:
        parts += [Text(), Findings(answers["findings"])]
    return Panel(
        Group(*parts),
        box=box.ROUNDED,
        title=Text.assemble(" ", ("servebench", "bold"), f" · profile · {words.title(answers)} "),
        title_align="left",
        subtitle=Text(f" {words.subtitle(answers)} "),
        subtitle_align="left",
        border_style="dim",
        padding=(1, 2),
    )


class Findings:
    """The findings with their next experiments: the codes in a column of their own where there is room for it."""

    def __init__(self, findings: Sequence[Document]) -> None:
        self.findings = findings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        alike = words.alike(self.findings)
        if options.max_width < NARROW:
            yield from (Text.assemble((first["code"], "cyan"), "  ", _finding(first, n)) for first, n in alike)
            return
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(ratio=1)
        for first, number in alike:
            table.add_row(Text(first["code"]), _finding(first, number))
        yield table


def _finding(first: Document, number: int) -> Text:
    text = Text(first["sentence"])
    if number > 1:
        text.append(f" ({number - 1} more like it, in --json)", style="dim")
    if first["next"]:
        text.append(f"\n→ {first['next']}", style="dim")
    return text


def _sections(answers: Document) -> Iterator[tuple[str, list[RenderableType]]]:
    """The parts by label; those without content are empty."""
    yield "Traffic", [Text(text, style=style) for text, style in words.traffic(answers)]
    yield "Clock", [Text(*words.clock(answers))] if _has_instants(answers) else []
    if not answers["empty"]:
        yield from _figures(answers)
    yield "Overhead", tables.overhead(answers)
    yield "Notes", [Text(note, style="dim") for note in answers["notes"]]
    yield "Files", [Text(" · ".join(answers.get("files") or ()), style="dim")] if answers.get("files") else []


def _has_instants(answers: Document) -> bool:
    """Whether it is about a time, and not about kernels whenever they ran."""
    timed = answers["alignment"] is not None or answers["window"]["ms"] is not None
    return timed and not any(answers[section] for section in ("kernel_replay", "sanitizer"))


def _figures(answers: Document) -> Iterator[tuple[str, list[RenderableType]]]:
    if answers["steps"]["n"] or (answers["hot"] is None and _has_instants(answers)):
        yield "Steps", tables.steps(answers)
    for place, each in enumerate(answers["devices"]):
        whole = place < MOST_DEVICES
        part = tables.device(each, answers["window"]["ms"]) if whole else tables.device_in_brief(each)
        yield f"Device {each['device']}", part
    yield "Skew", [Text(text)] if (text := words.skew(answers)) else []
    yield "Operators", tables.operators(answers)
    yield "System", tables.system(answers)
    yield "Hot", tables.hot(answers)
    yield "Kernels", tables.replay(answers)
    yield "Reports", tables.sanitizer(answers)
    yield "What if", tables.what_if(answers)
    yield "Counts", [Text(text)] if (text := words.counts(answers)) else []


def _beside(parts: Sequence[tuple[str, list[RenderableType]]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=1)
    for i, (label, part) in enumerate(parts):
        if i and (_is_block(part) or _is_block(parts[i - 1][1])):
            table.add_row()
        table.add_row(label, Group(*part))
    return table


def _is_block(part: Sequence[RenderableType]) -> bool:
    """Whether the part holds a table, and so wants room around it."""
    return any(isinstance(each, Table) for each in part)


def _stacked(parts: Sequence[tuple[str, list[RenderableType]]]) -> Group:
    return Group(*tables.spaced([Text(label, style="bold"), *part] for label, part in parts))
