"""The words of a profile: each part of one window's answers as a sentence or a few, from the document alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servebench.report.figures import NOTHING, duration, number, plural
from servebench.report.kernel_names import shorten

Document = Mapping[str, Any]

TRAFFIC = {"prefill_only": "prefill only", "decode_only": "decode only", "mixed": "mixed", "idle": "idle"}
STEPS = {
    "prefill_only": "prefill-only step",
    "decode_only": "decode-only step",
    "mixed": "mixed step",
    "idle": "step without work",
    "unknown": "step",
}
CAUSES = {
    "host_late": "host late",
    "dependency": "dependency",
    "copy_or_sync": "copy or sync",
    "no_request": "no request",
    "unknown": "unknown",
}
HOW = {"names": "names", "pattern": "names, by your pattern"}
MORE = "`servebench analyze` of this directory shows the tables behind it"
TOLD_ALREADY = ("traffic_missed", "capture_overhead")  # findings that a run's own report has in other words
STEP_KIND = {"prefill": "prefill_only", "decode": "decode_only", "mixed": "mixed"}


def percent(value: float | None) -> str:
    """A share of one with at most three digits; never rounded up to 100 % nor down to 0 %."""
    if value is None:
        return NOTHING
    if value in (0, 1):
        return f"{100 * value:.0f} %"
    return f"{min(max(100 * value, 0.01), 99.9):.3g} %"


def title(answers: Document) -> str:
    """What was captured: the window's name, and its kind where that says more."""
    name, kind = answers["name"], answers["kind"]
    return str(name) if kind in (None, "free", name) else f"{name} ({kind})"


def subtitle(answers: Document) -> str:
    """The tool and its version, what the file is, and how long the window was."""
    tool = " ".join(str(part) for part in (answers["tool"] or answers["source"], answers["version"]) if part)
    return " · ".join(part for part in (tool, _length(answers)) if part)


def _length(answers: Document) -> str:
    ms = (answers["window"] or {}).get("ms")
    if ms is None:
        return "no window" if answers["empty"] else ""
    return f"a window of {duration(ms)}"


def headline(answers: Document) -> str:
    """The answer in one sentence: how long a step took and how busy the devices were, or what else there is."""
    if answers["empty"]:
        return f"This window is empty: {answers['reason'] or 'nothing was captured in it'}."
    parts = [part for part in (_step_words(answers), _busy_words(answers)) if part]
    others = (each(answers) for each in (_sanitizer_words, _replay_words, _hot_words, _operator_words))
    parts = parts or [part for part in others if part][:1]
    text = "; ".join(parts) if parts else "The file holds no steps and no device activity"
    return f"{text[0].upper()}{text[1:]}."


def _step_words(answers: Document) -> str:
    row = main_step(answers)
    if row is None:
        return ""
    times = step_times(row)
    text = f"a {STEPS[row['kind']]} takes {duration(times['p50'])} (p50), {duration(times['p95'])} (p95)"
    decode = next((each for each in answers["steps"]["kinds"] if each["kind"] == "decode_only"), None)
    if row["kind"] != "mixed" or decode is None:
        return text
    return f"{text}, a decode-only one {duration(step_times(decode)['p50'])} (p50)"


def main_step(answers: Document) -> Document | None:
    """The kind of step that the window was meant for; else the one that took the most time."""
    kinds = [row for row in answers["steps"]["kinds"] if row["n"]]
    meant = [row for row in kinds if row["kind"] == STEP_KIND.get(answers["kind"] or "")]
    return max(meant or kinds, key=lambda row: row["n"] * (step_times(row)["mean"] or 0), default=None)


def step_times(row: Document) -> Document:
    """How long the steps took: from one's start to the next one's where that is known, else as the host marked them."""
    period = row.get("period")
    return period if period and period["n"] else row


def _busy_words(answers: Document) -> str:
    shares = [device["busy"]["share"] for device in answers["devices"] if device["busy"]["share"] is not None]
    if not shares:
        return ""
    if len(shares) == 1:
        return f"the device is busy for {percent(shares[0])} of {_window_words(answers)}"
    low, high = percent(min(shares)), percent(max(shares))
    span = low if low == high else f"{low} to {high}"
    return f"{len(shares)} devices are busy for {span} of {_window_words(answers)}"


def _window_words(answers: Document) -> str:
    ms = (answers["window"] or {}).get("ms")
    return "the window" if ms is None else f"{duration(ms)}"


def _replay_words(answers: Document) -> str:
    rows = (answers["kernel_replay"] or {}).get("rows")
    return f"the longest replayed kernel, {shorten(rows[0]['kernel'], 60)}: {rows[0]['reading']}" if rows else ""


