"""Which offset between two clocks fits best: each observed instant must fall into one of the spans that could cause it.

For an offset δ an instant r fits when a span [s, e] of the other clock has s + δ ≤ r ≤ e + δ, so r and that span allow
δ ∈ [r - e, r - s]. Over all instants the true offset is where most of these ranges overlap: those of wrong pairings lie
anywhere, those of right ones all contain it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servebench.profile.intervals import Ints, Spans

KEPT = 0.9  # offsets under which so many of the instants still fit, against the best, are possible too
MOST_PAIRS = 4_000_000


@dataclass(frozen=True, slots=True)
class Offset:
    """What is known of an offset, ns.

    Attributes:
        low, high: it lies between them.
        fitting: share of the instants that fit under the best offset.
    """

    low: int
    high: int
    fitting: float = 1.0

    @property
    def middle(self) -> int:
        """The best guess."""
        return (self.low + self.high) // 2

    def residual(self, offset: float) -> int:
        """How far `offset` may be off, at most."""
        return round(max(self.high - offset, offset - self.low))


def vote(spans: Spans, instants: Ints, search: Offset) -> Offset | None:
    """The offsets within `search` under which nearly as many instants fit as under the best; None where none fits.

    Args:
        spans: on the one clock.
        instants: int64 ns on the other, in ascending order.
        search: where to look.
    """
    if search.low > search.high:
        return None
    instants = _thinned(spans, instants, search)
    lows, highs = _ranges(spans, instants, search)
    if not lows.size:
        return None
    at = np.concatenate([lows, highs])
    order = np.argsort(at, kind="stable")  # a range begins before another ends at the same instant: both are closed
    depth = np.cumsum(np.concatenate([np.ones(lows.size, np.int64), np.full(highs.size, -1, np.int64)])[order])
    best = int(depth.max())
    possible = np.flatnonzero(depth >= KEPT * best)
    return Offset(int(at[order[possible[0]]]), int(at[order[possible[-1] + 1]]), best / instants.size)


def _ranges(spans: Spans, instants: Ints, search: Offset) -> tuple[Ints, Ints]:
    """The offsets that each pair of an instant and a span allows, as lows and highs, cut to `search`."""
    first = np.searchsorted(spans.ends, instants - search.high, side="left")
    last = np.searchsorted(spans.starts, instants - search.low, side="right")
    count = np.maximum(last - first, 0)
    instant = np.repeat(instants, count)
    span = np.arange(instant.size) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    lows = np.maximum(instant - spans.ends[span], search.low)
    highs = np.minimum(instant - spans.starts[span], search.high)
    return lows, highs


def _thinned(spans: Spans, instants: Ints, search: Offset) -> Ints:
    """The instants, or some of them evenly over time where all of them would make too many pairs."""
    near = np.searchsorted(spans.starts, instants - search.low, side="right")
    near = near - np.searchsorted(spans.ends, instants - search.high, side="left")
    pairs = int(np.maximum(near, 0).sum())
    return instants[:: -(-pairs // MOST_PAIRS)] if pairs > MOST_PAIRS else instants
