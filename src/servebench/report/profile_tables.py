"""The tables of a profile: steps, one device, the host's side, what-if rows; names are never read as markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from servebench.report import profile_words as words
from servebench.report.figures import NOTHING, duration, number, plural, row
from servebench.report.kernel_names import Name, shorten

Document = Mapping[str, Any]
Parts = list[RenderableType]

MOST_KERNELS = 10
MOST_OPERATORS = 10
MOST_SYSTEM = 5
MOST_GAPS = 3

REPLAYED = {
    "compute_percent": "compute",
    "memory_percent": "memory",
    "dram_percent": "DRAM",
    "occupancy_percent": "occupancy",
}
WHAT_IF = {"step_ms": "step ms", "tpot_ms": "TPOT ms"}
STEP_LOADS = {"context_tokens_mean": "prompt", "generation_requests_mean": "decode"}
STEP_NOTES = {
    "host": "to the start of the next step; host: p50 of the step as the host marked it",
    "busy": "busy, idle: of the device, p50",
    "prompt": "prompt: mean prompt tokens in a step",
    "decode": "decode: mean requests in it past their first token",
}


def steps(answers: Document) -> Parts:
    """Durations of the steps by what they worked on, and how they were found."""
    found = answers["steps"]
    if not found["n"]:
        return [_dim(words.steps_note(answers))]
    rows = [_step(each) for each in found["kinds"]]
    shown = [key for key in rows[0] if any(each[key] != NOTHING for each in rows)]
    labels = [each["kind"].removesuffix("_only") for each in found["kinds"]]
    table = _table("step, ms", shown, gap=1)
    for label, each in zip(labels, rows, strict=True):
        table.add_row(Text(label), *(each[key] for key in shown))
    notes = [note for key, note in STEP_NOTES.items() if key in shown]
    return [table, *([_dim("; ".join(notes))] if notes else []), _dim(words.steps_note(answers))]


def _step(each: Document) -> dict[str, str]:
    times = words.step_times(each)
    host = each["p50"] if times is not each else None
    figures = [*(times[key] for key in ("p50", "p95", "max")), host, each["busy_p50"], each["idle_p50"]]
    cells = dict(zip(("p50", "p95", "max", "host", "busy", "idle"), row(figures), strict=True))
    return {"n": f"{each['n']:,}"} | cells | {text: number(each[key], 1) for key, text in STEP_LOADS.items()}


def device(found: Document, window_ms: float | None) -> Parts:
    """Everything about one device: busy and idle time, kernels, launches, copies, communication."""
    name = [Text(str(found["name"]))] if found["name"] else []
    blocks: list[Parts] = [
        [*name, *device_in_brief(found)],
        *_idle(found["idle"]),
        _kernels(found, window_ms),
        _copies(found["copies"]),
        _communication(found),
    ]
    return spaced(blocks)


def device_in_brief(found: Document) -> Parts:
    """A device's busy and idle time."""
    return [Text(words.busy(found)), Text(words.idle(found))]


def spaced(blocks: Iterable[Parts]) -> Parts:
    """The blocks that hold something, with an empty line between them."""
    parts: Parts = []
    for block in filter(None, blocks):
        parts += [Text(), *block] if parts else block
    return parts


def _idle(gaps: Document) -> list[Parts]:
    sizes = [each for each in gaps["sizes"] if each["n"]]
    if not sizes:
        return []
    by_size = _table("gaps by length", [words.size_class(each) for each in sizes])
    by_size.add_row("n", *(f"{each['n']:,}" for each in sizes))
    by_size.add_row("ms", *(number(each["ms"], 1) for each in sizes))
    return [[by_size], _causes(gaps), _longest(gaps["longest"])]


def _causes(gaps: Document) -> Parts:
    table = _table("gaps by cause", ("n", "ms", "share"))
    found = [each for each in gaps["causes"] if each["n"]]
    for each in found:
        part = each["ms"] / gaps["ms"] if gaps["ms"] else None
        table.add_row(_cause(each), f"{each['n']:,}", number(each["ms"], 1), _share(part))
    return [table, *(_dim(f"{_cause(each)}: {each['text']}") for each in found if each["text"])]


def _cause(each: Document) -> str:
    return str(words.CAUSES.get(each["cause"], each["cause"]))


