"""The gaps between the chunks of a request, each with what was prefilled for others meanwhile.

Each gap is counted against all prefills of the run by binary searches in their sorted edges (begun before an instant,
less ended before it), so that millions of gaps cost less than a second. A prefill that was only sent during a gap waits
for the next step, so it is not one of the gap's: on an engine that works in steps that would mix quiet steps in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import Bools, Ints, RunData
from servebench.analysis.metrics import later_chunks, with_tokens
from servebench.analysis.phases import prefills

PREFILL_BINS = ("0", "1", "2-3", "4+")
PREFILL_EDGES = (1, 2, 4)
TOKEN_BINS = ("0", "1-512", "513-2048", "2049+")
TOKEN_EDGES = (1, 513, 2049)
# The tokens of one step leave one after another, and the first token of a new request last: without a margin its
# prefill would still be in flight when the next gap of all others begins.
MARGIN_SHARE, MARGIN_NS = 4, 5_000_000

Bins = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Prefills:
    """The prefills of a run as sorted edges.

    Attributes:
        begin, end: int64 ns, each sorted by itself.
        tokens: prompt tokens of the first k to begin, k from 0.
    """

    begin: Ints
    end: Ints
    tokens: Ints

    @classmethod
    def of(cls, begin: Ints, end: Ints, tokens: Ints) -> Prefills:
        """Sort the edges; prefills without length are left out."""
        real = end > begin
        begin, end, tokens = begin[real], end[real], tokens[real]
        first = np.argsort(begin, kind="stable")
        return cls(begin[first], np.sort(end), np.concatenate([[0], np.cumsum(tokens[first])]).astype(np.int64))

    def during(self, a: Ints, b: Ints) -> tuple[Bins, Bins, Bools]:
        """What bears on each gap (a, b): bins of the number and the tokens of its prefills, and whether any touches it.

        Its prefills are those in flight when it began, or begun and ended within it: their number is exact where
        prefills end in the order in which they begin, and else it may be too low.
        """
        margin = np.minimum((b - a) // MARGIN_SHARE, MARGIN_NS)
        gone = _place(self.end, a + margin, "right")
        ended = _place(self.end, b + margin, "right")
        del margin
        ended -= gone
        touched = _place(self.begin, b, "left") > gone
        number = _place(self.begin, a, "right")
        number -= gone
        np.maximum(number, ended, out=number)
        tokens = self.tokens[gone + number] - self.tokens[gone]
        return binned(number, PREFILL_EDGES), binned(tokens, TOKEN_EDGES), touched


def _place(edges: Ints, instants: Ints, side: Literal["left", "right"]) -> NDArray[np.int32]:
    """How many of the sorted edges are before (left) or not after (right) each instant."""
    return np.searchsorted(edges, instants, side=side).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps between chunks with tokens, in the order of request and time.

    Attributes:
        end: int64 ns, when the later chunk arrived.
        length: int64 ns.
        tokens: int32, of the later chunk.
        counts: int64, gaps of each request that has any.
        prefills, prefill_tokens: bins, see `PREFILL_BINS` and `TOKEN_BINS`.
        touched: whether any other request was in prefill at any moment of the gap.
    """

    end: Ints
    length: Ints
    tokens: NDArray[np.int32]
    counts: Ints
    prefills: Bins
    prefill_tokens: Bins
    touched: Bools


def find_gaps(run: RunData, cohort: Bools, end: int) -> Gaps:
    """The gaps of the cohort, each with the prefills that bear on it; requests in flight last to `end` (ns)."""
    chunks = with_tokens(run.chunks)
    later = later_chunks(chunks, cohort)
    at, tokens = chunks.arrival[later], chunks.tokens[later]
    length = np.diff(chunks.arrival)[later[1:]]
    counts = (chunks.lengths - 1)[cohort[chunks.rows]]
    found = Prefills.of(*prefills(run.requests, end)).during(at - length, at)
    return Gaps(at, length, tokens, counts[counts > 0], *found)


def binned(values: NDArray[Any], edges: Sequence[int]) -> Bins:
    """Number of the bin of each value: how many of the edges it reaches."""
    bins = np.zeros(values.size, np.uint8)
    for edge in edges:
        bins += values >= edge
    return bins
