"""The same run under other tools' formulas, so that people can reconcile the figures of two tools.

The formulas are those of the tools' sources. What all four share, and we do not: no due time (they count from when
they begin to send), the whole run with ramp and tail rather than a cohort, and interpolated percentiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis import metrics
from servebench.analysis.data import MISSING, Bools, Ints, RunData
from servebench.analysis.rounding import rounded

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Formula:
    """A metric of another tool.

    Attributes:
        name: as that tool prints it.
        unit: of its values.
        text: the formula, in our instants.
        ours: the metric of ours that comes nearest; empty for none.
        sample: its samples; or a single figure.
        weights: of the samples, where the tool weights them.
    """

    name: str
    unit: str
    text: str
    ours: str
    sample: Callable[[RunData], Floats | float | None]
    weights: Callable[[RunData], Floats] | None = None


def under(run: RunData, tool: str) -> dict[str, Any]:
    """The figures of `run` under the formulas of `tool`, one of `TOOLS`; times in ms."""
    note, formulas = TOOLS[tool]
    return {"tool": tool, "note": note, "metrics": [_row(run, formula) for formula in formulas]}


def _row(run: RunData, formula: Formula) -> dict[str, Any]:
    found = formula.sample(run)
    row: dict[str, Any] = {"name": formula.name, "unit": formula.unit, "formula": formula.text, "ours": formula.ours}
    if not isinstance(found, np.ndarray):
        return row | {"n": None, "mean": rounded(found), "p50": None, "p95": None, "p99": None}
    if not found.size:
        return row | {"n": 0, "mean": None, "p50": None, "p95": None, "p99": None}
    weights = formula.weights(run) if formula.weights else None
    mean = float(np.average(found, weights=weights))
    marks = _percentiles(found, weights)
    return row | {"n": int(found.size), "mean": rounded(mean), **{k: rounded(v) for k, v in marks.items()}}


def _percentiles(values: Floats, weights: Floats | None) -> Mapping[str, float]:
    """Interpolated, as numpy does by default; of weighted values the first whose weight reaches the share."""
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    if weights is None:
        return {name: float(np.percentile(values, 100 * share)) for name, share in shares.items()}
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    return {name: float(values[order][np.searchsorted(reached, share)]) for name, share in shares.items()}


def _ok(run: RunData) -> Bools:
    requests = run.requests
    rows: Bools = requests.ok & (requests.first_token != MISSING) & (requests.dispatched != MISSING)
    rows &= requests.last_token != MISSING
    return rows


def _several(run: RunData) -> Bools:
    return _ok(run) & (run.requests.output_tokens > 1)


def _between(rows: Bools, later: Ints, earlier: Ints) -> Floats:
    """later − earlier of the rows that have both, in ms."""
    both = rows & (later != MISSING) & (earlier != MISSING)
    spans: Floats = (later - earlier)[both] / 1e6
    return spans


def _per(spans: Floats, counts: Ints) -> Floats:
    shares: Floats = spans / counts
    return shares


def _ttft(run: RunData) -> Floats:
    return _between(_ok(run), run.requests.first_token, run.requests.dispatched)


def _visible_ttft(run: RunData) -> Floats:
    return _between(_ok(run), run.requests.first_visible, run.requests.dispatched)


def _latency(run: RunData) -> Floats:
    return _between(_ok(run), run.requests.last_token, run.requests.dispatched)


def _latency_to_close(run: RunData) -> Floats:
    return _between(_ok(run), run.requests.end, run.requests.dispatched)


def _per_later_token(run: RunData) -> Floats:
    rows, requests = _several(run), run.requests
    return _per(_between(rows, requests.last_token, requests.first_token), requests.output_tokens[rows] - 1)


def _later_tokens(run: RunData) -> Floats:
    return (run.requests.output_tokens[_several(run)] - 1).astype(np.float64)


def _per_token(run: RunData) -> Floats:
    rows, requests = _ok(run) & (run.requests.output_tokens > 0), run.requests
    return _per(_between(rows, requests.last_token, requests.dispatched), requests.output_tokens[rows])


def _per_chunk(run: RunData) -> Floats:
    rows, requests = _ok(run) & (run.requests.chunks > 0), run.requests
    return _per(_between(rows, requests.last_token, requests.dispatched), requests.chunks[rows])


def _gaps(run: RunData) -> Floats:
    gaps: Floats = metrics.icl(run, _ok(run)).values / 1e6
    return gaps


def _second_token(run: RunData) -> Floats:
    chunks = run.chunks
    first = chunks.starts[:-1][(chunks.lengths >= 2) & _ok(run)[chunks.rows]]
    gaps: Floats = (chunks.arrival[first + 1] - chunks.arrival[first]) / 1e6
    return gaps


def _tokens_per_user(run: RunData) -> Floats:
    per_token = _per_later_token(run)
    rates: Floats = 1e3 / per_token[per_token > 0]
    return rates


def _own_rate(run: RunData) -> Floats:
    rows, requests = _ok(run) & (run.requests.output_tokens > 0) & (run.requests.end != MISSING), run.requests
    spans = _between(rows, requests.end, requests.dispatched)
    rates: Floats = 1e3 * requests.output_tokens[rows] / spans
    return rates


def _span_seconds(run: RunData) -> float | None:
    """First dispatch to last completion of the ok requests, ramp and tail included."""
    rows = _ok(run) & (run.requests.end != MISSING)
    if not rows.any():
        return None
    return float(run.requests.end[rows].max() - run.requests.dispatched[rows].min()) / 1e9 or None


def _request_rate(run: RunData) -> float | None:
    span = _span_seconds(run)
    return None if span is None else int(_ok(run).sum()) / span


def _output_rate(run: RunData) -> float | None:
    span, rows = _span_seconds(run), _ok(run) & (run.requests.output_tokens != MISSING)
    return None if span is None else int(run.requests.output_tokens[rows].sum()) / span


def _total_rate(run: RunData) -> float | None:
    span, rows = _span_seconds(run), _ok(run) & (run.requests.input_tokens != MISSING)
    output = _output_rate(run)
    if span is None or output is None or not rows.any():
        return None
    return output + int(run.requests.input_tokens[rows].sum()) / span


_SPAN = "(first dispatched → last end)"
_TTFT = Formula("TTFT", "ms", "first_token − dispatched", "ttft", _ttft)
_REQUESTS = Formula("request throughput", "requests/s", f"ok requests / {_SPAN}", "requests_per_s", _request_rate)
_OUTPUT = Formula("output token throughput", "tokens/s", f"Σ output / {_SPAN}", "output_tokens_per_s", _output_rate)

TOOLS: dict[str, tuple[str, tuple[Formula, ...]]] = {
    "vllm": (
        "vllm bench serve: all ok requests of the run, ramp and tail included; percentiles interpolated",
        (
            _TTFT,
            Formula("TPOT", "ms", "(last_token − first_token) / (output − 1)", "tpot", _per_later_token),
            Formula("ITL", "ms", "gaps between chunks, pooled, whatever their tokens", "icl", _gaps),
            Formula("E2EL", "ms", "last_token − dispatched", "e2e", _latency),
            _REQUESTS,
            _OUTPUT,
            Formula("total token throughput", "tokens/s", f"Σ (input + output) / {_SPAN}", "", _total_rate),
        ),
    ),
    "aiperf": (
        "AIPerf: all ok requests of the run; ITL is one mean a request; percentiles interpolated",
        (
            Formula("time to first token", "ms", "first_token − dispatched", "ttft", _ttft),
            Formula("time to second token", "ms", "second chunk − first chunk", "", _second_token),
            Formula("request latency", "ms", "last_token − dispatched", "e2e", _latency),
            Formula(
                "inter token latency", "ms", "(latency − TTFT) / (output − 1), one a request", "tpot", _per_later_token
            ),
            Formula("inter chunk latency", "ms", "gaps between chunks, pooled", "icl", _gaps),
            Formula("output token throughput per user", "tokens/s", "1 / inter token latency", "", _tokens_per_user),
            _REQUESTS,
            _OUTPUT,
        ),
    ),
    "guidellm": (
        "GuideLLM: all ok requests of the run; its TPOT includes the first token's wait",
        (
            _TTFT,
            Formula("TPOT", "ms", "(last_token − dispatched) / output: includes TTFT", "", _per_token),
            Formula(
                "ITL",
                "ms",
                "(last_token − first_token) / (output − 1), weighted by tokens",
                "itl",
                _per_later_token,
                _later_tokens,
            ),
            Formula("request latency", "ms", "end − dispatched", "e2e", _latency_to_close),
        ),
    ),
    "llmperf": (
        "llmperf: all ok requests of the run; its inter-token latency includes the first token's wait",
        (
            Formula("ttft", "ms", "first_visible − dispatched", "ttfv", _visible_ttft),
            Formula("inter_token_latency", "ms", "(last_token − dispatched) / chunks: includes TTFT", "", _per_chunk),
            Formula("end_to_end_latency", "ms", "end − dispatched", "e2e", _latency_to_close),
            Formula(
                "request_output_throughput", "tokens/s", "output / (end − dispatched), one a request", "", _own_rate
            ),
            Formula(
                "overall output throughput", "tokens/s", f"Σ output / {_SPAN}", "output_tokens_per_s", _output_rate
            ),
        ),
    ),
}