def _longest(longest: Sequence[Document]) -> Parts:
    if not longest:
        return []
    table = _table("longest", ("at", "cause"), ratio=1)
    for heading in ("kernel before", "kernel after"):
        table.add_column(heading, ratio=3)
    for each in longest[:MOST_GAPS]:
        around = (Name(each[key] or NOTHING, "dim") for key in ("before", "after"))
        table.add_row(duration(each["ms"]), duration(each["start_ms"]), _cause(each), *around)
    return [table]


def _kernels(found: Document, window_ms: float | None) -> Parts:
    kernels = found["kernels"]
    if not kernels:
        return [_dim("no kernels")]
    table = _table("kernel, ms", ("n", "exposed", "window", "total", "mean µs", "p99 µs"))
    for each in kernels[:MOST_KERNELS]:
        table.add_row(
            Name(each["name"]),
            f"{each['n']:,}",
            number(each["exposed_ms"], 1),
            _share(each["exposed_ms"] / window_ms if window_ms else None),
            number(each["total_ms"], 1),
            *(number(each[key], 1) for key in ("mean_us", "p99_us")),
        )
    rest = found["kernels_n"] - min(len(kernels), MOST_KERNELS)
    note = (
        "exposed: nothing else ran on the device meanwhile, so only this counts for a step; window: its share of that"
    )
    lines = {"small kernels": words.tiny(found), "launches": words.launches(found), "graphs": words.graphs(found)}
    told = [Text(f"{label}: {text}") for label, text in lines.items() if text]
    return [table, _dim(f"{note}; {plural(rest, 'more name')} in --json" if rest > 0 else note), *told]


def _copies(copies: Sequence[Document]) -> Parts:
    if not copies:
        return []
    table = _table("copies", ("n", "MB", "ms", "exposed", "overlapped", "GB/s"))
    for each in copies:
        table.add_row(
            Text(each["direction"]),
            f"{each['n']:,}",
            number(None if each["bytes"] is None else each["bytes"] / 1e6, 1),
            *row([each["ms"], each["exposed_ms"]]),
            _share(each["overlapped_share"]),
            number(each["gb_per_s"]),
        )
    return [table]


def _communication(found: Document) -> Parts:
    text = words.communication(found)
    if text is None:
        return []
    parts: Parts = [Text(f"communication: {text}")]
    kernels = found["communication"]["kernels"]
    if kernels and isinstance(kernels[0], Mapping):
        table = _table("collectives", ("n", "exposed", "total ms"))
        for each in kernels[:MOST_SYSTEM]:
            table.add_row(Name(each["name"]), f"{each['n']:,}", *row([each["exposed_ms"], each["total_ms"]]))
        parts.append(table)
    return parts


def operators(answers: Document) -> Parts:
    """Operators of the host by their own time."""
    found = answers["operators"]
    if found is None or not found["rows"]:
        return []
    table = _table("operator", ("n", "self ms", "total ms", "share"))
    for each in found["rows"][:MOST_OPERATORS]:
        times = row([each["self_ms"], each["total_ms"]])
        table.add_row(Name(each["name"]), f"{each['n']:,}", *times, _share(each["share"]))
    thread = f"thread {found['thread']}; " if found["thread"] is not None else ""
    return [table, _dim(f"{thread}self: without the operators that it calls")]


def system(answers: Document) -> Parts:
    """Calls of the operating system's runtime by their time."""
    if not answers["system"]:
        return []
    table = _table("call", ("n", "ms"))
    for each in answers["system"][:MOST_SYSTEM]:
        table.add_row(Name(each["name"]), f"{each['n']:,}", number(each["ms"]))
    return [table, _dim("summed over threads; most of it is waiting")]


def what_if(answers: Document) -> Parts:
    """Amdahl's law: what a faster kernel or operator would be worth, a row for each."""
    rows = answers["amdahl"]
    if not rows:
        return []
    changes = list(dict.fromkeys(each["change"] for each in rows))
    shown = [figure for figure in WHAT_IF if any(each[figure] for each in rows)] or ["step_ratio"]
    headings = [heading for figure in shown for heading in (WHAT_IF.get(figure), *changes) if heading]
    table = _table("if this were faster", ("share", *headings))
    for what in dict.fromkeys((each["what"], each["share"]) for each in rows):
        by_change = {each["change"]: each for each in rows if (each["what"], each["share"]) == what}
        cells = [cell for figure in shown for cell in _changed(figure, [by_change.get(change) for change in changes])]
        table.add_row(Name(what[0]), _share(what[1]), *cells)
    return [table, _dim(_what_if_note(answers, changes, shown))]