def _sanitizer_words(answers: Document) -> str:
    found = answers["sanitizer"]
    if found is None:
        return ""
    check = f" ({found['check']})" if found.get("check") else ""
    if found["passed"] is None:
        return f"Compute Sanitizer{check} concludes nothing: {found['reason']}"
    if found["passed"]:
        return f"Compute Sanitizer{check} found nothing wrong"
    leaked = f" and {found['leaked_bytes']:,} bytes leaked" if found["leaked_bytes"] else ""
    return f"Compute Sanitizer{check} found {plural(found['errors'] or 0, 'error')}{leaked}: do not trust the answers"


def _hot_words(answers: Document) -> str:
    hot = answers["hot"]
    if hot is None or not hot["functions"]:
        return ""
    first = max(hot["functions"], key=lambda each: each["self_share"] or 0)
    return f"{percent(first['self_share'])} of {plural(hot['samples'], 'sample')} are in {first['name']} itself"


def _operator_words(answers: Document) -> str:
    rows = (answers["operators"] or {}).get("rows") or []
    if not rows:
        return ""
    first = max(rows, key=lambda each: each["self_ms"] or 0)
    return f"the host spends the most time in {first['name']} itself: {duration(first['self_ms'])}"


def alike(findings: Sequence[Document]) -> list[tuple[Document, int]]:
    """The findings; those of one code and next experiment, such as of several devices, as the first and how many."""
    groups: dict[tuple[str, str], list[Document]] = {}
    for each in findings:
        groups.setdefault((each["code"], each["next"]), []).append(each)
    return [(group[0], len(group)) for group in groups.values()]


def traffic(answers: Document) -> list[tuple[str, str]]:
    """What the client had in flight meanwhile, and whether the window met it: texts with their style."""
    found = answers["traffic"]
    if found is None:
        return []
    shares = found["shares"] or {}
    words = ", ".join(f"{percent(shares[key])} {text}" for key, text in TRAFFIC.items() if shares.get(key))
    level = found["in_flight"] or {}
    flight = f"{number(level.get('mean'))} in flight (mean), at most {number(level.get('max'))}"
    text = f"{words or 'no request'} · {plural(found['requests'], 'request')} · {flight}"
    if found["as_meant"] is False:
        return [(f"not as meant: {found['reason'] or 'other traffic ran'}", "yellow"), (text, "")]
    return [(f"as meant: {text}" if found["as_meant"] else text, "")]  # or it was meant for none


def clock(answers: Document) -> tuple[str, str]:
    """How the file's instants came onto the run's clock, and how far off they may be."""
    found = answers["alignment"]
    if found is None:
        return "the file's own; not brought onto the run's clock", "dim"
    moved = found["offset_us"]
    text = f"{found['method']}{f', moved by {_micro(moved)}' if moved else ''}"
    if found["residual_us"] is None:
        return f"{text}; how far off is not known: {found['reason'] or 'nothing bounds it'}", "yellow"
    late = found["residual_us"] > 1000
    return f"{text}; off by {_micro(found['residual_us'])} at most", "yellow" if late else ""


def _micro(us: float) -> str:
    return duration(us / 1000)


def steps_note(answers: Document) -> str:
    """How steps were told apart, and what was left out of them."""
    found = answers["steps"]
    if not found["n"]:
        return f"no steps: {found['reason'] or 'none ended inside the window'}"
    parts = [f"found by their {HOW[found['found_by']]}"] + ([found["reason"]] if found["reason"] else [])
    if found["truncated"]:
        parts.append(f"{plural(found['truncated'], 'step')} cut by the window's edge left out")
    return "; ".join(parts)


def busy(device: Document) -> str:
    """The device's busy time as a union, and its parts."""
    found = device["busy"]
    names = {"compute_ms": "compute", "communication_ms": "communication", "copy_ms": "copies", "fill_ms": "fills"}
    parts = [f"{text} {duration(found[key])}" for key, text in names.items() if found[key]]
    text = f"busy {duration(found['ms'])} ({percent(found['share'])}): {', '.join(parts) or 'nothing'}"
    if found["summed_ms"] and found["ms"] and found["summed_ms"] > 1.005 * found["ms"]:
        text += f"; its streams overlap: their sum, {duration(found['summed_ms'])}, is not busy time"
    return text


def idle(device: Document) -> str:
    """The device's idle time in a line."""
    found = device["idle"]
    number_of = sum(each["n"] for each in found["sizes"])
    return f"idle {duration(found['ms'])} ({percent(found['share'])}) in {plural(number_of, 'gap')}"


