"""The last minutes of telemetry in memory, numbered, for clients that come and ask."""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import islice

from servebench.telemetry.remote_messages import Batch, Layout, Sweep
from servebench.telemetry.source import Reading

CAPACITY = 1_000_000  # values; some 20 MB. One GPU at 20 Hz fills it in half an hour, eight in four minutes
ANSWER = 50_000  # values in one answer: some 500 kB


class Ring:
    """Sweeps in a bounded buffer. Threads may add and read at the same time.

    Args:
        boot: see `Batch.boot`.
        capacity: values that are kept; the oldest sweeps make room for new ones.
    """

    def __init__(self, boot: str, capacity: int = CAPACITY) -> None:
        self._boot = boot
        self._capacity = capacity
        self._layouts: dict[tuple[str, tuple[tuple[str, str], ...]], Layout] = {}
        self._by_id: list[Layout] = []
        self._sweeps: deque[tuple[int, int, array[float], array[int]]] = deque()
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
            layout = self._layout(source, tuple(reading[:2] for reading in readings))
            self._sweeps.append((layout.id, t_ns + shift_ns, values, later))
            self._values += len(values)
            while self._values > self._capacity and len(self._sweeps) > 1:
                self._values -= len(self._sweeps.popleft()[2])
                self._first += 1

    def _layout(self, source: str, series: tuple[tuple[str, str], ...]) -> Layout:
        layout = self._layouts.get((source, series))
        if layout is None:
            layout = Layout(len(self._by_id), source, series)
            self._layouts[source, series] = layout
            self._by_id.append(layout)
        return layout

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
        early = next((at for at, sweep in enumerate(kept) if sweep[1] >= after_ns), len(kept))
        kept, start = kept[early:], start + early
        taken = _up_to(kept, limit)
        sweeps = [
            Sweep(layout, t_ns, [None if value != value else value for value in values], list(later))
            for layout, t_ns, values, later in kept[:taken]
        ]
        layouts = [self._by_id[number] for number in sorted({sweep.layout for sweep in sweeps})]
        return Batch(self._boot, start + taken, lost, taken < len(kept), layouts, sweeps)


def _time(reading: Reading, t_ns: int) -> int:
    return reading[3] if len(reading) > 3 else t_ns


def _up_to(kept: Sequence[tuple[int, int, array[float], array[int]]], limit: int) -> int:
    """How many sweeps have `limit` values together; one at least, if there is one."""
    total = 0
    for count, sweep in enumerate(kept):
        total += len(sweep[2])
        if total > limit and count:
            return count
    return len(kept)
