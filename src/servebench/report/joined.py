"""The tables that join telemetry and the server's own figures to what the client saw; each with population, unit and n.

What is missing is one line with its reason, and never a zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from servebench.report.figures import NOTHING, duration, number, plural, row, share

PHASES = {"idle": "idle", "prefill_only": "prefill", "decode_only": "decode", "mixed": "mixed"}
LEVELS = {
    ("server", "running"): ("running, requests", 1.0),
    ("server", "waiting"): ("waiting, requests", 1.0),
    ("server", "kv_usage"): ("KV cache, %", 100.0),
    ("host", "cpu_busy_share"): ("CPU of this machine, %", 100.0),
    ("nvml", "power_w"): ("power, W", 1.0),
    ("nvml", "clock_sm_mhz"): ("SM clock, MHz", 1.0),
    ("nvml", "gpm_sm"): ("SMs active, %", 100.0),
    ("nvml", "gpm_dram"): ("DRAM bandwidth, %", 100.0),
    ("nvml", "util_gpu"): ("any kernel, %", 1.0),
    ("nvml", "mem_used_bytes"): ("memory, GB", 1e-9),
}  # in the order of the rows; of each the label and the factor
GPUS_SHOWN = 2
NARROW = 84  # columns
STAGES = {"first_request": "first request", "first_token": "first token"}


class Joined:
    """All of them, labelled: beside the tables where there is room, else above; those without content are left out."""

    def __init__(self, summary: dict[str, Any]) -> None:
        self._parts = {label: parts for label, section in SECTIONS.items() if (parts := section(summary))}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < NARROW:
            for label, parts in self._parts.items():
                yield Text(label, style="bold")
                yield from parts
            return
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(ratio=1)
        for label, parts in self._parts.items():
            table.add_row(label, Group(*parts))
        yield table


def phases(summary: dict[str, Any]) -> list[RenderableType]:
    """Time by phase, and the mean of every level given the phase."""
    found = summary["phases_joined"]
    if found["reason"] is not None:
        return [_dim(found["reason"])]
    table = _table("samples in the window, mean given", (*PHASES.values(), "all", "n"))
    window = duration(found["window_ms"])
    shares = (found["shares"][phase] for phase in PHASES)
    table.add_row(
        f"time, % of {window}, all requests", *(NOTHING if s is None else f"{100 * s:.1f}" for s in shares), "100", ""
    )
    left_out = _levels(table, summary)
    return [table, _dim(f"{plural(left_out, 'more GPU')} in summary.json")] if left_out else [table]


def _levels(table: Table, summary: dict[str, Any]) -> int:
    """Add a row for each level; return how many GPUs were left out."""
    tables = {(t["source"].replace("remote", "nvml"), t["source"], t["device"], t["name"]): t for t in _tables(summary)}
    unused = {(g["source"], g["device"]) for g in summary["energy"]["gpus"] if g["used"] is False}
    kept = [key for key in tables if (key[1], key[2]) not in unused]
    gpus = sorted({(source, device) for _, source, device, _ in kept if device.startswith("gpu-")})
    several = {kind for kind, n in Counter((key[0], key[3]) for key in kept).items() if n > 1}
    shown = set(gpus[:GPUS_SHOWN])
    for (kind, name), (label, factor) in LEVELS.items():
        for key in kept:
            if (key[0], key[3]) == (kind, name) and (kind != "nvml" or (key[1], key[2]) in shown):
                words = _words(label, key[2], (kind, name) in several)
                table.add_row(words, *_level(tables[key], factor), f"{tables[key]['n']:,}")
    return len(gpus) - len(shown)


def _tables(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [t for t in summary["phases_joined"]["tables"] if t["n"]]


def _words(label: str, device: str, several: bool) -> str:
    if device.startswith("gpu-"):
        return f"GPU {device.removeprefix('gpu-')} {label}"
    return f"{label} ({device})" if several else label


def _level(found: dict[str, Any], factor: float) -> list[str]:
    means = [found["given"][phase]["mean"] for phase in PHASES] + [found["all"]["mean"]]
    return [number(None if mean is None else mean * factor, _places(found, factor)) for mean in means]


def _places(found: dict[str, Any], factor: float) -> int:
    """Decimals of a row: by the size of its mean, two at most."""
    size = abs(found["all"]["mean"] * factor)
    return 0 if size >= 100 else 1 if size >= 10 else 2


def interference(summary: dict[str, Any]) -> list[RenderableType]:
    """ITL given other requests' prefills and their tokens; the ratio of the means; stalls."""
    found = summary["interference"]
    if found["reason"] is not None:
        return [_dim(found["reason"])]
    prefills, tokens = found["itl_by_prefills"], found["itl_by_prefill_tokens"]
    return [
        _bins("ITL of the cohort, ms, given others' prefills", prefills, ("mean", "p99"), "tokens"),
        _bins("ITL, ms, given their tokens", tokens, ("mean",), "tokens"),
        _ratio(found),
        _stalls(found["stalls"]),
    ]


