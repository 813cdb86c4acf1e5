"""The gaps between the chunks of a request, each with what was prefilled for others meanwhile.

Each gap is counted against all prefills of the run by two binary searches in sorted edges (begun before its end, less
ended before its begin), so that millions of gaps cost less than a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import Bools, Ints, RunData
from servebench.analysis.metrics import _with_tokens, later_chunks
from servebench.analysis.phases import prefills

PREFILL_BINS = ("0", "1", "2-3", "4+")
PREFILL_EDGES = (1, 2, 4)
TOKEN_BINS = ("0", "1-512", "513-2048", "2049+")
TOKEN_EDGES = (1, 513, 2049)
# The tokens of one step leave one after another, and the first token of a new request last: without a margin its
# prefill would still touch the next gap of all others.
MARGIN_SHARE, MARGIN_NS = 4, 5_000_000

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
        tokens = binned(self.begun[begun] - self.ended[ended], TOKEN_EDGES)
        return binned(begun - ended, PREFILL_EDGES), tokens


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


def binned(values: NDArray[Any], edges: Sequence[int]) -> Bins:
    """Number of the bin of each value: how many of the edges it reaches."""
    bins = np.zeros(values.size, np.uint8)
    for edge in edges:
        bins += values >= edge
    return bins