def _changed(figure: str, rows: Sequence[Document | None]) -> list[str]:
    """A figure after each change, where it has a present value that in front."""
    if figure == "step_ratio":
        return [number(each["step_ratio"] if each else None, 3) for each in rows]
    pairs = [(each[figure] if each else None) or (None, None) for each in rows]
    return row([next((now for now, _ in pairs if now is not None), None), *(after for _, after in pairs)])


def _what_if_note(answers: Document, changes: Sequence[str], shown: Sequence[str]) -> str:
    whole = "the steps' time" if answers["steps"]["n"] else "the window"
    then = "what remains of it" if shown == ["step_ratio"] else "the new mean"
    return f"share: of {whole}, where nothing else hides it; {' and '.join(changes)}: {then}, were it so much faster"


def hot(answers: Document) -> Parts:
    """Functions by samples, and counters of the processor."""
    found = answers["hot"]
    if found is None:
        return []
    table = _table("function", ("self", "with callees"))
    table.add_column("module", max_width=24, no_wrap=True, overflow="ellipsis", style="dim")
    for each in found["functions"][:MOST_OPERATORS]:
        cells = (_share(each["self_share"]), _share(each["share"]), Text(each["module"] or ""))
        table.add_row(Name(each["name"]), *cells)
    parts: Parts = [table] if found["functions"] else []
    drawn = f"; flame graph: {found['flame_graph']}" if found["flame_graph"] else ""
    parts.append(_dim(f"of {plural(found['samples'], 'sample')}{drawn}"))
    return [*parts, *_counters(dict(found["counters"] or {}))]


def _counters(counters: dict[str, Any]) -> Parts:
    """Figures of the processor, and why some are missing."""
    reason = counters.pop("reason", None)
    known = [f"{name} {_counter(value)}" for name, value in counters.items() if value is not None or reason is None]
    figures: Parts = [Text(" · ".join(known))] if known else []
    return [*figures, _dim(reason)] if reason else figures


def _counter(value: float | None) -> str:
    return "not supported" if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def replay(answers: Document) -> Parts:
    """Kernels that Nsight Compute replayed: how near to which peak, and what that means."""
    rows = (answers["kernel_replay"] or {}).get("rows") or []
    if not rows:
        return []
    table = _table("replayed kernel", ("n", "ms", *REPLAYED.values(), "GB/s"))
    for each in rows[:MOST_KERNELS]:
        shares = (NOTHING if each[key] is None else f"{each[key]:.0f} %" for key in REPLAYED)
        rate = number(each["gb_per_s"], 0)
        table.add_row(Name(each["kernel"]), f"{each['launches']:,}", number(each["duration_ms"]), *shares, rate)
    readings = [f"{shorten(each['kernel'], 40)}: {each['reading']}" for each in rows[:MOST_GAPS]]
    return [table, _dim("of the GPU's peak while the kernel ran; occupancy: of its warps"), *map(Text, readings)]


def sanitizer(answers: Document) -> Parts:
    """What Compute Sanitizer reported."""
    found = (answers["sanitizer"] or {}).get("findings") or []
    if not found:
        return []
    table = _table("report", ("n", "severity"), ratio=3)
    for heading in ("kernel", "place"):
        table.add_column(heading, ratio=3)
    for each in found[:MOST_KERNELS]:
        where = (Name(each[key] or NOTHING) for key in ("kernel", "place"))
        table.add_row(Name(each["kind"]), f"{each['count']:,}", each["severity"], *where)
    rest = len(found) - MOST_KERNELS
    return [table, *([_dim(f"{plural(rest, 'more report')} in --json")] if rest > 0 else [])]


def overhead(answers: Document) -> Parts:
    """What the capture itself cost, by the same plan with and without it."""
    found = answers.get("overhead")
    if not found:
        return []
    return [Text(found["text"]), *(_dim(words.overhead_row(each)) for each in found["rows"])]


def _table(heading: str, columns: Iterable[str], ratio: int = 2, gap: int = 2) -> Table:
    """A table with a left column, which takes what is left, and figures `gap` apart."""
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, gap), header_style="dim", expand=True)
    table.add_column(heading, ratio=ratio, min_width=8)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _share(value: float | None) -> str:
    """A share as a column of them aligns it, with one decimal."""
    return f"{100 * value:.1f} %" if value and 0.0005 <= value < 0.9995 else words.percent(value)


def _dim(text: str) -> Text:
    return Text(text, style="dim")
