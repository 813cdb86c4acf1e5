"""A sweep as people read it: a row a run, then curves over load, or why there are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servebench.report.curve_plot import JOINT, MARKERS, curve_plot, short
from servebench.report.figures import NOTHING, plural

PLOT_WIDTH, PLOT_HEIGHT = 36, 9
LATENCIES = ("ttft.p50", "ttft.p95", "ttft.p99", "itl.p99")
VERDICT_STYLE = {"VALID": "green", "SUSPECT": "yellow", "INVALID": "bold red"}
FEW = "†"

Document = Mapping[str, Any]


def render(result: Document) -> RenderableType:
    """The result of a sweep (`servebench.experiment.sweep.judge`) as something that rich prints; 100 columns do."""
    parts: list[RenderableType] = [table(result), Padding(Group(*map(Text, notes(result))), (0, 2))]
    if result["curves"] is not None:
        parts += [Text(), *_curves(result)]
    return Padding(Group(*parts), (1, 0, 0, 0))


def table(result: Document) -> Table:
    """A row a run, the runs of a point together; where there are several, their medians below them."""
    names = [variable["written"] for variable in result["variables"]]
    open_loop = any(cell["offered_per_s"] is not None for cell in result["cells"])
    columns = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in names:
        lines = _folded(name)
        columns.add_column(
            "\n".join(lines), justify="right", overflow="fold", min_width=max(map(len, lines)), max_width=20
        )
    if open_loop:
        columns.add_column("offered\n/s", justify="right", no_wrap=True)
    columns.add_column("verdict", no_wrap=True)
    for name in LATENCIES:
        columns.add_column(name.upper().replace(".P", "\np"), justify="right", no_wrap=True)
    for title in ("tokens\n/s", "goodput\n/s", "good\nshare"):
        columns.add_column(title, justify="right", no_wrap=True)
    columns.add_column("SLO")
    for point in result["points"]:
        for cells, style in _rows_of(result, point):
            labels = [str(point["labels"][name]) for name in names]
            columns.add_row(*labels, *(cells if open_loop else cells[1:]), style=style, end_section=style is not None)
    return columns


def _folded(name: str) -> list[str]:
    """The lines of a key over its column: a short one whole, of a long one the last part, so that values decide."""
    if len(name) <= 12:
        return name.replace(".", ".\n").split("\n")
    return wrap(name.rpartition(".")[2].replace("_", "-"), 8, break_long_words=False)


def _rows_of(result: Document, point: Document) -> Iterator[tuple[list[RenderableType], str | None]]:
    """The rows of a point and their style: its runs, and their medians where there are several."""
    runs = [cell for cell in result["cells"] if cell["point"] == point["point"]]
    for cell in runs:
        yield _cells(cell, _verdict(cell), _slo(cell), cell["few"]), None
    if len(runs) > 1:
        used = point["used"]
        met = Text(f"{point['slo_met']} of {used}" if result["has_slo"] else NOTHING)
        yield _cells(point, Text("median" if used == len(runs) else f"med. of {used}"), met, ()), "bold"


def _cells(found: Document, verdict: Text, slo: Text, few: Sequence[str]) -> list[RenderableType]:
    figures = found["figures"]
    latencies = [f"{_brief(figures[name])}{FEW if name in few else ''}" for name in LATENCIES]
    rates = [_brief(figures["output_tokens_per_s"]), _brief(figures["goodput_per_s"])]
    return [_brief(found["offered_per_s"]), verdict, *latencies, *rates, _percent(figures["attainment"]), slo]


def _brief(value: float | None) -> str:
    """Three significant digits or a whole number: what is wide is not read in a table of so many columns."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(value: float | None) -> str:
    """A share of one; never rounded up to 100 % nor down to 0 %."""
    if value is None or value in (0, 1):
        return NOTHING if value is None else f"{100 * value:.0f} %"
    return f"{min(max(100 * value, 0.1), 99.9):.1f} %"


def _verdict(cell: Document) -> Text:
    if cell["status"] != "done":
        return Text(cell["status"], style="bold red" if cell["status"] == "failed" else "dim")
    mark = "✘ " if cell["verdict"] == "INVALID" else ""
    return Text(f"{mark}{cell['verdict']}", style=VERDICT_STYLE[cell["verdict"]])


def _slo(cell: Document) -> Text:
    if cell["slo_met"] is None:
        return Text(NOTHING, style="dim")
    return Text("met", style="green") if cell["slo_met"] else Text(" ".join(cell["missed"]) or "missed", style="red")


