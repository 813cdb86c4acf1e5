"""What the prefills of some requests do to the token gaps of others, and what waits for what.

Shape of `interference` in summary.json; times in ms, what has no sample is null::

    {"reason": str | null,                      # why there is no ITL here at all
     "itl_by_prefills": [{"bin": "0" | "1" | "2-3" | "4+", <itl>}],           # other prefills over the gap
     "itl_by_prefill_tokens": [{"bin": "0" | "1-512" | "513-2048" | "2049+", <itl>}],
     "without_prefill": <itl>, "with_prefill": <itl>,
         # <itl>: "n" (tokens), "gaps", "mean", "p50", "p95", "p99": quantiles weighted by tokens
     "ratio": {"value": 1.84 | null, "low": 1.71 | null, "high": 1.95 | null, "reason": str | null, "interval": str},
     "stalls": {"gaps": 81000, "count": 93, "share": 0.00115, "requests": 61, "total_ms": 9120.0, "excess_ms": 6712.5,
                "largest_ms": 412.0 | null, "over_prefill": 88, "over_prefill_share": 0.946 | null,
                "factor": 3.0, "unjudged_gaps": 12, "definition": str},
     "ttft_by_queue_depth": [{"bin": "0" | "1" | "2-3" | "4-7" | "8+", "n", "mean", "p50", "p95"}],
     "definitions": {"with_prefill": str, "prefill_tokens": str, "ratio": str, "queue_depth": str},
     "population": str, "unit": "ms"}

Each gap is counted against all prefills of the run by two binary searches in sorted edges (begun before its end, less
ended before its begin), so that millions of gaps cost less than a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import MISSING, Bools, Ints, RunData
from servebench.analysis.facts import Facts
from servebench.analysis.intervals import BLOCKS, CONFIDENCE, RESAMPLES
from servebench.analysis.metrics import _with_tokens, later_chunks
from servebench.analysis.phases import prefills
from servebench.analysis.quantiles import Quantile, nearest, nearest_weighted
from servebench.analysis.rounding import milliseconds, rounded

PREFILL_BINS = ("0", "1", "2-3", "4+")
PREFILL_EDGES = (1, 2, 4)
TOKEN_BINS = ("0", "1-512", "513-2048", "2049+")
TOKEN_EDGES = (1, 513, 2049)
DEPTH_BINS = ("0", "1", "2-3", "4-7", "8+")
DEPTH_EDGES = (1, 2, 4, 8)
STALL_FACTOR = 3
LEAST_GAPS = 5  # with fewer gaps a request's median says nothing
# The tokens of one step leave one after another, and the first token of a new request last: without a margin its
# prefill would still touch the next gap of all others.
MARGIN_SHARE, MARGIN_NS = 4, 5_000_000
LEAST_IN_RATIO = 30  # gaps on either side
LEAST_BLOCKS = 5  # that hold gaps of both kinds
SEED = 20261130
P50, P95, P99 = (Quantile.parse(name) for name in ("p50", "p95", "p99"))
DEFINITIONS = {
    "with_prefill": "gaps between chunks during which another request was between sent and first token; the first "
    "quarter of a gap, at most 5 ms, does not count, since the tokens of one step do not leave at one instant",
    "prefill_tokens": "prompt tokens of those requests together, less what the server found in its cache",
    "ratio": "E[ITL | prefill in flight] / E[ITL | none], both means weighted by tokens",
    "queue_depth": "other requests between sent and first token when this one was sent; TTFT from sent",
}
POPULATION = "gaps of the cohort's requests; prefills of all requests of the run"
STALL = "gaps over 3 × the median gap of their request, of requests with at least 5 gaps"
INTERVAL = "95 % block bootstrap over 20 blocks of time, within this run"

Bins = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Prefills:
    """The prefills of a run as sorted edges.

    Attributes:
        begin, end: int64 ns, each sorted by itself.
        begun, ended: prompt tokens of the first k begins and ends, k from 0.
    """

    begin: Ints
    end: Ints
    begun: Ints
    ended: Ints

    @classmethod
    def of(cls, begin: Ints, end: Ints, tokens: Ints) -> Prefills:
        """Sort the edges; prefills without length are left out."""
        real = end > begin
        begin, end, tokens = begin[real], end[real], tokens[real]
        first, last = np.argsort(begin, kind="stable"), np.argsort(end, kind="stable")
        sums = (np.concatenate([[0], np.cumsum(tokens[order])]).astype(np.int64) for order in (first, last))
        return cls(begin[first], end[last], *sums)

    def over(self, a: Ints, b: Ints) -> tuple[Bins, Bins]:
        """Bins of the number and of the tokens of the prefills that overlap each interval (a, b)."""
        begun = np.searchsorted(self.begin, b, side="left").astype(np.int32)
        ended = np.searchsorted(self.end, a, side="right").astype(np.int32)
        tokens = _binned(self.begun[begun] - self.ended[ended], TOKEN_EDGES)
        return _binned(begun - ended, PREFILL_EDGES), tokens


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps between chunks with tokens, in the order of request and time.

    Attributes:
        end: int64 ns, when the later chunk arrived.
        length: int64 ns.
        tokens: int32, of the later chunk.
        counts: int64, gaps of each request that has any.
        prefills, prefill_tokens: bins, see `PREFILL_BINS` and `TOKEN_BINS`.
    """

    end: Ints
    length: Ints
    tokens: NDArray[np.int32]
    counts: Ints
    prefills: Bins
    prefill_tokens: Bins


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


