"""The words of the console report: each section as lines of text, made from the summary alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servebench.report import profile_words
from servebench.report.figures import duration, number, plural, share, size

FILES = (
    "summary.json",
    "requests.parquet",
    "chunks.parquet",
    "telemetry.parquet",
    "plan.parquet",
    "histograms.hlog",
    "server.log",
)
EVERYONE = "ok requests of the cohort"
FAILURE_WORDS = (
    "http_error",
    "rejected",
    "stream_error",
    "truncated",
    "reset",
    "connect_error",
    "timeout",
    "empty",
    "protocol_error",
    "cancelled",
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a section and its rich style."""

    text: str
    style: str = ""


def verdict_sentence(summary: dict[str, Any]) -> str:
    """What the verdict means, in a sentence."""
    codes = summary["verdict"]["codes"]
    failed, warned = (sum(c["level"] == level for c in codes) for level in ("fail", "warn"))
    if failed:
        return f"do not use these figures: {plural(failed, 'check')} of {len(codes)} failed"
    if warned:
        return f"use these figures with care: {plural(warned, 'warning')} from {len(codes)} checks"
    return f"all {len(codes)} checks passed"


def figure(code: dict[str, Any]) -> str:
    """A code's figure against its limit: ``12.00, limit 5.00 ms``."""
    return f"{number(code['value'])}, limit {number(code['limit'])} {code['unit']}"


def subtitle(summary: dict[str, Any]) -> str:
    """Model, server and kind of load."""
    endpoint = summary["endpoint"] or {}
    engine = endpoint.get("engine") or {}
    name = engine.get("name")
    server = endpoint.get("url") if name in (None, "unknown") else " ".join(filter(None, (name, engine.get("version"))))
    load = summary["load"]
    tls = endpoint.get("tls") or {}
    unverified = "TLS NOT VERIFIED" if tls and tls.get("verified") is False else None
    parts = (endpoint.get("model"), server, f"{load['kind']} loop", endpoint.get("api"), unverified)
    return " · ".join(str(p) for p in parts if p)


def headline(summary: dict[str, Any]) -> str:
    """The result in one sentence."""
    ttft, itl, rates = summary["metrics"]["ttft"], summary["metrics"]["itl"], summary["throughput"]
    if not ttft["n"]:
        return "No request of the measured window ended well, so there are no latencies."
    if summary["load"]["kind"] == "closed":
        load = f"With {number(summary['concurrency']['total']['window_mean'])} requests in flight"
    else:
        load = f"At {number(rates['offered_requests_per_s'])} requests/s"
    text = f"{load}, users wait {_both(ttft)} for the first token"
    if itl["n"]:
        text += f" and {_both(itl)} for each next one"
    tokens = rates["output_tokens_per_s"]
    return f"{text}; the server writes {number(tokens)} tokens/s." if tokens is not None else f"{text}."


def _both(metric: dict[str, Any]) -> str:
    return f"{duration(metric['p50'])} (p50), {duration(metric['p99'])} (p99)"


def repeated(summary: dict[str, Any]) -> dict[str, str]:
    """Metrics that say what another one says in this run, and why; the table leaves them out."""
    metrics = summary["metrics"]
    figures = ("n", "mean", "p50", "p95", "p99", "p99_9")
    same = {
        "ttfv": ("ttft", "the same as TTFT here, as every first token was visible"),
        "icl": ("itl", "the same as ITL here, as every chunk held one token"),
    }
    return {k: why for k, (other, why) in same.items() if all(metrics[k][f] == metrics[other][f] for f in figures)}


def definition(metric: dict[str, Any]) -> str:
    """A metric's definition; and its population, unless that is the one that most have."""
    population = metric["population"].removeprefix(EVERYONE).strip()
    return f"{metric['definition']} ({population})" if population else str(metric["definition"])