def _ratio(found: dict[str, Any]) -> Text:
    ratio = found["ratio"]
    if ratio["value"] is None:
        return _dim(f"no ratio of ITL with to without a prefill in flight: {ratio['reason']}")
    text = f"mean ITL with ÷ without a prefill: {number(ratio['value'])}"
    if ratio["low"] is None:
        return Text(f"{text} (no interval: {ratio['reason']})")
    return Text(f"{text} (95 % within the run: {number(ratio['low'])} to {number(ratio['high'])})")


def _stalls(found: dict[str, Any]) -> Text:
    gaps, factor = plural(found["gaps"], "gap"), number(found["factor"], 0)
    text = f"stalls (over {factor}× the median): {found['count']:,} of {gaps}"
    if found["count"]:
        text += f", to {duration(found['largest_ms'])}, {100 * found['over_prefill_share']:.0f} % over a prefill"
    return Text(text)


def queue(summary: dict[str, Any]) -> list[RenderableType]:
    """TTFT against the queue at the request's sending, and TTFT split by the server's own times."""
    found = summary["interference"]["ttft_by_queue_depth"]
    parts: list[RenderableType] = []
    if any(each["n"] for each in found):
        parts.append(_bins("TTFT from sent, ms, given the queue", found, ("p50", "p95"), "requests"))
    split = summary["server_side"]["ttft_split"]
    if summary["server_side"]["reason"] is None:
        parts.append(_split(split))
    return parts


def _split(split: dict[str, Any]) -> Text:
    pieces = {
        "network_ms": "network",
        "queue_ms": "queue",
        "prefill_ms": "prefill",
        "rest_ms": "rest",
    }
    known = [f"{text} {number(split[name])}" for name, text in pieces.items() if split[name] is not None]
    text = f"mean TTFT {number(split['client_ms'])} ms = {' + '.join(known)} (n {split['n_client']:,})"
    if not known:
        return _dim(f"TTFT is not split: {split['reason']}")
    return Text(f"{text}; {split['reason']}" if split["reason"] else text)


def server(summary: dict[str, Any]) -> list[RenderableType]:
    """The server's counts against the client's; its steps, cache and preemptions."""
    found = summary["server_side"]
    if found["reason"] is not None:
        return [_dim(found["reason"])]
    lines = [_agreement(found["agreement"])]
    lines += [Text(line) for line in (_service(found["service"]), _work(found)) if line]
    for name, words in (("missing", "not on its page"), ("lost", "gone from its page")):
        if found.get(name):
            lines.append(_dim(f"{words}: {', '.join(found[name])}"))
    if renamed := [f"{r['name']} as {r['series']}" for r in found["renamed"]]:
        lines.append(_dim(f"under other names: {', '.join(renamed)}"))
    return list(lines)


def _agreement(rows: list[dict[str, Any]]) -> Text:
    if all(each["agrees"] for each in rows):
        same = ", ".join(f"{each['client']:,} {_what(each)}" for each in rows)
        return Text(f"client = server: {same}")
    style = "yellow" if any(each["agrees"] is False and each["reason"] is None for each in rows) else ""
    return Text(f"client and server over the run: {'; '.join(map(_difference, rows))}", style=style)


