"""A run as the JSON that `vllm bench serve --save-result --save-detailed` writes, for scripts that read those.

Keys and formulas are those of vLLM 0.32, which counts from the instant at which it begins to send, takes all requests
of the run, warm-up included, and interpolates percentiles; so its figures differ from summary.json's. What a request
lacks that failed is 0 there, and its `errors` entry says so. Keys whose value a run does not hold are left out:
tokenizer_id, generated_texts, rtfx.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import MISSING, OUTCOMES, Bools, Ints, RunData
from servebench.analysis.definitions import TOOLS
from servebench.record.rundir import RunDir
from servebench.report.exports import OURS
from servebench.report.exports.marks import marks, model
from servebench.report.summary_io import read

BACKENDS = {"chat": "openai-chat", "completions": "openai"}
LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2el"}
PERCENTILES = (50, 90, 95, 99, 99.9)

Document = dict[str, Any]


class VllmExporter:
    """One JSON document."""

    name = "vllm"
    help = OURS[name]

    def write(self, run: RunDir, summary: dict[str, Any], out: Path) -> list[Path]:
        """See `Exporter.write`."""
        data = read(run)
        sent = _Sent.of(data)
        parts = (_setup(summary, sent), _traffic(data.load), _totals(sent), _details(data, sent), _latencies(data))
        document = {key: value for part in parts for key, value in part.items()}
        out.write_text(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        return [out]


@dataclass(frozen=True, slots=True)
class _Sent:
    """The requests that were sent, in the order of the plan.

    Attributes:
        rows: of `Requests`.
        good: mask over `rows`: vLLM's success.
        dispatched, end: ns.
        inputs: prompt tokens by the server, else as planned, which is what vLLM knows of them.
        outputs: tokens; 0 of those that failed.
    """

    rows: Ints
    good: Bools
    dispatched: Ints
    end: Ints
    inputs: Ints
    outputs: Ints

    @classmethod
    def of(cls, run: RunData) -> _Sent:
        requests = run.requests
        rows = np.flatnonzero(requests.dispatched != MISSING)
        good = (requests.ok & (requests.first_token != MISSING) & (requests.last_token != MISSING))[rows]
        inputs, outputs = requests.input_tokens[rows], requests.output_tokens[rows]
        return cls(
            rows=rows,
            good=good,
            dispatched=requests.dispatched[rows],
            end=requests.end[rows],
            inputs=np.where(inputs == MISSING, requests.input_planned[rows], inputs),
            outputs=np.where(good & (outputs != MISSING), outputs, 0),
        )

    @property
    def seconds(self) -> float | None:
        """First dispatch to last end of the requests that ended well; None without any."""
        ended = self.good & (self.end != MISSING)
        if not ended.any():
            return None
        return float(self.end[ended].max() - self.dispatched[ended].min()) / 1e9 or None


def _setup(summary: Document, sent: _Sent) -> Document:
    """What vLLM repeats of its arguments; what the run is worth goes where its `--metadata` would."""
    backend = BACKENDS.get((summary["endpoint"] or {}).get("api") or "")
    found = {
        "date": time.strftime("%Y%m%d-%H%M%S", time.localtime(summary["phases"]["start_ns"] / 1e9)),
        "endpoint_type": backend,
        "backend": backend,
        "label": summary["name"],
        "model_id": model(summary),
        "num_prompts": int(sent.rows.size),
        "servebench": summary["servebench"],
        "verdict": summary["verdict"]["status"],
        "note": marks(summary) or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _traffic(load: Mapping[str, Any]) -> Document:
    """The arrival law, where vLLM has it: its burstiness is the shape of gamma gaps, 1 / cv²."""
    cap = load.get("max_in_flight") or {}
    closed = load.get("closed")
    if closed is not None:
        return {"request_rate": "inf", "max_concurrency": closed["concurrency"]}
    found: Document = {"max_concurrency": cap.get("limit") if cap.get("policy") == "wait" else None}
    if (gamma := load.get("gamma")) is not None:
        return {"request_rate": gamma["rate"], "burstiness": 1 / gamma["cv"] ** 2} | found
    if (poisson := load.get("poisson")) is not None:
        return {"request_rate": poisson, "burstiness": 1.0} | found
    return ({"request_rate": load["constant"]} if load.get("constant") is not None else {}) | found


def _totals(sent: _Sent) -> Document:
    """Numbers and rates; without a request that ended well there are no rates."""
    completed, seconds = int(sent.good.sum()), sent.seconds
    inputs, outputs = int(sent.inputs[sent.good].sum()), int(sent.outputs.sum())
    counts: Document = {
        "completed": completed,
        "failed": int(sent.rows.size) - completed,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_goodput": None,  # as vLLM writes it when no --goodput was asked for: its objectives are no quantiles
    }
    if seconds is None:
        return counts
    rates = {
        "duration": seconds,
        "request_throughput": completed / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
    }
    return counts | rates


def _details(run: RunData, sent: _Sent) -> Document:
    """One entry a request, times in seconds; and the two peaks that vLLM draws from them."""
    requests = run.requests
    origin = int(sent.dispatched.min()) if sent.rows.size else 0
    gaps = _gaps(run)
    details: Document = {
        "input_lens": sent.inputs.tolist(),
        "output_lens": sent.outputs.tolist(),
        "ttfts": _spans(requests.first_token[sent.rows], sent.dispatched),
        "itls": [gaps.get(row, []) for row in sent.rows.tolist()],
        "latencies": _spans(requests.last_token[sent.rows], sent.dispatched),
        "start_times": ((sent.dispatched - origin) / 1e9).tolist(),
        "errors": [_error(run, row, good) for row, good in zip(sent.rows.tolist(), sent.good.tolist(), strict=True)],
    }
    if not run.closed:
        details["queue_times"] = _spans(sent.dispatched, requests.scheduled[sent.rows])
    return details | (_peaks(run, sent) if sent.good.any() else {})


def _spans(later: Ints, earlier: Ints) -> list[float]:
    known = (later != MISSING) & (earlier != MISSING)
    return [float(value) for value in np.where(known, later - earlier, 0) / 1e9]


def _gaps(run: RunData) -> dict[int, list[float]]:
    """Gaps between the chunks of each request that has any, by row."""
    chunks = run.chunks
    gaps = np.diff(chunks.arrival, prepend=chunks.arrival[:1]) / 1e9
    starts = chunks.starts.tolist()
    parts = zip(chunks.rows.tolist(), starts[:-1], starts[1:], strict=True)
    return {row: gaps[first + 1 : end].tolist() for row, first, end in parts}


def _error(run: RunData, row: int, good: bool) -> str:
    if good:
        return ""
    outcome = str(OUTCOMES[run.requests.outcome[row]])
    return f"{outcome}: {run.requests.error[row]}" if run.requests.error[row] else outcome


def _peaks(run: RunData, sent: _Sent) -> Document:
    """Of the seconds from the first dispatch on: most chunks, which vLLM takes for tokens; most requests under way."""
    good = sent.rows[sent.good]
    mask = np.zeros(len(run.requests), np.bool_)
    mask[good] = True
    first, starts = int(sent.dispatched[sent.good].min()), sent.dispatched[sent.good]
    begin, end = _seconds_since(starts, first), _seconds_since(run.requests.last_token[good], first)
    steps = np.bincount(begin, minlength=int(end.max()) + 2) - np.bincount(end + 1, minlength=int(end.max()) + 2)
    chunks = _seconds_since(run.chunks.arrival[run.chunks.of(mask)], first)
    return {
        "max_output_tokens_per_s": float(np.bincount(chunks, minlength=1).max()),
        "max_concurrent_requests": int(np.cumsum(steps).max()),
    }


def _seconds_since(instants: Ints, first: int) -> NDArray[np.int64]:
    seconds: NDArray[np.int64] = (instants - first) // 1_000_000_000
    return seconds


def _latencies(run: RunData) -> Document:
    """Mean, median, standard deviation and percentiles in ms, of the samples that `--definitions vllm` shows."""
    found: Document = {}
    for formula in TOOLS["vllm"][1]:
        values = formula.sample(run) if formula.name in LATENCIES else None
        if isinstance(values, np.ndarray) and values.size:
            found |= _statistics(LATENCIES[formula.name], values)
    return found


def _statistics(name: str, values: NDArray[np.float64]) -> Document:
    found = {"mean": np.mean(values), "median": np.median(values), "std": np.std(values)}
    found |= {f"p{share:g}": np.percentile(values, share) for share in PERCENTILES}
    return {f"{mark}_{name}_ms": float(value) for mark, value in found.items()}


exporter = VllmExporter()
