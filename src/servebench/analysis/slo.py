"""Service-level objectives: what was asked, what was reached, and which requests were good."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, Bools, Chunks, Ints, RunData
from servebench.analysis.metrics import later_chunks, stall_values, tpot_values
from servebench.analysis.quantiles import Quantile, rank
from servebench.units import parse_duration

_TEXT = re.compile(r"(p[\d._]+)\s*<=?\s*(.+)")


@dataclass(frozen=True, slots=True)
class Objective:
    """`metric` at `quantile` shall be below `limit_ns`."""

    metric: str
    quantile: Quantile
    limit_ns: int

    @property
    def text(self) -> str:
        """As in a scenario: ``ttft p95 < 800 ms``."""
        return f"{self.metric} {self.quantile.label} < {self.limit_ns / 1e6:g} ms"


def objectives(manifest: Mapping[str, Any]) -> tuple[Objective, ...]:
    """The objectives of the resolved scenario, ``{ttft: [p95 < 800ms]}``, in the order in which they are written."""
    slo: Mapping[str, Any] = (manifest.get("scenario") or {}).get("slo") or {}
    pairs = [(m, text) for m, texts in slo.items() for text in ([texts] if isinstance(texts, str) else texts)]
    return tuple(_parse(metric, text) for metric, text in pairs)


def _parse(metric: str, text: str) -> Objective:
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'slo.{metric}: "{text}" is not of the form "p95 < 800ms"')
    return Objective(metric, Quantile.parse(match[1]), round(parse_duration(match[2]) * 1e9))


def good_requests(run: RunData, wanted: tuple[Objective, ...]) -> Bools:
    """Mask of the ok requests whose own value is below the limit of every objective.

    A pooled metric (icl, itl) has no single value in a request: there it is the request's own quantile at the
    objective's share. A request in which the metric does not occur (one token has no gap) cannot miss it.
    """
    good: Bools = run.requests.ok.copy()
    for objective in wanted:
        value = request_values(run, objective)
        good &= (value == MISSING) | (value < objective.limit_ns)
    return good


def request_values(run: RunData, objective: Objective) -> Ints:
    """The value of the objective's metric in each request, ns; `MISSING` where it does not occur."""
    if objective.metric in ("icl", "itl"):
        return _pooled_values(run, objective)
    requests, per_request = run.requests, {"tpot": tpot_values, "stall": stall_values}
    if objective.metric in per_request:
        return per_request[objective.metric](run)
    ends = {"ttft": requests.first_token, "ttfv": requests.first_visible, "e2e": requests.last_token}
    end = ends[objective.metric]
    return np.where((end != MISSING) & (run.origin != MISSING), end - run.origin, MISSING)


def _pooled_values(run: RunData, objective: Objective) -> Ints:
    """Each request's own quantile of its gaps; of all requests of the run in one sort."""
    chunks = run.chunks
    values = np.full(len(run.requests), MISSING, np.int64)
    later = later_chunks(chunks, np.ones(len(run.requests), np.bool_))
    if not later.any():
        return values
    gaps, weights = _request_gaps(chunks, later, objective.metric == "itl")
    counts = np.add.reduceat(later, chunks.starts[:-1], dtype=np.int64)
    row, starts = chunks.rows[counts > 0], np.concatenate([[0], np.cumsum(counts[counts > 0])])
    for i in range(row.size):
        values[row[i]] = _own_quantile(gaps[starts[i] : starts[i + 1]], weights, starts[i], objective.quantile)
    return values


def _request_gaps(chunks: Chunks, later: Bools, per_token: bool) -> tuple[Ints, Ints | None]:
    gaps = np.diff(chunks.arrival)[later[1:]]
    tokens = np.maximum(chunks.tokens[later], 1).astype(np.int64)
    if not per_token or int(tokens.max()) == 1:
        return gaps, None
    return (2 * gaps + tokens) // (2 * tokens), tokens


def _own_quantile(gaps: Ints, weights: Ints | None, start: int, quantile: Quantile) -> int:
    if weights is None:
        place = rank(quantile, gaps.size) - 1
        return int(np.partition(gaps, place)[place])
    order = np.argsort(gaps, kind="stable")
    cumulative = np.cumsum(weights[start : start + gaps.size][order])
    return int(gaps[order][np.searchsorted(cumulative, rank(quantile, int(cumulative[-1])))])