def _what(found: dict[str, Any]) -> str:
    return str(found["what"]).replace("_", " ")


def _difference(found: dict[str, Any]) -> str:
    mine, its = f"{_what(found)} {found['client']:,}", found["server"]
    told = f"{mine}, the server's unknown" if its is None else f"{mine} {'=' if found['agrees'] else '≠'} {its:,.0f}"
    return f"{told} ({found['reason']})" if found["reason"] else told


def _service(found: dict[str, Any]) -> str:
    if found["difference_ms"] is None:
        return f"service time is not compared: {found['reason']}" if found["reason"] else ""
    apart = f"{duration(found['difference_ms'])} ({100 * found['difference_share']:.2g} %)"
    both = f"{number(found['client_ms'])} ms against {number(found['server_ms'])}"
    return f"service time {both} by queue + prefill + decode: {apart}"


def _work(found: dict[str, Any]) -> str:
    steps, cache, counters = found["steps"], found["prefix_cache"], found["counters"]
    preempted = counters["preemptions"]["window"]
    words = []
    if steps["per_s"] is not None:
        words.append(f"{number(steps['per_s'])} steps/s of {number(steps['mean_tokens'])} tokens")
    if preempted is not None:
        words.append(plural(round(preempted), "preemption"))
    if cache["hit_share"] is not None:
        beyond = f" ({cache['beyond']:,.0f} unintended)" if cache["beyond"] is not None else ""
        words.append(f"prefix hits {share(cache['hit_share'])}{beyond}")
    if found["spec_decode"]["acceptance"] is not None:
        words.append(f"{share(found['spec_decode']['acceptance'])} of drafted tokens accepted")
    return " · ".join(words)


def energy(summary: dict[str, Any]) -> list[RenderableType]:
    """Energy of each GPU of the server, and what a token and a request cost; nothing without a GPU."""
    found = summary["energy"]
    if not found["gpus"]:
        return []
    lines = [Text(_gpu(gpu)) for gpu in found["gpus"] if gpu["used"] is not False]
    if found["reason"] is not None:
        return [*lines, *(Text(f"no J per token: {reason}", style="yellow") for reason in found["reasons"])]
    per = [
        f"{number(found['j_per_output_token'])} J an output token",
        f"{number(found['j_per_request'])} J a request",
        f"{number(found['j_per_output_token_above_idle'])} J an output token above idle"
        if found["j_per_output_token_above_idle"] is not None
        else "no idle baseline",
    ]
    n = f"by the {found['basis']}; n {found['output_tokens']:,} tokens, {found['requests']:,} requests in the window"
    return [*lines, Text(f"{' · '.join(per)} ({n})")]


def _gpu(gpu: dict[str, Any]) -> str:
    joules = gpu["counter_j"] if gpu["counter_j"] is not None else gpu["integral_j"]
    head = f"{gpu['device']}{' ' + gpu['name'] if gpu['name'] else ''}"
    if joules is None:
        return f"{head}: {gpu['counter_reason']}"
    words = [f"{head}: {number(joules)} J in the window, mean {number(gpu['mean_w'])} W"]
    words[0] += f" of {number(gpu['limit_w'])} W allowed" if gpu["limit_w"] is not None else ""
    words.append(f"idle {number(gpu['idle']['mean'])} W" if gpu["idle"]["n"] else "never idle")
    if gpu["difference_share"] is not None:
        words.append(f"∫power {100 * gpu['difference_share']:+.2f} %")
    words.append(f"n {gpu['samples']:,}, longest gap {duration(gpu['longest_gap_ms'])}")
    return ", ".join(words)