def notes(result: Document) -> Iterator[str]:
    """What a reader must know of the table, a line each."""
    cells = result["cells"]
    yield "latencies in ms; tokens: of the output; good: requests that met every objective of the SLO"
    for cell in cells:
        if cell["verdict"] == "INVALID":
            yield f"✘ {cell['cell']}: INVALID ({', '.join(cell['codes'])}); `servebench report` on it says what to do"
    yield from _kept_caches(cells)
    missing = sum(cell["status"] == "missing" for cell in cells)
    if missing:
        yield f"{plural(missing, 'run')} of {len(cells)} not made yet: the same command with this --out goes on"
    if any(cell["few"] for cell in cells):
        yield f"{FEW} fewer samples than the quantile needs; a longer run has more"
    if any(point["runs"] > 1 for point in result["points"]):
        yield "medians: over the runs of a point that did not fail and are not INVALID"


def _kept_caches(cells: Sequence[Document]) -> Iterator[str]:
    """The runs that a cache may have helped although it was to be empty, together where the reason is the same."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        cache = cell["cache"]
        if cache is not None and (not cache["done"] or cache["verified"] is False):
            reasons.setdefault(cache["reason"], []).append(cell["cell"])
    for reason, names in reasons.items():
        yield f"! cache not reset in {', '.join(names)}: {reason}"


def _curves(result: Document) -> Iterator[RenderableType]:
    curves = result["curves"]
    series = [each for each in curves["series"] if len(each["points"]) > 1]
    if not series:
        yield Text("no curves: they take two usable points at least", style="dim")
        return
    grid = Table.grid(padding=(0, 3, 1, 0))
    plots = [Text("\n".join(lines)) for lines in _plots(curves, series[: len(MARKERS)])]
    for pair in zip(plots[::2], [*plots[1::2], Text()], strict=False):
        grid.add_row(*pair)
    yield grid
    for note in _remarks(result, series):
        yield Text(note)


def _plots(curves: Document, series: Sequence[Document]) -> Iterator[list[str]]:
    """Latency, goodput, and throughput against latency; with several series one figure each, else several."""
    load = f"{curves['key']}, {'requests in flight' if curves['closed'] else 'offered per second'}"
    good = "goodput_per_s" if series[0]["points"][0].get("goodput_per_s") is not None else "requests_per_s"
    for first, second in (("ttft.p99", "ttft.p50"), ("itl.p99", "itl.p50"), (good, "requests_per_s")):
        wanted = [first] if len(series) > 1 or first == second else [first, second]
        lines = [_line(each, "x", name) for each in series for name in wanted]
        yield _titled(_title(wanted), lines, load)
    yield _titled("output tokens/s", [_line(each, "e2e.p50", "output_tokens_per_s") for each in series], "E2E p50, ms")


TITLES = {"goodput_per_s": "within the SLO", "requests_per_s": "finished"}


def _title(names: Sequence[str]) -> str:
    """What is drawn: ``TTFT, ms: ● p99 ○ p50``."""
    if "." in names[0]:
        what, words = f"{names[0].partition('.')[0].upper()}, ms", [name.partition(".")[2] for name in names]
    else:
        what, words = "requests/s", [TITLES[name] for name in names]
    if len(names) == 1:
        return f"{what}: {words[0]}"
    return f"{what}: " + "  ".join(f"{mark} {word}" for mark, word in zip(MARKERS, words, strict=False))


def _line(series: Document, across: str, up: str) -> list[tuple[float, float]]:
    return [(p[across], p[up]) for p in series["points"] if p[across] is not None and p[up] is not None]


def _titled(title: str, lines: Sequence[list[tuple[float, float]]], below: str) -> list[str]:
    if not any(lines):
        return [title, "nothing was measured"]
    drawn = curve_plot(lines, PLOT_WIDTH, PLOT_HEIGHT)
    left = drawn[0].index("┤") + 1
    return [title, *drawn, " " * left + below]


def _remarks(result: Document, series: Sequence[Document]) -> Iterator[str]:
    if len(series) > 1:
        legend = (f"{mark} {each['name']}" for mark, each in zip(MARKERS, series, strict=False))
        yield "   ".join(legend)
    if len(series) > len(MARKERS):
        yield f"only the first {len(MARKERS)} of {len(series)} series are drawn; --json has all"
    if result["curves"]["left_out"]:
        yield f"not drawn: {', '.join(result['curves']['left_out'])}"
    if result["has_slo"]:
        yield from (_held(each, result["curves"]) for each in series)
    yield f"{JOINT} joins neighbouring points; nothing was measured between them"


def _held(series: Document, curves: Document) -> str:
    unit = " in flight" if curves["closed"] else "/s"
    who = f"{series['name']}: " if series["name"] else ""
    if series["misses"] is None:
        which = "every load that is drawn" if curves["left_out"] else "every load"
        return f"{who}the SLO was met at {which}, up to {short(series['holds'])}{unit}" if series["holds"] else ""
    missed = f"missed at {short(series['misses'])}{unit}"
    if series["holds"] is None:
        return f"{who}the SLO was {missed} already, the lowest load"
    return f"{who}the SLO was met up to {short(series['holds'])}{unit} and {missed}; `servebench capacity` narrows it"