def notes(summary: dict[str, Any], names: Iterable[str]) -> list[tuple[str, str]]:
    """Footnotes of the latency table, each with its mark: the cohort, the quantile rule, and the floors."""
    definitions = summary["definitions"]
    lines = [("n", f"{EVERYONE}, unless said; the cohort: {definitions['cohort']}")]
    lines.append(("p50", f"and the other quantiles: {definitions['quantiles']}"))
    if any(summary["metrics"][name]["below_floor"] and summary["metrics"][name]["n"] for name in names):
        lines.append(("†", "fewer samples than this quantile needs: p95 130, p99 662, p99.9 6,636"))
    return lines


def labelled(summary: dict[str, Any], path: Path | None) -> list[tuple[str, list[Line]]]:
    """The sections below the table, by label; those without content are left out."""
    sections = (
        ("SLO", slo(summary)),
        ("Throughput", throughput(summary)),
        ("Concurrency", concurrency(summary)),
        ("Lengths", lengths(summary)),
        ("Outcomes", outcomes(summary)),
        ("Client", client(summary)),
        ("Window", window(summary)),
        ("Profile", profile(summary)),
        ("Plan", plan(summary)),
        ("Machine", machine(summary)),
        ("Files", files(path)),
    )
    return [(label, lines) for label, lines in sections if lines]


def slo(summary: dict[str, Any]) -> list[Line]:
    """Each objective and what was reached; then attainment and goodput."""
    found = summary["slo"]
    if found is None:
        return []
    lines = []
    for objective in found["objectives"]:
        mark, style = ("✔", "green") if objective["met"] else ("✘", "red")
        few = " †" if objective["below_floor"] else ""
        lines.append(Line(f"{mark} {objective['text']:<24} {duration(objective['value']):>10}{few}", style))
    good = f"{found['good']:,} of {found['offered']:,} offered requests met them all"
    goodput = number(summary["throughput"]["goodput_per_s"])
    lines.append(Line(f"attainment {share(found['attainment'])} ({good}) · goodput {goodput} requests/s"))
    return lines


def throughput(summary: dict[str, Any]) -> list[Line]:
    """Tokens and requests a second inside the window."""
    rates = summary["throughput"]
    output, peak = number(rates["output_tokens_per_s"]), rates["peak_output_tokens_per_s"]
    top = f" (peak {number(peak)})" if peak is not None else ""
    requests = f"{number(rates['requests_per_s'])} requests/s"
    return [Line(f"{output} output tokens/s{top} · {number(rates['input_tokens_per_s'])} input tokens/s · {requests}")]


def concurrency(summary: dict[str, Any]) -> list[Line]:
    """Requests in flight, time-weighted."""
    total, prefill, decode = (summary["concurrency"][k] for k in ("total", "prefill", "decode"))
    before, after = number(prefill["window_mean"]), number(decode["window_mean"])
    inside = f"{number(total['window_mean'])} in flight (mean), at most {total['window_max']:,}"
    return [Line(f"{inside} · {before} before, {after} after the first token")]


def lengths(summary: dict[str, Any]) -> list[Line]:
    """Planned against server-counted lengths."""
    lines = []
    for kind in ("input", "output"):
        found = summary["lengths"][kind]
        if not found["n"]:
            lines.append(Line(f"{kind:<6} the server gave no count", "yellow"))
            continue
        planned, real = (f"mean {number(found[k]['mean'])}, p99 {found[k]['p99']:,}" for k in ("planned", "real"))
        offset = found["median_offset"]
        match = f"{offset:+d} tokens (median)" if offset else f"{share(found['equal_share'])} as planned"
        lines.append(Line(f"{kind:<6} planned {planned} · real {real} · {match}"))
    return lines


def outcomes(summary: dict[str, Any]) -> list[Line]:
    """Every planned request has one outcome; the most frequent errors below."""
    numbers = summary["outcomes"]
    words = [f"{numbers['planned']:,} planned", f"{numbers['ok']:,} ok"]
    words += [f"{numbers[w]:,} {w}" for w in (*FAILURE_WORDS, "dropped", "in_flight", "unrecorded") if numbers[w]]
    lines = [Line(" · ".join(words), "" if numbers["ok"] == numbers["planned"] else "yellow")]
    lines += [Line(f"{e['n']:,} × {e['outcome']}: {e['error'] or e['http_status']}", "dim") for e in summary["errors"]]
    sources = ", ".join(f"{source} {n:,}" for source, n in summary["tokens"]["source"].items())
    tokens = summary["tokens"]
    lines.append(Line(f"{tokens['output']:,} output tokens in the whole run; counted by {sources or 'nothing'}", "dim"))
    return lines