def roofline(summary: dict[str, Any]) -> list[RenderableType]:
    """How far the server was from what the hardware allows; nothing without a GPU."""
    found = summary["roofline"]
    if not summary["energy"]["gpus"]:
        return []
    if found["reason"] is not None:
        return [_dim(f"no estimate: {found['reason']}")]
    lines = []
    for kind, what in (("decode", "a decode step"), ("prefill", "all prefills")):
        part = found[kind]
        if part["reason"] is not None:
            lines.append(_dim(f"{kind}: {part['reason']}"))
            continue
        text = f"{what}: floor {duration(part['floor_ms'])}, took {duration(part['measured_ms'])}"
        lines.append(Text(f"{text}: {share(part['achieved_share'])} of what {found['gpus']} × {found['gpu']} allow"))
    return [*lines, _dim("an estimate; the formulas are in summary.json")]


def cold_start(summary: dict[str, Any]) -> list[RenderableType]:
    """From the launch of the server to the second from which it was steady; in none of the other figures."""
    found = summary["cold_start"]
    stages = [f"{STAGES.get(s['name'], s['name'])} {_after(s, not i)}" for i, s in enumerate(found["stages"])]
    if not stages and found["stable"]["window_median_ms"] is None:
        return []
    lines = [Text(" · ".join(stages))] if stages else []
    if found.get("log"):
        told = " · ".join(
            f"{name.removesuffix('_s').replace('_', ' ')} {number(s)} s" for name, s in found["log"].items()
        )
        lines.append(Text(f"by its log: {told}"))
    return [*lines, _stable(found)]


def _after(stage: dict[str, Any], first: bool) -> str:
    return f"after {duration(stage['at_ms'])}" if first else f"+{duration(stage['took_ms'])}"


def _stable(found: dict[str, Any]) -> Text:
    stable = found["stable"]
    why = "" if found["stages"] else f"{found['reason']}; "
    if stable["after_load_start_ms"] is None:
        return _dim(f"{why}TTFT not steady: {stable['reason']}")
    when = duration(stable["after_load_start_ms"])
    text = f"TTFT steady (within {share(stable['tolerance'])}) {when} after the load began"
    if stable["after_launch_ms"] is not None:
        text += f", {duration(stable['after_launch_ms'])} after the launch"
    return Text(f"{why}{text}")


def telemetry(summary: dict[str, Any]) -> list[RenderableType]:
    """What was sampled how often and at what cost; what was not, and why."""
    found = summary["telemetry"]
    sampled = {name: s for name, s in found["sources"].items() if s["state"] == "sampled"}
    words = [_rate(name, source) for name, source in sampled.items()]
    if found["cpu_share"] is not None:
        words.append(f"{share(found['cpu_share'])} of a core")
    lines = [Text(" · ".join(words))] if sampled else []
    missing = [_dim(f"{name}: {s['reason']}") for name, s in found["sources"].items() if name not in sampled]
    return [*lines, *missing, *([_dim(found["reason"])] if found["reason"] else [])]


def _rate(name: str, source: dict[str, Any]) -> str:
    text = f"{name} n {source['samples']:,}"
    if source.get("achieved_hz") is not None:
        text += f" at {number(source['achieved_hz'])} Hz"
    if source.get("longest_gap_ms") is not None:
        text += f", gaps to {duration(source['longest_gap_ms'])}"
    failed = sum((source.get("failures") or {}).values())
    return text + (f", {failed:,} failed" if failed else "")


def _bins(title: str, bins: Sequence[dict[str, Any]], figures: Iterable[str], each: str) -> Table:
    """A table with a column for each bin, a row for each figure, and the n."""
    table = _table(title, [b["bin"].replace("-", "–") for b in bins])
    for name in figures:
        table.add_row(name, *row([b[name] for b in bins]))
    table.add_row(f"n, {each}", *(f"{b['n']:,}" if b["n"] else NOTHING for b in bins))
    return table


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 2), header_style="dim", expand=True)
    table.add_column(title, ratio=1)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    return table


def _dim(text: str) -> Text:
    return Text(text, style="dim")


SECTIONS: dict[str, Callable[[dict[str, Any]], list[RenderableType]]] = {
    "Phases": phases,
    "Interference": interference,
    "Queue": queue,
    "Server": server,
    "Energy": energy,
    "Roofline": roofline,
    "Cold start": cold_start,
    "Telemetry": telemetry,
}
