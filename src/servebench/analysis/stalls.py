"""Stalls: gaps that are much longer than their request's usual one, and whether a prefill was in flight then.

Shape: `interference.stalls` of summary.json, see `interference`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.data import Ints
from servebench.analysis.gaps import Gaps
from servebench.analysis.rounding import milliseconds, rounded

FACTOR = 3
LEAST_GAPS = 5  # with fewer gaps a request's median says nothing
DEFINITION = "gaps over 3 × the median gap of their request, of requests with at least 5 gaps"


@dataclass(frozen=True, slots=True)
class Stalls:
    """Gaps over `FACTOR` times their request's median; ns.

    Attributes:
        gaps: that were judged; `unjudged` those of requests with too few.
        count: stalls; `requests` that had one.
        total, excess: length of all stalls, and what of it is beyond the medians.
        largest: None without any.
        over_prefill: stalls at any moment of which another request was in prefill.
    """

    gaps: int
    unjudged: int
    count: int
    requests: int
    total: int
    excess: int
    largest: int | None
    over_prefill: int


def find(gaps: Gaps) -> Stalls:
    """Count and size the stalls."""
    medians = _medians(gaps)
    judged = gaps.counts >= LEAST_GAPS
    limit = np.repeat(np.where(judged, FACTOR * medians, np.iinfo(np.int64).max), gaps.counts)
    where = np.flatnonzero(gaps.length > limit)
    lengths = gaps.length[where]
    seen = int(gaps.counts[judged].sum())
    return Stalls(
        gaps=seen,
        unjudged=int(gaps.length.size) - seen,
        count=int(where.size),
        requests=int(np.unique(np.searchsorted(np.cumsum(gaps.counts), where, side="right")).size),
        total=int(lengths.sum()),
        excess=int((lengths - limit[where] // FACTOR).sum()),
        largest=int(lengths.max()) if where.size else None,
        over_prefill=int((gaps.touched[where]).sum()),
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


def describe(gaps: Gaps) -> dict[str, Any]:
    """`interference.stalls` of summary.json."""
    found = find(gaps)
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
        "factor": float(FACTOR),
        "unjudged_gaps": found.unjudged,
        "definition": DEFINITION,
    }
