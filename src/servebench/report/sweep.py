"""A sweep as people read it: a row a run, then curves over load, or why there are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servebench.report.curve_plot import JOINT, MARKERS, curve_plot, short
from servebench.report.figures import NOTHING, number, plural, row, share

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
    columns = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in names:
        columns.add_column(_folded(name), justify="right", overflow="fold", max_width=22)
    columns.add_column("offered\n/s", justify="right")
    columns.add_column("verdict")
    for name in LATENCIES:
        columns.add_column(name.upper().replace(".P", "\np") + " ms", justify="right")
    for title in ("output\ntokens/s", "goodput\n/s", "attained"):
        columns.add_column(title, justify="right")
    columns.add_column("SLO")
    for point in result["points"]:
        _rows_of(columns, result, point, names)
    return columns


def _folded(name: str) -> str:
    """A key over several lines, so that its values decide the column's width."""
    return name.replace(".", ".\n").replace("-", "-\n") if len(name) > 12 else name


def _rows_of(columns: Table, result: Document, point: Document, names: Sequence[str]) -> None:
    labels = [str(point["labels"][name]) for name in names]
    runs = [cell for cell in result["cells"] if cell["point"] == point["point"]]
    for cell in runs:
        columns.add_row(*labels, *_cells(cell, cell["offered_per_s"], _verdict(cell), _slo(cell), cell["few"]))
    if len(runs) > 1:
        word = Text(f"median of {point['used']}")
        met = Text(f"{point['slo_met']} of {point['used']}" if result["has_slo"] else NOTHING)
        columns.add_row(*labels, *_cells(point, point["offered_per_s"], word, met, ()), style="bold", end_section=True)


def _cells(
    found: Document, offered: float | None, verdict: Text, slo: Text, few: Sequence[str]
) -> list[RenderableType]:
    figures = found["figures"]
    latencies = [*row([figures[name] for name in LATENCIES[:-1]]), number(figures[LATENCIES[-1]])]
    marked = [f"{text}{FEW if name in few else ''}" for name, text in zip(LATENCIES, latencies, strict=True)]
    rates = [number(figures["output_tokens_per_s"]), number(figures["goodput_per_s"])]
    return [number(offered), verdict, *marked, *rates, share(figures["attainment"]), slo]


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
    for cell in cells:
        if cell["verdict"] == "INVALID":
            yield f"✘ {cell['cell']}: INVALID ({', '.join(cell['codes'])}); `servebench report` on it says what to do"
    missing = sum(cell["status"] == "missing" for cell in cells)
    if missing:
        yield f"{plural(missing, 'run')} of {len(cells)} not made yet: the same command with this --out goes on"
    if any(cell["few"] for cell in cells):
        yield f"{FEW} fewer samples than the quantile needs; a longer run has more"
    if any(point["runs"] > 1 for point in result["points"]):
        yield "medians: over the runs of a point that did not fail and are not INVALID"


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
        yield from (_held(each, result["curves"]["closed"]) for each in series)
    yield f"{JOINT} joins neighbouring points; nothing was measured between them"


def _held(series: Document, closed: bool) -> str:
    unit = " in flight" if closed else "/s"
    who = f"{series['name']}: " if series["name"] else ""
    if series["misses"] is None:
        return f"{who}the SLO was met at every load, up to {short(series['holds'])}{unit}" if series["holds"] else ""
    missed = f"missed at {short(series['misses'])}{unit}"
    if series["holds"] is None:
        return f"{who}the SLO was {missed} already, the lowest load"
    return f"{who}the SLO was met up to {short(series['holds'])}{unit} and {missed}; `servebench capacity` narrows it"
