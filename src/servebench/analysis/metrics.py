"""The latency metrics, each defined once: name, unit, definition, population, and how its samples come about.

DESIGN §3.4 is the contract. Samples are integer nanoseconds; a sample that did not happen is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import MISSING, Bools, Chunks, Ints, RunData


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a metric, in the order in which they came about.

    Attributes:
        values: int64 ns.
        weights: how often each value counts; None for once.
        at: int64 ns, an instant for each sample by which blocks of time are formed.
    """

    values: Ints
    at: Ints
    weights: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A definition.

    Attributes:
        name: its key everywhere.
        definition: the formula in words.
        population: whose samples they are.
        each: what one sample is: a ``request``, or, pooled over all requests, a ``token`` or a ``gap``.
        sample: draws the samples from a run, given the mask of the cohort.
    """

    name: str
    definition: str
    population: str
    each: str
    sample: Callable[[RunData, Bools], Samples]
    unit: str = "ms"


def define(run: RunData) -> dict[str, Metric]:
    """The metrics of a run by name; `origin` in a definition is spelt out for the run's kind of load."""
    origin = "sent" if run.closed else "scheduled"
    return {m.name: replace(m, definition=m.definition.replace("origin", origin)) for m in METRICS}


def _per_request(run: RunData, rows: Bools, values: Ints) -> Samples:
    at = run.requests.scheduled[rows]
    order = np.argsort(at, kind="stable")
    return Samples(values[rows][order], at[order])


def _between(run: RunData, rows: Bools, later: Ints, earlier: Ints) -> Samples:
    both = rows & (later != MISSING) & (earlier != MISSING)
    return _per_request(run, both, later - earlier)


def ttft(run: RunData, cohort: Bools) -> Samples:
    """first_token − origin of each ok request."""
    return _between(run, cohort & run.requests.ok, run.requests.first_token, run.origin)


def ttft_service(run: RunData, cohort: Bools) -> Samples:
    """first_token − sent of each ok request."""
    return _between(run, cohort & run.requests.ok, run.requests.first_token, run.requests.sent)


def ttfv(run: RunData, cohort: Bools) -> Samples:
    """first_visible − origin of each ok request that had visible content."""
    return _between(run, cohort & run.requests.ok, run.requests.first_visible, run.origin)


def e2e(run: RunData, cohort: Bools) -> Samples:
    """last_token − origin of each ok request."""
    return _between(run, cohort & run.requests.ok, run.requests.last_token, run.origin)


def e2e_service(run: RunData, cohort: Bools) -> Samples:
    """last_token − sent of each ok request."""
    return _between(run, cohort & run.requests.ok, run.requests.last_token, run.requests.sent)


def tpot(run: RunData, cohort: Bools) -> Samples:
    """(last_token − first_token)/(output_tokens − tokens of the first chunk), rounded to a nanosecond."""
    values = tpot_values(run)
    return _per_request(run, cohort & run.requests.ok & (values != MISSING), values)


