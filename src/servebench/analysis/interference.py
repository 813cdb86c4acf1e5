"""What the prefills of some requests do to the token gaps of others, and what waits for what.

Shape of `interference` in summary.json; times in ms, what has no sample is null::

    {"reason": str | null,                      # why there is no ITL here at all
     "itl_by_prefills": [{"bin": "0" | "1" | "2-3" | "4+", <itl>}],           # other requests' prefills in flight
     "itl_by_prefill_tokens": [{"bin": "0" | "1-512" | "513-2048" | "2049+", <itl>}],
     "without_prefill": <itl>, "with_prefill": <itl>,
         # <itl>: "n" (tokens), "gaps", "mean", "p50", "p95", "p99": quantiles weighted by tokens
     "ratio": {"value": 1.84 | null, "low": 1.71 | null, "high": 1.95 | null, "reason": str | null, "interval": str},
     "ratio_any_overlap": {the same keys},       # every gap that a prefill touches at all counts as with
     "stalls": {"gaps": 81000, "count": 93, "share": 0.00115, "requests": 61, "total_ms": 9120.0, "excess_ms": 6712.5,
                "largest_ms": 412.0 | null, "over_prefill": 88, "over_prefill_share": 0.946 | null,
                "factor": 3.0, "unjudged_gaps": 12, "definition": str},
     "ttft_by_queue_depth": [{"bin": "0" | "1" | "2-3" | "4-7" | "8+", "n", "mean", "p50", "p95"}],
     "definitions": {"with_prefill": str, "prefill_tokens": str, "ratio": str, "queue_depth": str},
     "population": str, "unit": "ms"}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis import stalls
from servebench.analysis.data import MISSING, Bools, Ints, RunData
from servebench.analysis.facts import Facts
from servebench.analysis.gaps import PREFILL_BINS, TOKEN_BINS, Gaps, Prefills, binned, find_gaps
from servebench.analysis.intervals import CONFIDENCE, RESAMPLES
from servebench.analysis.phases import prefills
from servebench.analysis.quantiles import Quantile, nearest, nearest_weighted
from servebench.analysis.rounding import milliseconds, rounded
from servebench.analysis.stats.bootstrap import BLOCKS

DEPTH_BINS = ("0", "1", "2-3", "4-7", "8+")
DEPTH_EDGES = (1, 2, 4, 8)
LEAST_IN_RATIO = 30  # gaps on either side
LEAST_BLOCKS = 5  # that hold gaps of both kinds
SEED = 20261130
P50, P95, P99 = (Quantile.parse(name) for name in ("p50", "p95", "p99"))
DEFINITIONS = {
    "with_prefill": "gaps between chunks with another request in prefill (sent to first token) when they began, or "
    "beginning and ending its prefill within them; one that was only sent meanwhile waits for the next step; a prefill "
    "that ended in the first quarter of a gap, at most 5 ms, is the last step's",
    "prefill_tokens": "prompt tokens of those requests together, less what the server found in its cache",
    "ratio": "E[ITL | prefill in flight] / E[ITL | none], both means weighted by tokens",
    "any_overlap": "the same with every gap during which another request was in prefill at any moment (but for the "
    "first quarter, at most 5 ms)",
    "queue_depth": "other requests between sent and first token when this one was sent; TTFT from sent",
}
POPULATION = "gaps of the cohort's requests; prefills of all requests of the run"
INTERVAL = "95 % block bootstrap over 20 blocks of time, within this run"


@dataclass(frozen=True, slots=True)
class Itl:
    """ITL of some gaps, ns.

    Attributes:
        n: tokens; `gaps` as many gaps.
        mean: Σ gaps / Σ tokens; `quantiles` by name; None and empty without any.
    """

    n: int
    gaps: int
    mean: float | None
    quantiles: dict[str, int]


@dataclass(frozen=True, slots=True)
class Ratio:
    """E[ITL | prefill in flight] / E[ITL | none] and its interval within this run.

    Attributes:
        value, low, high: None with the reason.
        reason: why there is no value or no interval.
    """

    value: float | None
    low: float | None
    high: float | None
    reason: str | None


def itl_by_bin(gaps: Gaps) -> tuple[tuple[Itl, ...], tuple[Itl, ...], tuple[Itl, Itl]]:
    """ITL by number of prefills, by prefill tokens, and without and with any prefill; one sort for all."""
    values = (2 * gaps.length + gaps.tokens) // (2 * np.maximum(gaps.tokens, 1))
    order = np.argsort(values)
    values = values[order]
    tokens, length = gaps.tokens[order], gaps.length[order]
    number, work = gaps.prefills[order], gaps.prefill_tokens[order]
    del order
    by_number = tuple(_itl(values, length, tokens, number == k) for k in range(len(PREFILL_BINS)))
    by_work = tuple(_itl(values, length, tokens, work == k) for k in range(len(TOKEN_BINS)))
    return by_number, by_work, (by_number[0], _itl(values, length, tokens, number > 0))


def _itl(values: Ints, length: Ints, tokens: NDArray[np.int32], chosen: Bools) -> Itl:
    weights = tokens[chosen]
    if not weights.size:
        return Itl(0, 0, None, {})
    cumulative = np.cumsum(weights, dtype=np.int64)
    n, ordered = int(cumulative[-1]), values[chosen]
    quantiles = {q.name: nearest_weighted(ordered, cumulative, q) for q in (P50, P95, P99)}
    return Itl(n, int(weights.size), float(length[chosen].sum()) / n, quantiles)


def ratio(gaps: Gaps, over: Bools) -> Ratio:
    """How much longer a token takes in the gaps under the mask (with a prefill in flight) than in the others."""
    with_prefill = int(over.sum())
    if with_prefill < LEAST_IN_RATIO or over.size - with_prefill < LEAST_IN_RATIO:
        kinds = f"{with_prefill} gaps with a prefill in flight, {over.size - with_prefill} without"
        return Ratio(None, None, None, f"{kinds}; {LEAST_IN_RATIO} of each are needed")
    time, tokens = _block_sums(gaps, over)
    value = _quotient(time.sum(axis=0), tokens.sum(axis=0))
    if int((tokens > 0).all(axis=1).sum()) < LEAST_BLOCKS:
        return Ratio(float(value), None, None, f"fewer than {LEAST_BLOCKS} of {BLOCKS} blocks hold gaps of both kinds")
    drawn = np.random.Generator(np.random.PCG64(SEED)).multinomial(BLOCKS, [1 / BLOCKS] * BLOCKS, size=RESAMPLES)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = _quotient(drawn @ time, drawn @ tokens)
    found = np.sort(found[np.isfinite(found)])
    cut = int((1 - CONFIDENCE) / 2 * found.size)
    return Ratio(float(value), float(found[cut]), float(found[-1 - cut]), None)


def _block_sums(gaps: Gaps, over: Bools) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Time (ns) and tokens of the gaps in each block of time (rows), without and with a prefill (columns)."""
    start = int(gaps.end.min())
    length = max(int(gaps.end.max()) - start, 1)
    key = np.minimum((gaps.end - start) // -(-length // BLOCKS), BLOCKS - 1)
    key *= 2
    key += over
    time, tokens = (np.bincount(key, w, 2 * BLOCKS).reshape(BLOCKS, 2) for w in (gaps.length, gaps.tokens))
    return time.astype(np.float64), tokens.astype(np.float64)


def _quotient(time: NDArray[np.float64], tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean ITL with a prefill over that without; the last axis holds without, with."""
    means = time / tokens
    quotient: NDArray[np.float64] = means[..., 1] / means[..., 0]
    return quotient


def ttft_by_depth(run: RunData, cohort: Bools, end: int) -> tuple[Ints, ...]:
    """TTFT from sent (ns, sorted) of the cohort's ok requests, by the requests that were in prefill when it was sent.

    One tuple entry for each of `DEPTH_BINS`. Requests sent at the very same instant do not count for each other.
    """
    requests = run.requests
    known = cohort & requests.ok & (requests.sent != MISSING) & (requests.first_token != MISSING)
    sent = requests.sent[known]
    edges = Prefills.of(*prefills(requests, end))
    depth = np.searchsorted(edges.begin, sent, side="left") - np.searchsorted(edges.end, sent, side="right")
    bins = binned(depth, DEPTH_EDGES)
    ttft = requests.first_token[known] - sent
    return tuple(np.sort(ttft[bins == k]) for k in range(len(DEPTH_BINS)))


def describe(facts: Facts) -> dict[str, Any]:
    """The `interference` section of summary.json."""
    run, end = facts.run, facts.window.end
    gaps = find_gaps(run, facts.cohort, end)
    by_number, by_work, (without, with_prefill) = itl_by_bin(gaps)
    return {
        "reason": None if gaps.length.size else "no request of the cohort has two chunks, so there are no gaps",
        "itl_by_prefills": [{"bin": b, **_itl_document(i)} for b, i in zip(PREFILL_BINS, by_number, strict=True)],
        "itl_by_prefill_tokens": [{"bin": b, **_itl_document(i)} for b, i in zip(TOKEN_BINS, by_work, strict=True)],
        "without_prefill": _itl_document(without),
        "with_prefill": _itl_document(with_prefill),
        "ratio": _ratio_document(ratio(gaps, gaps.prefills > 0)),
        "ratio_any_overlap": _ratio_document(ratio(gaps, gaps.touched)),
        "stalls": stalls.describe(gaps),
        "ttft_by_queue_depth": [
            {"bin": b, **_ttft_document(t)}
            for b, t in zip(DEPTH_BINS, ttft_by_depth(run, facts.cohort, end), strict=True)
        ],
        "definitions": DEFINITIONS,
        "population": POPULATION,
        "unit": "ms",
    }


def _itl_document(itl: Itl) -> dict[str, Any]:
    marks = {q.name: milliseconds(itl.quantiles.get(q.name)) for q in (P50, P95, P99)}
    return {"n": itl.n, "gaps": itl.gaps, "mean": milliseconds(itl.mean), **marks}


def _ratio_document(found: Ratio) -> dict[str, Any]:
    return {
        "value": rounded(found.value),
        "low": rounded(found.low),
        "high": rounded(found.high),
        "reason": found.reason,
        "interval": INTERVAL,
    }


def _ttft_document(ttft: Ints) -> dict[str, Any]:
    if not ttft.size:
        return {"n": 0, "mean": None, "p50": None, "p95": None}
    marks = {q.name: milliseconds(nearest(ttft, q)) for q in (P50, P95)}
    return {"n": int(ttft.size), "mean": milliseconds(float(ttft.mean())), **marks}
