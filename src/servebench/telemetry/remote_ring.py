"""The last minutes of telemetry in memory, numbered, for clients that come and ask."""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from servebench.telemetry.remote_messages import Batch, Series, Sweep
from servebench.telemetry.source import Reading

CAPACITY = 1_000_000  # values; some 25 MB. Eight GPUs at 20 Hz fill it in more than ten minutes
ANSWER = 50_000  # values in one answer: some 500 kB


class Kept(NamedTuple):
    """A sweep as it is kept: see `Sweep`."""

    t_ns: int
    series: array[int]
    values: array[float]
    later_ns: array[int]


class Ring:
    """Sweeps in a bounded buffer. Threads may add and read at the same time.

    Args:
        boot: see `Batch.boot`.
        capacity: values that are kept; the oldest sweeps make room for new ones.
    """

    def __init__(self, boot: str, capacity: int = CAPACITY) -> None:
        self._boot = boot
        self._capacity = capacity
        self._ids: dict[tuple[str, str, str], int] = {}
        self._series: list[Series] = []
        self._sweeps: deque[Kept] = deque()
        self._first = 0
        self._values = 0
        self._lock = threading.Lock()

    def add(self, source: str, t_ns: int, readings: Sequence[Reading], shift_ns: int = 0) -> None:
        """Keep one sweep of a source.

        Args:
            t_ns: when it was read, for those readings that have no time of their own.
            shift_ns: is added to every time.
        """
        if not readings:
            return
        values = array("d", [math.nan if reading[2] is None else reading[2] for reading in readings])
        own = any(len(reading) > 3 for reading in readings)
        later = array("q", [_time(reading, t_ns) - t_ns for reading in readings] if own else [])
        with self._lock:
            series = array("I", [self._id(source, reading[0], reading[1]) for reading in readings])
            self._sweeps.append(Kept(t_ns + shift_ns, series, values, later))
            self._values += len(values)
            while self._values > self._capacity and len(self._sweeps) > 1:
                self._values -= len(self._sweeps.popleft().values)
                self._first += 1

    def _id(self, source: str, device: str, name: str) -> int:
        number = self._ids.setdefault((source, device, name), len(self._series))
        if number == len(self._series):
            self._series.append(Series(number, source, device, name))
        return number

    def since(self, number: int, after_ns: int = 0, limit: int = ANSWER) -> Batch:
        """Answer with the sweeps from `number` on.

        Args:
            number: as `Batch.next` said; 0 for all that are kept.
            after_ns: leave out what comes before the first sweep that was read then or later.
            limit: values in the answer, though at least one sweep.
        """
        with self._lock:
            end = self._first + len(self._sweeps)
            start = min(max(number, self._first), end)
            lost = max(0, self._first - number)
            kept = list(islice(reversed(self._sweeps), end - start))[::-1]  # from the right: the new ones are there
        early = next((at for at, sweep in enumerate(kept) if sweep.t_ns >= after_ns), len(kept))
        kept, start = kept[early:], start + early
        taken = _up_to(kept, limit)
        more, kept = taken < len(kept), kept[:taken]
        used = sorted({number for sweep in kept for number in sweep.series})
        sweeps = [Sweep(s.t_ns, list(s.series), _nulls(s.values), list(s.later_ns)) for s in kept]
        return Batch(self._boot, start + taken, lost, more, [self._series[number] for number in used], sweeps)


def _time(reading: Reading, t_ns: int) -> int:
    return reading[3] if len(reading) > 3 else t_ns


def _nulls(values: array[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _up_to(kept: Sequence[Kept], limit: int) -> int:
    """How many sweeps have `limit` values together; one at least, if there is one."""
    total = 0
    for count, sweep in enumerate(kept):
        total += len(sweep.values)
        if total > limit and count:
            return count
    return len(kept)
