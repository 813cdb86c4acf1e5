"""What capturing costs: the client's latencies while it captured, against the same load without."""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis import metrics
from servebench.analysis.data import MISSING, Bools, Ints, RunData
from servebench.analysis.metrics import Samples
from servebench.analysis.profile.finding import percent
from servebench.analysis.quantiles import Quantile, nearest, nearest_weighted
from servebench.analysis.rounding import milliseconds, rounded
from servebench.analysis.window import find_window

P50, P95 = Quantile.parse("p50"), Quantile.parse("p95")
# A long prefill leaves a few samples in a window. The middle of three, and all but the largest of twenty, are enough to
# tell "twice as long"; n is told beside it.
LEAST = {P50: 3, P95: 20}
CREDIBLE = 0.8  # no capture makes a server a quarter faster
SHOWN = {
    "prefill": (("ttft", P50),),
    "decode": (("itl", P50), ("itl", P95)),
}
OTHERS = (("itl", P50), ("itl", P95), ("ttft", P50))
WORDS = {"itl": "ITL", "ttft": "TTFT (from sent)", "e2e": "latency (from sent)"}


def describe(
    kind: str, plain: RunData, captured: RunData, start: int, end: int, same_moment: bool = False
) -> dict[str, Any]:
    """The `overhead` section.

    Captured: what arrived in [start, end): gaps whose later chunk did, first tokens and ends that did. Plain: the
    cohort of its whole measured window; or, where its load changes with time, what arrived just as long after its
    beginning as [start, end) was after the other's.

    Args:
        same_moment: whether the latter.

    Shape::

        {"rows": [{"metric": "itl p50", "plain": ms | null, "captured": ms | null, "ratio": 1.04 | null,
                   "n": [plain, captured], "reason": str | null}], "text": str}
    """
    moment = _same_moment(plain, captured, start, end) if same_moment else None
    rows = [_row(name, q, _plain(plain, name, moment), _within(captured, name, start, end)) for name, q in _shown(kind)]
    return {"rows": rows, "text": _text(rows)}


def tpot_ns(run: RunData, start: int, end: int) -> float | None:
    """Mean time of a token that arrived in [start, end), as the client saw it; None without any."""
    samples = _within(run, "itl", start, end)
    if not samples.values.size:
        return None
    return float(np.average(samples.values, weights=samples.weights))


def _shown(kind: str) -> tuple[tuple[str, Quantile], ...]:
    return SHOWN.get(kind, OTHERS)


def _row(name: str, quantile: Quantile, plain: Samples, captured: Samples) -> dict[str, Any]:
    n = [_number(plain), _number(captured)]
    reason = None
    if min(n) < LEAST[quantile]:
        reason = f"{LEAST[quantile]} samples are needed on either side: {n[0]} without, {n[1]} with the capture"
    before, after = (_at(samples, quantile) for samples in (plain, captured))
    known = reason is None and before and after
    return {
        "metric": f"{name} {quantile.label}",
        "plain": milliseconds(before) if known else None,
        "captured": milliseconds(after) if known else None,
        "ratio": rounded(after / before) if known and before and after else None,
        "n": n,
        "reason": reason,
    }


def _text(rows: list[dict[str, Any]]) -> str:
    told = next((row for row in rows if row["ratio"] is not None), None)
    if told is None:
        return f"the cost of capturing is not known: {rows[0]['reason'] or 'nothing took any time'}"
    name, quantile = told["metric"].split()
    if told["ratio"] < CREDIBLE:
        return (
            f"the cost of capturing is not known: the same load was slower without it ({WORDS[name]} {quantile} "
            f"{told['plain']:.4g} ms against {told['captured']:.4g} ms), so something else slowed it down"
        )
    longer = f"{percent(told['ratio'] - 1)} longer" if told["ratio"] > 1 else "no longer"
    return (
        f"while captured, {WORDS[name]} {quantile} was {longer}: {told['captured']:.4g} ms against {told['plain']:.4g} "
        f"ms for the same load without ({told['n'][1]} and {told['n'][0]} samples)"
    )


def _same_moment(plain: RunData, captured: RunData, start: int, end: int) -> tuple[int, int]:
    """The window on the plain run's clock, counted from the beginning of either load."""
    offset = find_window(plain).start - find_window(captured).start
    return start + offset, end + offset


def _plain(run: RunData, name: str, moment: tuple[int, int] | None) -> Samples:
    if moment is not None:
        return _within(run, name, *moment)
    return _samples(run, name, find_window(run).cohort(run))


def _within(run: RunData, name: str, start: int, end: int) -> Samples:
    """Samples that came about within the window, also of requests that were cut off afterwards."""
    everyone = np.ones(len(run.requests), np.bool_)
    samples = _samples(run, name, everyone)
    inside = (samples.at >= start) & (samples.at < end)
    weights = None if samples.weights is None else samples.weights[inside]
    return Samples(samples.values[inside], samples.at[inside], weights)


def _samples(run: RunData, name: str, rows: Bools) -> Samples:
    """Samples of a metric, `at` being the instant at which each one was complete."""
    requests = run.requests
    match name:
        case "itl":
            return metrics.itl(run, rows)
        case "ttft":
            return _between(rows, requests.sent, requests.first_token)
    return _between(rows & requests.ok, requests.sent, requests.last_token)


def _between(rows: Bools, earlier: Ints, later: Ints) -> Samples:
    known = rows & (earlier != MISSING) & (later != MISSING)
    return Samples((later - earlier)[known], later[known])


def _number(samples: Samples) -> int:
    return int(samples.values.size if samples.weights is None else samples.weights.sum())


def _at(samples: Samples, quantile: Quantile) -> int | None:
    if not samples.values.size:
        return None
    order = np.argsort(samples.values, kind="stable")
    if samples.weights is None:
        return nearest(samples.values[order], quantile)
    return nearest_weighted(samples.values[order], np.cumsum(samples.weights[order], dtype=np.int64), quantile)