def tpot_values(run: RunData) -> Ints:
    """`tpot` of every request, `MISSING` where it has no token after its first chunk."""
    requests = run.requests
    later_tokens = requests.output_tokens - requests.first_chunk_tokens
    known = (requests.output_tokens != MISSING) & (later_tokens > 0) & (requests.first_token != MISSING)
    known &= requests.last_token != MISSING
    span = requests.last_token - requests.first_token
    divisor = np.where(known, later_tokens, 1)
    return np.where(known, (2 * span + divisor) // (2 * divisor), MISSING)


def schedule_lag(run: RunData, cohort: Bools) -> Samples:
    """dispatched − scheduled of each request that was sent."""
    return _between(run, cohort & (run.requests.sent != MISSING), run.requests.dispatched, run.requests.scheduled)


def dispatch_late(run: RunData, cohort: Bools) -> Samples:
    """dispatched − max(scheduled, slot): what the client itself was late, without the wait for a slot."""
    due = np.maximum(run.requests.scheduled, run.requests.slot)  # MISSING is the least of all
    return _between(run, cohort, run.requests.dispatched, due)


def send_lag(run: RunData, cohort: Bools) -> Samples:
    """sent − dispatched of each request that was sent."""
    return _between(run, cohort, run.requests.sent, run.requests.dispatched)


def icl(run: RunData, cohort: Bools) -> Samples:
    """Gaps between consecutive chunks of a request, pooled over the cohort."""
    chunks = run.chunks
    later = later_chunks(chunks, cohort)
    gaps = np.diff(chunks.arrival)[later[1:]]
    return Samples(gaps, chunks.arrival[later])


def itl(run: RunData, cohort: Bools) -> Samples:
    """Gaps divided by the tokens of the later chunk, weighted by these; a chunk without tokens joins the next."""
    chunks = with_tokens(run.chunks)
    later = later_chunks(chunks, cohort)
    gaps = np.diff(chunks.arrival)[later[1:]]
    tokens = chunks.tokens[later]
    at = chunks.arrival[later]
    if not tokens.size or int(tokens.max()) == 1:
        return Samples(gaps, at)
    gaps += tokens // 2
    gaps //= tokens
    return Samples(gaps, at, tokens)


def stall(run: RunData, cohort: Bools) -> Samples:
    """The longest gap of each ok request that has at least two chunks."""
    values = stall_values(run)
    return _per_request(run, cohort & run.requests.ok & (values != MISSING), values)


def stall_values(run: RunData) -> Ints:
    """`stall` of every request, `MISSING` with fewer than two chunks."""
    chunks, values = run.chunks, np.full(len(run.requests), MISSING, np.int64)
    several = chunks.lengths >= 2
    if several.any():
        gaps = np.diff(chunks.arrival, prepend=chunks.arrival[:1])
        gaps[chunks.starts[:-1]] = 0
        values[chunks.rows[several]] = np.maximum.reduceat(gaps, chunks.starts[:-1])[several]
    return values


def later_chunks(chunks: Chunks, wanted: Bools) -> Bools:
    """Mask over the chunks: those of wanted requests which are not the first of their request."""
    mask = chunks.of(wanted)
    mask[chunks.starts[:-1]] = False
    return mask


def with_tokens(chunks: Chunks) -> Chunks:
    """The chunks without those to which no token was attributed."""
    held = chunks.tokens > 0
    if held.all():
        return chunks
    kept = np.add.reduceat(held, chunks.starts[:-1], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(kept[kept > 0])])
    return Chunks(chunks.arrival[held], chunks.tokens[held], starts, chunks.rows[kept > 0])


_OK = "ok requests of the cohort"

METRICS = (
    Metric("ttft", "first_token − origin", _OK, "request", ttft),
    Metric("ttft_service", "first_token − sent", _OK, "request", ttft_service),
    Metric("ttfv", "first_visible − origin", f"{_OK} with visible content", "request", ttfv),
    Metric("icl", "gap between consecutive token-bearing chunks", "all gaps of the cohort, pooled", "gap", icl),
    Metric(
        "itl",
        "gap / tokens of the later chunk, weighted by these tokens",
        "all tokens of the cohort after the first chunk of each request, pooled",
        "token",
        itl,
    ),
    Metric(
        "tpot",
        "(last_token − first_token) / (output_tokens − tokens of the first chunk)",
        f"{_OK} with more tokens than the first chunk",
        "request",
        tpot,
    ),
    Metric("e2e", "last_token − origin", _OK, "request", e2e),
    Metric("e2e_service", "last_token − sent", _OK, "request", e2e_service),
    Metric("stall", "longest gap between chunks of a request", f"{_OK} with at least 2 chunks", "request", stall),
    Metric("schedule_lag", "dispatched − scheduled", "all sent requests of the cohort", "request", schedule_lag),
    Metric("send_lag", "sent − dispatched", "all sent requests of the cohort", "request", send_lag),
)
