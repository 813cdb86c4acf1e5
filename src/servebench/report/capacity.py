"""The answer of a capacity search: the bracket first, then how sure it is, the curve, and a row a rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servebench.report.console import LEVEL_MARK, STATUS_STYLE
from servebench.report.curve_plot import curve_plot
from servebench.report.figures import NOTHING, duration, number, plural

PLOT_WIDTH, PLOT_HEIGHT = 36, 8
NOISE = 1e-12
MARKS = {"pass": ("✔", "pass", "green"), "fail": ("✘", "fail", "red"), "undecided": ("?", "undecided", "yellow")}

Document = Mapping[str, Any]


def render(result: Document) -> RenderableType:
    """The result (`servebench.experiment.capacity`) as something that rich prints; 100 columns do."""
    parts: list[RenderableType] = [
        _headline(result),
        Padding(Text("\n".join(sentences(result))), (0, 3)),
        Padding(_codes(result), (0, 2)),
        Padding(table(result), (1, 2, 0, 2)),
        Padding(Text("\n".join(notes(result)), style="dim"), (0, 3)),
    ]
    if len(_measured(result)) > 1:
        parts.append(Padding(_curves(result), (1, 3)))
    return Padding(Group(*parts), (1, 0, 0, 0))


def rate(value: float | None) -> str:
    """``4/s``; a dash for none."""
    return NOTHING if value is None else f"{value:g}/s"


def bracket(result: Document) -> str:
    """The answer in one line."""
    low, high = result["sustained_per_s"], result["failed_per_s"]
    if low is None and high is None:
        return "no rate could be decided"
    if low is None:
        unknown = [rate(probe["rate"]) for probe in result["probes"] if probe["rate"] < high]
        return f"below {rate(high)}, " + (
            f"as {', '.join(unknown)} could not be decided" if unknown else "the lowest rate that was tried"
        )
    if high is None:
        return f"at least {rate(low)}: no rate failed"
    return f"{rate(low)} sustained .. {rate(high)} failed"


def _headline(result: Document) -> Text:
    status = result["verdict"]["status"]
    return Text.assemble(
        (f" {status} ", STATUS_STYLE[status]), ("  capacity of one replica: ", ""), (bracket(result), "bold")
    )


def sentences(result: Document) -> Iterator[str]:
    """What else must be known of the answer, a line each."""
    if result["sustained_per_s"] is not None:
        tokens = result["tokens"]["output_tokens_per_s"]
        good = f"goodput {number(result['goodput_per_s'])} requests/s, {number(tokens)} output tokens/s"
        again = "confirmed with other seeds" if result["confirmed"] else "not confirmed with other seeds"
        yield f"at {rate(result['sustained_per_s'])}: {good}; {again}"
    if result["failed_per_s"] is not None:
        yield f"what breaks first: {result['binding']['text']}"
    slo = ", ".join(objective["text"] for objective in result["slo"])
    if slo:
        yield f"SLO: {slo}; no backlog that grows"
    engine = result["engine"]
    server = " ".join(str(engine[key]) for key in ("name", "version") if engine[key])
    flags = " ".join(f"--{name} {value}" for name, value in engine["flags"].items())
    gpus = f"{engine['gpus']} × {engine['gpu'] or 'GPU'}" if engine["gpus"] else ""
    told = [str(engine["model"] or ""), server, flags, gpus]
    if any(told):
        yield " · ".join(text for text in told if text)


def _codes(result: Document) -> Table:
    """The codes that are not ok, each with what to do."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for code in result["verdict"]["codes"]:
        if code["level"] != "ok":
            mark, style = LEVEL_MARK[code["level"]]
            step = f"; {code['next']}" if code["next"] else ""
            table.add_row(Text(f"{mark} {code['code']}", style=style), Text(code["text"] + step))
    return table


