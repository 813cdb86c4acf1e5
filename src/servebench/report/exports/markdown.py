"""A run as one page of Markdown, to be pasted into an issue or a wiki."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servebench.analysis.quantiles import REPORTED
from servebench.record.rundir import RunDir
from servebench.report import sections
from servebench.report.exports import OURS
from servebench.report.exports.marks import model
from servebench.report.figures import number, row
from servebench.report.markdown import bullets, table
from servebench.report.optimisation_record import BANNERS

MARKS = BANNERS | {
    "incomplete": "**INCOMPLETE**: the run did not come to its end; these figures are of what was recorded of it."
}
LATENCIES = {"ttft": "TTFT", "ttfv": "TTFV", "tpot": "TPOT", "e2e": "E2E", "stall": "stall", "itl": "ITL", "icl": "ICL"}
LABELS = ("SLO", "Throughput", "Concurrency", "Lengths", "Client", "Window", "Profile")

Document = dict[str, Any]


class MarkdownExporter:
    """One page."""

    name = "markdown"
    help = OURS[name]

    def write(self, run: RunDir, summary: dict[str, Any], out: Path) -> list[Path]:
        """See `Exporter.write`."""
        out.write_text("\n\n".join(part for part in _parts(summary) if part) + "\n", encoding="utf-8")
        return [out]


def _parts(summary: Document) -> Iterator[str]:
    yield f"# {plain(summary['name'] or 'unnamed')}: {summary['verdict']['status']}"
    yield from (text for key, text in MARKS.items() if summary[key])
    yield _sentence(plain(sections.verdict_sentence(summary)))
    yield bullets(_raised(summary))
    yield plain(sections.headline(summary))
    yield "## Latency"
    yield _latencies(summary)
    yield bullets(_notes(summary))
    for label, lines in sections.labelled(summary, None):
        if label in LABELS:
            yield f"## {label}"
            yield bullets(plain(line.text) for line in lines)
    yield "## Outcomes"
    yield _outcomes(summary)
    yield bullets(plain(f"{e['n']:,} × {e['outcome']}: {e['error'] or e['http_status']}") for e in summary["errors"])
    yield "## Environment"
    yield table(("what", "value"), _environment(summary))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def plain(text: str, pipes: bool = True) -> str:
    """`text` so that Markdown shows it as it is; `pipes` False for a table's cell, whose pipes `table` escapes."""
    return re.sub(r"[\\`*_<>\[\]|]" if pipes else r"[\\`*_<>\[\]]", r"\\\g<0>", " ".join(text.split()))


def _raised(summary: Document) -> Iterator[str]:
    """Every check that is not ok, with its figure, its limit and the next step; then the notes of the run."""
    for code in summary["verdict"]["codes"]:
        if code["level"] != "ok":
            known = code["value"] is not None and code["limit"] is not None
            figure = f" ({sections.figure(code)})" if known else ""
            following = f" → {code['next']}" if code["next"] else ""
            yield f"**{plain(code['code'])}** ({code['level']}): {plain(code['text'] + figure + following)}"
    yield from (f"note: {plain(warning)}" for warning in summary["warnings"])


def _latencies(summary: Document) -> str:
    """The table, in ms; a dagger marks a quantile with fewer samples than it needs."""
    marks = [quantile.name for quantile in REPORTED]
    heads = ("latency", "unit", *(mark.replace("_", ".") for mark in marks), "mean", "n")
    rows = []
    for name, shown in LATENCIES.items():
        metric = summary["metrics"][name]
        cells = row([*(metric[mark] for mark in marks), metric["mean"]])
        few = ["†" if metric["n"] and mark in metric["below_floor"] else "" for mark in (*marks, "mean")]
        figures = [cell + dagger for cell, dagger in zip(cells, few, strict=True)]
        rows.append((shown, metric["unit"], *figures, number(metric["n"])))
    return table(heads, rows)


def _notes(summary: Document) -> Iterator[str]:
    for name, shown in LATENCIES.items():
        yield f"{shown}: {plain(sections.definition(summary['metrics'][name]))}"
    yield from (f"{mark}: {plain(text)}" for mark, text in sections.notes(summary, LATENCIES))


def _outcomes(summary: Document) -> str:
    """The outcomes that occurred, of the whole run and of the cohort; each column adds up to its first row."""
    whole, cohort = summary["outcomes"], summary["cohort"]
    sums = ("planned", "sent", "failed")
    words = ["planned", "ok", *(w for w in whole if w not in (*sums, "ok") and (whole[w] or cohort[w]))]
    rows = [(plain(word, pipes=False), number(whole[word]), number(cohort[word])) for word in words]
    return table(("outcome", "whole run", "cohort"), rows)


def _environment(summary: Document) -> list[tuple[str, str]]:
    """What was tested, with what, where and when; rows without a value are left out."""
    endpoint = summary["endpoint"] or {}
    engine = endpoint.get("engine") or {}
    found = {
        "model": model(summary),
        "server": " ".join(filter(None, (engine.get("name"), engine.get("version")))),
        "endpoint": " ".join(filter(None, (endpoint.get("url"), endpoint.get("api")))),
        "client": " ".join(line.text for line in sections.machine(summary)),
        "plan": " ".join(line.text for line in sections.plan(summary)),
        "load began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(summary["phases"]["start_ns"] / 1e9)),
        "servebench": summary["servebench"],
    }
    return [(key, plain(str(value), pipes=False)) for key, value in found.items() if value]


exporter = MarkdownExporter()
