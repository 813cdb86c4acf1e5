"""The figures of a run as gauges in Prometheus' text exposition, ready to be pushed to a gateway.

Base units throughout: seconds, tokens, requests. A figure that does not exist has no sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from servebench.analysis.quantiles import REPORTED
from servebench.record.columns import Outcome
from servebench.record.rundir import RunDir
from servebench.report.exports import OURS
from servebench.report.exports.marks import marks, model

Document = dict[str, Any]
Sample = tuple[dict[str, str], float | None]

RATES = {
    "output_tokens_per_s": ("output_tokens_per_second", "Output tokens received in the measured window, per second"),
    "input_tokens_per_s": ("input_tokens_per_second", "Prompt tokens of the measured window, per second"),
    "requests_per_s": ("requests_per_second", "Requests that ended in the measured window, per second"),
    "offered_requests_per_s": ("offered_requests_per_second", "Requests that were due in the window, per second"),
    "goodput_per_s": ("goodput_requests_per_second", "Requests that met every objective, per second"),
    "attainment": ("slo_attainment_ratio", "Share of the offered requests that met every objective"),
    "window_s": ("window_seconds", "Length of the measured window"),
}


class PrometheusExporter:
    """One text file."""

    name = "prometheus"
    help = OURS[name]

    def write(self, run: RunDir, summary: dict[str, Any], out: Path) -> list[Path]:
        """See `Exporter.write`."""
        registry = CollectorRegistry()
        registry.register(_Gauges(summary))
        out.write_bytes(generate_latest(registry))
        return [out]


class _Gauges(Collector):
    """The gauges of a summary, each with the labels that say which run it is of and what the run is worth."""

    def __init__(self, summary: Document) -> None:
        self.summary = summary
        self.labels = {
            "name": summary["name"] or "",
            "model": model(summary) or "",
            "verdict": summary["verdict"]["status"],
            "marks": marks(summary),
        }

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As prometheus_client asks of a collector; families without a sample are left out."""
        for name, text, samples in self._all():
            known = [(labels, value) for labels, value in samples if value is not None]
            if known:
                yield self._family(name, text, known)

    def _family(self, name: str, text: str, samples: list[tuple[dict[str, str], float]]) -> GaugeMetricFamily:
        names = [*self.labels, *samples[0][0]]
        family = GaugeMetricFamily(f"servebench_{name}", text, labels=names)
        for labels, value in samples:
            both = self.labels | labels
            family.add_metric([both[label] for label in names], float(value))
        return family

    def _all(self) -> Iterator[tuple[str, str, list[Sample]]]:
        summary = self.summary
        yield "run_start_timestamp_seconds", "When the load began", [({}, summary["phases"]["start_ns"] / 1e9)]
        yield "checks", "Checks of the verdict, by how they ended", _checks(summary)
        for name, metric in summary["metrics"].items():
            yield from _latency(name, metric)
        for key, (name, text) in RATES.items():
            yield name, text, [({}, summary["throughput"][key])]
        if summary["slo"] is not None:
            yield "slo_met", "1 if every objective was met, else 0", [({}, float(summary["slo"]["met"]))]
        yield "requests", "Requests of the whole run, by outcome; they add up to the planned ones", _outcomes(summary)
        yield "requests_planned", "Requests that were due in the whole run", [({}, summary["outcomes"]["planned"])]
        yield "output_tokens", "Output tokens of the whole run", [({}, summary["tokens"]["output"])]
        yield "input_tokens", "Prompt tokens of the whole run, by the server", [({}, summary["tokens"]["input"])]


def _latency(name: str, metric: Document) -> Iterator[tuple[str, str, list[Sample]]]:
    text = f"{metric['definition']}; {metric['population']}"
    marked = [({"quantile": f"{float(q.share):g}"}, _seconds(metric[q.name])) for q in REPORTED]
    yield f"{name}_seconds", text, marked
    yield f"{name}_mean_seconds", f"Mean: {text}", [({}, _seconds(metric["mean"]))]
    yield f"{name}_samples", f"Samples: {text}", [({}, metric["n"])]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1e3, 9)


def _checks(summary: Document) -> list[Sample]:
    levels = [code["level"] for code in summary["verdict"]["codes"]]
    return [({"level": level}, levels.count(level)) for level in ("ok", "warn", "fail")]


def _outcomes(summary: Document) -> list[Sample]:
    words = [*map(str, Outcome), "unrecorded"]
    return [({"outcome": word}, summary["outcomes"][word]) for word in words]


exporter = PrometheusExporter()