def size_class(each: Document) -> str:
    """``10–100 µs``, ``1–10 ms``, ``≥ 10 ms``."""
    low, high = each["from_us"] or 0, each["to_us"]
    if high is None:
        return f"≥ {_round(low)}"
    if not low:
        return f"< {_round(high)}"
    (a, unit), (b, other) = _round(low).split(), _round(high).split()
    return f"{a}–{b} {unit}" if unit == other else f"{a} {unit}–{b} {other}"


def _round(us: float) -> str:
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{us / factor:g} {unit}"
    return f"{us:g} µs"


def launches(device: Document) -> str | None:
    """Launch latency: from the call's start to the kernel's."""
    found = device["launches"]
    if found is None or not found["n"]:
        return None
    text = f"{_micro(found['p50_us'])} (p50), {_micro(found['p99_us'])} (p99) from the launch call to the kernel"
    if found["negative"]:
        text += f"; {found['negative']:,} of {found['n']:,} began before the call had returned"
    return text


def tiny(device: Document) -> str | None:
    """How many kernels are so short that the launch costs more than the work."""
    found = device["tiny"]
    if found is None or not found["n"]:
        return None
    below = f"below {found['below_us']:g} µs, {duration(found['ms'])} in all"
    return f"{percent(found['share'])} of the kernels ({found['n']:,}) are {below}"


def graphs(device: Document) -> str | None:
    """What was replayed from CUDA graphs."""
    found = device["graphs"]
    if found is None or not found["replays"]:
        return None
    inside = f", {found['kernels_in_graphs']:,} kernels in them" if found["kernels_in_graphs"] else ""
    return f"{plural(found['replays'], 'replay')} of CUDA graphs{inside}"


def communication(device: Document) -> str | None:
    """Collectives: how long, and how much of that nothing hid."""
    found = device["communication"]
    if found is None:
        return None
    hidden = f"{percent(found['hidden_share'])} hidden behind computation"
    return f"{duration(found['ms'])}, {hidden}, {duration(found['exposed_ms'])} exposed"


def skew(answers: Document) -> str | None:
    """How far apart the devices begin the same collective, and who is last."""
    found = answers["skew"]
    if found is None or not found["collectives"]:
        return None
    spread = f"{_micro(found['p50_us'])} (p50), {_micro(found['p99_us'])} (p99), {_micro(found['max_us'])} (max)"
    text = f"devices begin the same collective {spread} apart ({plural(found['collectives'], 'collective')})"
    last = found["last"]
    return f"{text}; device {last['device']} is the last in {percent(last['share'])}" if last else text


def counts(answers: Document) -> str:
    """What a regression gate may hold on to; what does not exist is left out."""
    found = answers["counts"] or {}
    words = [
        plural(found["kernels"], "kernel") if found.get("kernels") else "",
        f"{number(found['kernels_per_step'])} a step" if found.get("kernels_per_step") is not None else "",
        plural(found["graph_replays"], "graph replay") if found.get("graph_replays") else "",
        plural(found["api_calls"], "API call") if found.get("api_calls") else "",
        f"peak memory {found['peak_memory_bytes'] / 1e9:.3g} GB" if found.get("peak_memory_bytes") else "",
    ]
    return " · ".join(filter(None, words))


def overhead_row(row: Document) -> str:
    """A figure without and with the capture."""
    ratio = f" (× {number(row['ratio'])})" if row["ratio"] is not None else ""
    return f"{row['metric']}: {number(row['plain'])} without, {number(row['captured'])} with{ratio}"


def compact(profile: Document) -> list[tuple[str, str]]:
    """The profile of a run in a few lines: each window's headline, its overhead and its first finding, with styles."""
    lines = []
    for answers in profile["windows"]:
        missed = answers["empty"] or (answers["traffic"] or {}).get("as_meant") is False
        lines.append((f"{title(answers)}: {headline(answers)}", "yellow" if missed else ""))
        lines += [(f"· {traffic(answers)[0][0]}", "yellow")] if missed and not answers["empty"] else []
        lines += [(f"· {each['sentence']}", "") for each in answers["findings"] if each["code"] not in TOLD_ALREADY][:1]
        lines += [(f"· {text}", "dim")] if (text := _overhead_words(answers)) else []
    return [*lines, (MORE, "dim")] if lines else [("no window was captured", "yellow")]


def _overhead_words(answers: Document) -> str:
    found = answers.get("overhead")
    if not found:
        return ""
    told = next((each for each in found["rows"] if each["ratio"] is not None), None)
    return f"overhead of the capture: {told['metric']} × {number(told['ratio'])}" if told else str(found["text"])
