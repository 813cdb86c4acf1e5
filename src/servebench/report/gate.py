"""A gate as people read it: a table on the console, and a Markdown summary for a pull request."""

from __future__ import annotations

import re
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servebench.report.console import stdout_console
from servebench.report.figures import NOTHING, duration, number, plural, share

WIDTH = 110
LEAST_WIDTH = 80
SHOWN_DIFFERENCES = 12
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

TITLES = {"passed": "PASSED", "failed": "REGRESSION", "invalid": "INVALID"}
TITLE_STYLES = {"passed": "bold white on green4", "failed": "bold white on red3", "invalid": "bold white on red3"}
STATUS_WORDS = {"pass": "pass", "fail": "FAIL", "undecided": "undecided", "not judged": "not judged"}
STATUS_STYLES = {"pass": "green", "fail": "bold red", "undecided": "yellow", "not judged": "yellow"}
EMOJI = {"passed": "✅", "failed": "❌", "invalid": "⛔"}
SOURCES = {
    "noise": "what equal runs stay within",
    "given": "given",
    "stated": "stated, for want of baseline runs",
    "counted": "no more than chance",
}


def print_gate(gate: dict[str, Any], console: Console | None = None) -> None:
    """Print a gate (the document of `servebench.experiment.gate`) to `console`, by default standard output."""
    console = console or stdout_console(WIDTH)
    console.print(render(gate), width=max(LEAST_WIDTH, min(WIDTH, console.width)))


def render(gate: dict[str, Any]) -> RenderableType:
    """The gate as something that rich prints."""
    title = Text.assemble((f" {TITLES[gate['status']]} ", TITLE_STYLES[gate["status"]]), "  ", headline(gate))
    if gate["simulated"]:
        title.append("  SIMULATED", style="bold magenta")
    parts: list[RenderableType] = [title, Text()]
    if gate["checks"]:
        parts += [_table(gate), Text(legend(gate), style="dim"), Text()]
    for each in raised(gate):
        parts.append(Text(f"{'✘' if each['level'] == 'fail' else '!'} {each['text']}", style=_level(each)))
        if each["next"]:
            parts.append(Text(f"  → {each['next']}", style="dim"))
    if gate["differences"]:
        parts += [Text(), Text("What differs from the baseline", style="bold"), *map(Text, differing(gate))]
    return Padding(Group(*parts), (1, 2))


def _level(code: dict[str, str]) -> str:
    return "red" if code["level"] == "fail" else "yellow"


def headline(gate: dict[str, Any]) -> str:
    """The result in one sentence."""
    if gate["status"] == "invalid" and not gate["checks"]:
        return "nothing was judged: the runs cannot be compared"
    if gate["status"] == "invalid":
        return "a given limit cannot be judged, which is no pass"
    of = f"{plural(len(gate['runs']['candidate']), 'run')} against {len(gate['runs']['baseline'])} of the baseline"
    lost = [each["figure"] for each in gate["checks"] if each["status"] == "fail"]
    open_ = [each["figure"] for each in gate["checks"] if each["status"] == "undecided"]
    if lost:
        return f"{', '.join(lost)}: worse than allowed, {of}"
    if open_ and gate["status"] == "failed":
        return f"{', '.join(open_)}: undecided, which --strict does not let pass, {of}"
    return f"{gate['name']}: no regression, {of}"


def raised(gate: dict[str, Any]) -> list[dict[str, str]]:
    """What was found besides the checks, the worst first."""
    return [each for each in gate["verdict"]["codes"] if each["level"] != "ok"]


def value(check: dict[str, Any], side: str) -> str:
    """A figure of one side in its unit; `side` is "base", "cand", or "limit" of an absolute check."""
    figure = check[side]
    if figure is None or check["unit"] == "ms":
        return duration(figure)
    return share(figure) if not check["unit"] else f"{number(figure)} {check['unit']}"


def change(size: float | None) -> str:
    """A change with its sign: ``+4.8 %``."""
    return NOTHING if size is None else f"{100 * size:+.1f} %"


def limit_of(check: dict[str, Any]) -> str:
    """The limit as it is held against the candidate."""
    if check["limit"] is None:
        return NOTHING
    sign = "<" if check["better"] == "lower" else ">"
    return f"{sign} {value(check, 'limit') if check['absolute'] else change(check['limit'])}"