def table(result: Document) -> Table:
    """A row a rate, the highest first."""
    names = [objective["objective"] for objective in result["slo"]]
    columns = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    columns.add_column("rate", justify="right", no_wrap=True)
    columns.add_column("n", justify="right", no_wrap=True)
    columns.add_column("decision", no_wrap=True)
    for name in names:
        columns.add_column(f"{name}:\nkept it, %", justify="right", no_wrap=len(names) < 3)
    columns.add_column("backlog", justify="right", no_wrap=True)
    columns.add_column("TTFT\np95", justify="right", no_wrap=True)
    columns.add_column("ITL\np99", justify="right", no_wrap=True)
    columns.add_column("goodput\n/s", justify="right", no_wrap=True)
    for probe in reversed(result["probes"]):
        columns.add_row(*_row(probe, names), style=_style(result, probe))
    return columns


def _row(probe: Document, names: Sequence[str]) -> Iterator[RenderableType]:
    yield rate(probe["rate"])
    yield f"{probe['runs']}" + (f"+{probe['failed_runs']}✘" if probe["failed_runs"] else "")
    mark, word, style = MARKS[probe["decision"]]
    yield Text(f"{mark} {word if probe['decision'] == 'pass' else probe['binding'] or word}", style)
    for name in names:
        yield _share(probe["attainment"].get(name))
    growth = (probe["backlog"] or {}).get("growth")
    yield NOTHING if growth is None else f"{100 * growth:+.1f} %"
    yield duration(probe["ttft_p95_ms"])
    yield duration(probe["itl_p99_ms"])
    yield number(probe["goodput_per_s"])


def _style(result: Document, probe: Document) -> str | None:
    return "bold" if probe["rate"] in (result["sustained_per_s"], result["failed_per_s"]) else None


def _share(found: Document | None) -> str:
    if found is None or found["value"] is None:
        return NOTHING
    low, high = (_percent(found[end]) for end in ("low", "high"))
    return f"{_percent(found['value'])} ({low}–{high})"


def _percent(share: float) -> str:
    """One decimal; never rounded up to 100 nor down to 0, but for the noise of a binary fraction."""
    whole = round(share)
    return f"{100 * whole}" if abs(share - whole) < NOISE else f"{min(max(100 * share, 0.1), 99.9):.1f}"


def notes(result: Document) -> Iterator[str]:
    """What a reader must know of the table."""
    targets = ", ".join(f"{objective['objective']} {100 * objective['target']:g} %" for objective in result["slo"])
    if targets:
        yield "decision: ✔ passed; ✘ what failed; ? what could not be decided"
        yield f"kept it: share of the offered (itl, icl: of the tokens) that kept to the objective; must: {targets}"
    yield (
        "n: runs; interval over them, by which a decision errs in at most "
        f"{100 * (1 - result['confidence']):.2g} % of cases; backlog: growth as a share of the offered"
    )
    if any(probe["failed_runs"] for probe in result["probes"]):
        yield "✘: runs that failed, or say nothing of the server"
    runs = plural(sum(len(probe["cells"]) for probe in result["probes"]), "run")
    rates, spent = plural(len(result["probes"]), "rate"), result["budget"]["spent_s"]
    yield f"{runs} of {result['duration_s']:g} s and longer at {rates}, {spent:,.0f} s in all"


def _measured(result: Document) -> list[Document]:
    return [probe for probe in result["probes"] if probe["runs"]]


def _curves(result: Document) -> Table:
    """Attainment and TTFT against the rate, side by side."""
    probes = _measured(result)
    grid = Table.grid(padding=(0, 3, 0, 0))
    kept = [(p["rate"], 100 * p["all_objectives"]) for p in probes if p["all_objectives"] is not None]
    waits = [(p["rate"], p["ttft_p95_ms"]) for p in probes if p["ttft_p95_ms"] is not None]
    drawn = [
        Text("\n".join([title, *curve_plot([points], PLOT_WIDTH, PLOT_HEIGHT)]), no_wrap=True)
        for title, points in (
            ("% within every objective, by requests/s", kept),
            ("TTFT p95 in ms, by requests/s", waits),
        )
        if points
    ]
    grid.add_row(*drawn)
    return grid