def client(summary: dict[str, Any]) -> list[Line]:
    """The load generator's own health: its cost, then how far its stamps and sends can be trusted."""
    found, kernel = summary["client"], summary["client"]["stamp_source"]
    reads = (kernel["kernel"] or 0) + (kernel["user"] or 0)
    cpu, memory, lag = found["cpu_us_per_token"], found["max_rss_bytes"], found["loop_lag_p99_ms"]
    cost = [
        plural(found["workers"], "worker"),
        f"{number(cpu)} µs CPU a token" if cpu is not None else "",
        f"{size(memory)} memory" if memory is not None else "",
        plural(found["connections"], "connection") if found["connections"] is not None else "",
    ]
    late = found["dispatch_late_p99_ms"]
    lateness = "turn-around" if summary["load"]["kind"] == "closed" else "send lateness"
    trust = [
        f"{share(kernel['kernel'] / reads)} kernel stamps" if reads and kernel["kernel"] is not None else "",
        plural(found["coalesced_reads"], "coalesced read"),
        f"p99 {lateness} {duration(late)}" if late is not None else "",
        f"p99 loop lag {duration(lag)}" if lag is not None else "",
    ]
    return [Line(" · ".join(p for p in parts if p)) for parts in (cost, trust)]


def plan(summary: dict[str, Any]) -> list[Line]:
    """What fixes the load: the same hash is the same load."""
    found = summary["plan"]
    seeds = ", ".join(f"{name} {seed}" for name, seed in (found["seeds"] or {}).items())
    parts = [
        f"{found['rows']:,} requests" if found["rows"] is not None else "",
        f"sha256 {found['hash'][:12]}" if found["hash"] else "",
        f"seeds: {seeds}" if seeds else "",
    ]
    text = " · ".join(p for p in parts if p)
    return [Line(text)] if text else []


def machine(summary: dict[str, Any]) -> list[Line]:
    """Where the client ran."""
    groups = summary["environment"]
    cpu, memory, system, python = (groups.get(k) or {} for k in ("cpu", "memory", "system", "python"))
    parts = [
        str(cpu.get("model") or ""),
        plural(cpu["usable"], "core") if cpu.get("usable") else "",
        f"{memory['total_bytes'] / 1e9:.0f} GB" if memory.get("total_bytes") else "",
        str(system.get("kernel") or ""),
        f"Python {python['version']}" if python.get("version") else "",
    ]
    text = " · ".join(p for p in parts if p)
    return [Line(text)] if text else []


def window(summary: dict[str, Any]) -> list[Line]:
    """The measured window and what must be known of it."""
    phases = summary["phases"]
    measured = number(phases["throughput_end_s"] - phases["warmup_end_s"])
    rule = f"{number(phases['warmup_end_s'])} s of warm-up" + (" (MSER-5)" if phases["warmup_rule"] == "MSER-5" else "")
    cohort = f"{summary['cohort']['planned']:,} requests due"
    origin = f"latencies from `{summary['load']['origin']}`"
    lines = [Line(f"{measured} s measured after {rule} · {cohort} · {origin}")]
    return lines + [Line(note, "dim") for note in phases["notes"]]


def profile(summary: dict[str, Any]) -> list[Line]:
    """Of each profile window the answer in a sentence; `servebench analyze` shows the tables behind it."""
    found = summary.get("profile")
    return [Line(text, style) for text, style in profile_words.compact(found)] if found else []


def files(path: Path | None) -> list[Line]:
    """The run directory and the files in it."""
    if path is None:
        return []
    return [Line(f"{path}/"), Line(" · ".join(name for name in FILES if (path / name).exists()), "dim")]