def sentence(check: dict[str, Any]) -> str:
    """A check that failed, in one line: figures, change and limit."""
    moved = f"{value(check, 'base')} → {value(check, 'cand')}"
    if check["change"] is None:
        return f"{check['figure']}: {moved}: {check['text']}"
    return f"{check['figure']}: {moved} ({change(check['change'])}, limit {change(check['limit'])}): {check['text']}"


def legend(gate: dict[str, Any]) -> str:
    """What the columns mean, and how often equal code passes where that is known."""
    sources = dict.fromkeys(each["source"] for each in gate["checks"])
    said = "; ".join(SOURCES[source] for source in sources)
    text = f"Medians over the runs; failed requests counted. Limits: {said}."
    relative = [each for each in gate["checks"] if each["change"] is not None]
    if not relative or gate["strict"] or any(each["noise"] is None for each in relative):
        return text
    return (
        f"{text} Finds: the true change that fails in 95 % of gates. "
        f"Equal code passes at least {share(gate['confidence'])} of gates."
    )


def _table(gate: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("check", no_wrap=True)
    for title in ("baseline", "candidate", "change", "limit", "finds"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for check in gate["checks"]:
        status = Text(STATUS_WORDS[check["status"]], style=STATUS_STYLES[check["status"]])
        if check["status"] != "pass" or check["source"] == "counted":
            status.append(f": {check['text']}", style="dim")
        table.add_row(Text(check["name"], style="bold"), *_cells(check), status)
    return table


def _cells(check: dict[str, Any]) -> list[str]:
    finds = change(check["found_from"])
    return [value(check, "base"), value(check, "cand"), change(check["change"]), limit_of(check), finds]


def differing(gate: dict[str, Any]) -> list[str]:
    """What differs between the sides, a line each; the first dozen."""
    found = gate["differences"]
    lines = [f"{each['key']}: {_brief(each['base'])} → {_brief(each['cand'])}" for each in found[:SHOWN_DIFFERENCES]]
    return lines + ([f"and {len(found) - SHOWN_DIFFERENCES} more"] if len(found) > SHOWN_DIFFERENCES else [])


def _brief(found: Any) -> str:
    text = "none" if found is None else str(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


def markdown(gate: dict[str, Any]) -> str:
    """The gate as Markdown, for a pull request; what no text may hold, such as control characters, stands as ``?``."""
    simulated = " (SIMULATED)" if gate["simulated"] else ""
    lines = [f"### {EMOJI[gate['status']]} servebench gate: {_escaped(gate['name'])}{simulated}", ""]
    lines += [f"**{TITLES[gate['status']]}** – {_escaped(headline(gate))}", ""]
    if gate["checks"]:
        lines += [*_markdown_table(gate), "", f"<sub>{legend(gate)}</sub>", ""]
    lines += [f"- {'❌' if each['level'] == 'fail' else '⚠️'} {_escaped(each['text'])}" for each in raised(gate)]
    if gate["differences"]:
        lines += ["", "<details><summary>What differs from the baseline</summary>", ""]
        lines += [*(f"- {_escaped(line)}" for line in differing(gate)), "", "</details>"]
    return plain("\n".join(lines).rstrip() + "\n")


def plain(text: str) -> str:
    """Text of the characters that XML 1.0 allows: others, which a folder's name may have, become ``?``."""
    return _NOT_XML.sub("?", text)


def _markdown_table(gate: dict[str, Any]) -> list[str]:
    rows = ["| check | baseline | candidate | change | limit | finds | |", "|---|--:|--:|--:|--:|--:|---|"]
    for check in gate["checks"]:
        mark = {"pass": "✅", "fail": "❌"}.get(check["status"], "⚠️")
        why = "" if check["status"] == "pass" else f" {_escaped(check['text'])}"
        rows.append(f"| `{check['name']}` | {' | '.join(map(_escaped, _cells(check)))} | {mark}{why} |")
    return rows


def _escaped(text: str) -> str:
    """Text that Markdown takes as it is, on one line and inside a table."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    for sign in "\\|*_`[]":
        plain = plain.replace(sign, f"\\{sign}")
    return plain
