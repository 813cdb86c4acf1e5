"""One clock for everything: CLOCK_REALTIME nanoseconds, checked against CLOCK_MONOTONIC.

Stamps are kept on CLOCK_REALTIME because the kernel stamps packets with it and because server metrics, NVML and
profilers can be joined to it. CLOCK_MONOTONIC anchors, taken through the run, prove that it was not stepped meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

RATE_WARN = 0.001  # LoadGen's limits: clocks whose rates differ by 0.1 % warn, by 1 % fail
RATE_FAIL = 0.01
STEP_FAIL_NS = 1_000_000

realtime_ns = time.time_ns
monotonic_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Anchor:
    """The two clocks read together.

    Attributes:
        realtime_ns: CLOCK_REALTIME.
        monotonic_ns: CLOCK_MONOTONIC at the same instant, to within `error_ns`.
        error_ns: width of the bracket of the two reads; half of it bounds the pairing error.
    """

    realtime_ns: int
    monotonic_ns: int
    error_ns: int

    @classmethod
    def now(cls, tries: int = 5) -> Anchor:
        """Read both clocks; of `tries` brackets keep the tightest, so that preemption between reads does not count."""
        best: Anchor | None = None
        for _ in range(tries):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            if best is None or after - before < best.error_ns:
                best = cls(wall, (before + after) // 2, after - before)
        assert best is not None
        return best

    def to_realtime(self, monotonic: int) -> int:
        """Convert a CLOCK_MONOTONIC instant (ns) to CLOCK_REALTIME (ns)."""
        return self.realtime_ns + (monotonic - self.monotonic_ns)

    def to_monotonic(self, realtime: int) -> int:
        """Convert a CLOCK_REALTIME instant (ns) to CLOCK_MONOTONIC (ns)."""
        return self.monotonic_ns + (realtime - self.realtime_ns)


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """How the wall clock behaved over a run.

    Attributes:
        rate_error: |d realtime / d monotonic − 1| between the first and the last anchor; None with under two anchors.
        largest_step_ns: largest change of (realtime − monotonic) between neighbouring anchors, less their read error.
        duration_ns: monotonic time between the first and the last anchor.
    """

    rate_error: float | None
    largest_step_ns: int
    duration_ns: int


def check_clocks(anchors: Sequence[Anchor]) -> ClockCheck:
    """Compare the clocks over `anchors`, which are in time order."""
    if len(anchors) < 2:
        return ClockCheck(None, 0, 0)
    first, last = anchors[0], anchors[-1]
    elapsed = last.monotonic_ns - first.monotonic_ns
    rate = abs((last.realtime_ns - first.realtime_ns) / elapsed - 1.0) if elapsed > 0 else None
    largest = 0
    for a, b in pairwise(anchors):
        moved = abs((b.realtime_ns - b.monotonic_ns) - (a.realtime_ns - a.monotonic_ns))
        largest = max(largest, moved - (a.error_ns + b.error_ns) // 2)
    return ClockCheck(rate, max(0, largest), elapsed)
