"""How far another machine's clock is from ours: measured by round trips, interpolated in between, with its error.

One exchange gives four stamps: a request leaves (our clock), arrives and is answered (theirs), and the answer is here
(ours). With equal ways there and back the offset is half the sum of the two differences; whatever the ways are, it is
wrong by no more than half the round trip (the formulas of NTP, RFC 5905, section 8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_DRIFT = 100e-6  # of two free crystals; clocks that NTP steers differ by less
KEPT = 64  # measurements that stamps are interpolated between; what is pulled late was not measured meanwhile either
_MS = 1e6


@dataclass(frozen=True, slots=True)
class Exchange:
    """One round trip, in ns of CLOCK_REALTIME: `sent` and `returned` by our clock, the others by the server's."""

    sent_ns: int
    received_ns: int
    replied_ns: int
    returned_ns: int

    @property
    def offset_ns(self) -> int:
        """The server's clock minus ours, if both ways took equally long."""
        return ((self.received_ns - self.sent_ns) + (self.replied_ns - self.returned_ns)) // 2

    @property
    def delay_ns(self) -> int:
        """Time on the way, both ways: the bound of twice the error.

        The server's own time is taken off the round trip only if it fits in: a clock that jumped between its two
        stamps says nothing about it.
        """
        round_trip = self.returned_ns - self.sent_ns
        serving = self.replied_ns - self.received_ns
        return round_trip - serving if 0 <= serving <= round_trip else round_trip


@dataclass(frozen=True, slots=True)
class OffsetPoint:
    """The offset at one time.

    Attributes:
        at_ns: when, by our clock.
        offset_ns: the server's clock minus ours.
        error_ns: bound of the error of `offset_ns`.
        exchanges: round trips it was taken from.
    """

    at_ns: int
    offset_ns: int
    error_ns: int
    exchanges: int

    @classmethod
    def of(cls, exchanges: Iterable[Exchange]) -> OffsetPoint:
        """Take the exchange with the least delay; its error is half of that, and by how much others contradict it.

        Each exchange confines the offset to an interval. Where two do not meet, the clocks themselves jitter, which no
        round trip bounds; the gap between them is added to the error.

        Raises:
            ValueError: there is no exchange.
        """
        rounds = list(exchanges)
        best = min(rounds, key=lambda each: each.delay_ns)
        gaps = (abs(e.offset_ns - best.offset_ns) - (e.delay_ns + best.delay_ns) // 2 for e in rounds)
        middle = (best.sent_ns + best.returned_ns) // 2
        return cls(middle, best.offset_ns, (best.delay_ns + 1) // 2 + max(0, *gaps, 0), len(rounds))


class OffsetTrack:
    """The offset over a run.

    A measurement that bounds the offset worse than the last one kept, aged by `MAX_DRIFT`, is not used, so that one
    that was taken over a busy line does not spoil it; unless it contradicts that one, as only a step of a clock does.
    """

    def __init__(self) -> None:
        self._points: deque[OffsetPoint] = deque(maxlen=KEPT)
        self._first: OffsetPoint | None = None
        self._measured = self._used = self._exchanges = 0
        self._best_ns = self._worst_ns = self._change_ns = self._last_at_ns = 0
        self._cut = False

    def add(self, point: OffsetPoint) -> bool:
        """Take a measurement, later than all before it; return whether it is used."""
        self._measured += 1
        self._exchanges += point.exchanges
        self._last_at_ns = point.at_ns
        if self._points and not self._cut and not self._improves(point):
            return False
        self._use(point)
        return True

    def _improves(self, point: OffsetPoint) -> bool:
        last = self._points[-1]
        aged = last.error_ns + int(MAX_DRIFT * max(0, point.at_ns - last.at_ns))
        return point.error_ns <= aged or abs(point.offset_ns - last.offset_ns) > point.error_ns + aged

    def _use(self, point: OffsetPoint) -> None:
        if self._cut:
            self._points.clear()
        if self._points:
            last = self._points[-1]
            self._change_ns = max(self._change_ns, abs(point.offset_ns - last.offset_ns))
            if point.at_ns + point.offset_ns <= last.at_ns + last.offset_ns:
                self._points.clear()  # the server's clock was set back: a stamp from before has two meanings
        self._cut = False
        self._best_ns = min(self._best_ns, point.error_ns) if self._first else point.error_ns
        self._worst_ns = max(self._worst_ns, point.error_ns)
        self._first = self._first or point
        self._used += 1
        self._points.append(point)

    def __bool__(self) -> bool:
        return bool(self._points)

    def restart(self) -> None:
        """Forget the offset at the next measurement: the server, and perhaps its clock, is another one from now on."""
        self._cut = True

    def to_ours(self, server_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert stamps of the server's clock (int64 ns) to ours.

        Between two measurements the offset is interpolated, before the first and after the last it is theirs.

        Raises:
            ValueError: nothing was measured yet.
        """
        if not self._points:
            raise ValueError("the offset was not measured yet")
        first = self._points[0]
        origin = first.at_ns + first.offset_ns  # float64 has no room for ns since 1970
        at = np.array([p.at_ns + p.offset_ns - origin for p in self._points], np.float64)
        offsets = np.array([p.offset_ns - first.offset_ns for p in self._points], np.float64)
        moved = np.interp((server_ns - origin).astype(np.float64), at, offsets)
        return server_ns - first.offset_ns - np.rint(moved).astype(np.int64)

    @property
    def offset_ns(self) -> int | None:
        """The offset as last measured."""
        return self._points[-1].offset_ns if self._points else None

    @property
    def error_ns(self) -> int | None:
        """Bound of the error of a converted stamp: of the measurements, and how far the offset moved between them."""
        if not self._points:
            return None
        unseen = int(MAX_DRIFT * max(0, self._last_at_ns - self._points[-1].at_ns))
        return self._worst_ns + self._change_ns + unseen

    def facts(self) -> dict[str, Any]:
        """The offset and its error in ms (the server's clock minus ours), for the manifest; None where not measured."""
        error = self.error_ns
        if error is None or self._first is None:
            return {"offset_ms": None, "error_ms": None, "reason": "the offset of the clocks was not measured"}
        last = self._points[-1]
        return {
            "offset_ms": last.offset_ns / _MS,
            "error_ms": error / _MS,
            "best_round_trip_ms": 2 * self._best_ns / _MS,
            "moved_ms": (last.offset_ns - self._first.offset_ns) / _MS,
            "largest_change_ms": self._change_ns / _MS,
            "measured": self._measured,
            "used": self._used,
            "exchanges": self._exchanges,
            "method": "least delay of a burst of round trips; linear in between",
            "reason": None,
        }