@dataclass(frozen=True, slots=True)
class Stalls:
    """Gaps over `STALL_FACTOR` times their request's median; ns.

    Attributes:
        gaps: that were judged; `unjudged` those of requests with too few.
        count: stalls; `requests` that had one.
        total, excess: length of all stalls, and what of it is beyond the medians.
        largest: None without any.
        over_prefill: stalls with another request's prefill in flight.
    """

    gaps: int
    unjudged: int
    count: int
    requests: int
    total: int
    excess: int
    largest: int | None
    over_prefill: int


def find_gaps(run: RunData, cohort: Bools, end: int) -> Gaps:
    """The gaps of the cohort, each with the prefills that overlap it; requests in flight last to `end` (ns)."""
    chunks = _with_tokens(run.chunks)
    later = later_chunks(chunks, cohort)
    at, tokens = chunks.arrival[later], chunks.tokens[later]
    length = np.diff(chunks.arrival)[later[1:]]
    counts = (chunks.lengths - 1)[cohort[chunks.rows]]
    begin = at - length
    begin += np.minimum(length // MARGIN_SHARE, MARGIN_NS)
    number, work = Prefills.of(*prefills(run.requests, end)).over(begin, at)
    return Gaps(at, length, tokens, counts[counts > 0], number, work)


def _binned(values: NDArray[Any], edges: Sequence[int]) -> Bins:
    bins = np.zeros(values.size, np.uint8)
    for edge in edges:
        bins += values >= edge
    return bins


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


def ratio(gaps: Gaps) -> Ratio:
    """How much longer a token takes while another request's prefill is in flight."""
    over = gaps.prefills > 0
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


def stalls(gaps: Gaps) -> Stalls:
    """Count and size the stalls."""
    medians = _medians(gaps)
    judged = gaps.counts >= LEAST_GAPS
    limit = np.repeat(np.where(judged, STALL_FACTOR * medians, np.iinfo(np.int64).max), gaps.counts)
    where = np.flatnonzero(gaps.length > limit)
    lengths = gaps.length[where]
    seen = int(gaps.counts[judged].sum())
    return Stalls(
        gaps=seen,
        unjudged=int(gaps.length.size) - seen,
        count=int(where.size),
        requests=int(np.unique(np.searchsorted(np.cumsum(gaps.counts), where, side="right")).size),
        total=int(lengths.sum()),
        excess=int((lengths - limit[where] // STALL_FACTOR).sum()),
        largest=int(lengths.max()) if where.size else None,
        over_prefill=int((gaps.prefills[where] > 0).sum()),
    )


def _medians(gaps: Gaps) -> Ints:
    """Median gap (nearest rank) of each request, ns: all are sorted at once, the request in the upper bits."""
    bits = 63 - int(gaps.counts.size).bit_length()
    key = np.minimum(gaps.length, (1 << bits) - 1)
    key |= np.repeat(np.arange(gaps.counts.size, dtype=np.int64) << bits, gaps.counts)
    key.sort()
    starts = np.cumsum(gaps.counts) - gaps.counts
    medians: Ints = key[starts + (gaps.counts + 1) // 2 - 1] & ((1 << bits) - 1)
    return medians


def ttft_by_depth(run: RunData, cohort: Bools, end: int) -> tuple[Ints, ...]:
    """TTFT from sent (ns, sorted) of the cohort's ok requests, by the requests that were in prefill when it was sent.

    One tuple entry for each of `DEPTH_BINS`. Requests sent at the very same instant do not count for each other.
    """
    requests = run.requests
    known = cohort & requests.ok & (requests.sent != MISSING) & (requests.first_token != MISSING)
    sent = requests.sent[known]
    edges = Prefills.of(*prefills(requests, end))
    depth = np.searchsorted(edges.begin, sent, side="left") - np.searchsorted(edges.end, sent, side="right")
    bins = _binned(depth, DEPTH_EDGES)
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
        "ratio": _ratio_document(ratio(gaps)),
        "stalls": _stalls_document(stalls(gaps)),
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


def _stalls_document(found: Stalls) -> dict[str, Any]:
    return {
        "gaps": found.gaps,
        "count": found.count,
        "share": rounded(found.count / found.gaps) if found.gaps else None,
        "requests": found.requests,
        "total_ms": milliseconds(found.total),
        "excess_ms": milliseconds(found.excess),
        "largest_ms": milliseconds(found.largest),
        "over_prefill": found.over_prefill,
        "over_prefill_share": rounded(found.over_prefill / found.count) if found.count else None,
        "factor": float(STALL_FACTOR),
        "unjudged_gaps": found.unjudged,
        "definition": STALL,
    }


def _ttft_document(ttft: Ints) -> dict[str, Any]:
    if not ttft.size:
        return {"n": 0, "mean": None, "p50": None, "p95": None}
    marks = {q.name: milliseconds(nearest(ttft, q)) for q in (P50, P95)}
    return {"n": int(ttft.size), "mean": milliseconds(float(ttft.mean())), **marks}
