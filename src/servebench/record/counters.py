"""Live counters: what the workers are doing right now, in memory that they share with the parent.

Every worker owns one block of int64 slots and three histograms and is the only one to write them; the parent owns the
control block. An aligned int64 is written and read whole, so there is no lock and no message; a reader may see two
slots a few microseconds apart, which a display does not mind. The figures of a result never come from here.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, auto
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servebench.record.columns import Outcome

Int64s = NDArray[np.int64]


class State(IntEnum):
    """What a worker is doing."""

    STARTING = 0
    READY = 1
    RUNNING = 2
    DRAINING = 3
    DONE = 4


class Command(IntEnum):
    """What the parent wants of the workers; a larger one never gives way to a smaller one."""

    WAIT = 0
    RUN = 1
    DRAIN = 2  # send no more, finish what is in flight
    STOP = 3  # send no more, give up what is in flight, save
    ABORT = 4  # save what is there, at once


class Slot(IntEnum):
    """Slots of a worker's block. Counts only grow; levels are the latest value; peaks the largest since the start."""

    STATE = 0
    PID = auto()
    HEARTBEAT_NS = auto()  # CLOCK_MONOTONIC of the last sign of life
    SCHEDULED = auto()  # count: requests whose due time has passed
    DISPATCHED = auto()  # count
    FINISHED = auto()  # count: requests with an outcome
    IN_FLIGHT = auto()  # level
    ANSWERING = auto()  # level: requests in flight whose answer came in two reads or more, so that a token is there
    TOKENS = auto()  # count: token events seen, of unfinished requests too
    BYTES = auto()  # count: body bytes received
    LOOP_LAG_US = auto()  # level: worst lag of the event loop in the last second
    LOOP_LAG_MAX_US = auto()  # peak
    LATE_US = auto()  # level: worst lateness of a dispatch in the last second
    LATE_MAX_US = auto()  # peak
    CPU_NS = auto()  # count: processor time of the process
    BACKLOG = auto()  # level: answers received but not decoded yet
    PAUSED = auto()  # level: closed-loop slots that wait after a rejection
    COHORT_OPEN = auto()  # level: requests due in the measured window that have no outcome yet
    OUTCOME_FIRST = auto()  # counts, one slot an outcome, in the order of Outcome


class Control(IntEnum):
    """Slots of the parent's block."""

    COMMAND = 0
    START_MONOTONIC_NS = auto()  # zero of the plan; 0 until known
    LOAD_STOP = auto()  # 1 once the cohort has finished everywhere, so that cool-down load ends


_OUTCOMES = tuple(Outcome)
_OUTCOME_AT: dict[str, int] = {outcome: Slot.OUTCOME_FIRST + number for number, outcome in enumerate(_OUTCOMES)}
_SLOTS = Slot.OUTCOME_FIRST + len(_OUTCOMES)

LIVE_METRICS = ("ttft", "itl", "e2e")
_LOWEST_NS, _HIGHEST_NS, _EDGES = 10_000, 3_600_000_000_000, 401
EDGES_NS: Int64s = np.rint(np.geomspace(_LOWEST_NS, _HIGHEST_NS, _EDGES)).astype(np.int64)
_BUCKETS = _EDGES + 1  # one below the first edge, one from the last edge on

_MAGIC = 0x0001_5645_5253_0001
_HEADER = 8  # magic, workers, slots, buckets, rest reserved
_CONTROL = 8
_BLOCK = -(-(_SLOTS + len(LIVE_METRICS) * _BUCKETS) // 8) * 8  # whole cache lines, so that workers do not share one


class WorkerCounters:
    """One worker's block; only that worker writes it. A simple increment costs about 0.1 µs."""

    def __init__(self, block: Int64s, control: Int64s) -> None:
        self._slots = memoryview(block.data).cast("B").cast("q")
        self._control = memoryview(control.data).cast("B").cast("q")
        buckets = block[_SLOTS : _SLOTS + len(LIVE_METRICS) * _BUCKETS].reshape(len(LIVE_METRICS), _BUCKETS)
        self._histograms = dict(zip(LIVE_METRICS, buckets, strict=True))

    def add(self, slot: int, count: int = 1) -> None:
        """Count something."""
        self._slots[slot] += count

    def set(self, slot: int, value: int) -> None:
        """Store a level."""
        self._slots[slot] = value

    def get(self, slot: int) -> int:
        """The slot's value."""
        return self._slots[slot]

    def lag(self, level: Slot, peak: Slot, value: int) -> None:
        """Store the level of the last second and raise its peak."""
        self._slots[level] = value
        if value > self._slots[peak]:
            self._slots[peak] = value

    def finish(self, outcome: str) -> None:
        """Count a request that has got its `Outcome`."""
        self._slots[_OUTCOME_AT[outcome]] += 1
        self._slots[Slot.FINISHED] += 1

    def state(self, state: State) -> None:
        """Publish what the worker is doing; a sign of life."""
        self._slots[Slot.STATE] = state
        self.heartbeat()

    def heartbeat(self) -> None:
        """Say that the worker lives."""
        self._slots[Slot.HEARTBEAT_NS] = time.monotonic_ns()

    @property
    def command(self) -> Command:
        """What the parent wants."""
        return Command(self._control[Control.COMMAND])

    @property
    def start_monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC at the zero of the plan; 0 until the parent has fixed it."""
        return self._control[Control.START_MONOTONIC_NS]

    @property
    def load_stop(self) -> bool:
        """True once the cool-down load may end."""
        return bool(self._control[Control.LOAD_STOP])

    def observe(self, metric: str, durations_ns: Int64s, weights: Int64s | None = None) -> None:
        """Add durations to a live histogram, in one go.

        Args:
            metric: one of LIVE_METRICS.
            durations_ns: int64, any length.
            weights: int64, how often each counts (tokens of the chunk that ends the gap); once each by default.
        """
        at = np.searchsorted(EDGES_NS, durations_ns, side="right")
        counts = np.bincount(at, minlength=_BUCKETS) if weights is None else _weighted(at, weights)
        self._histograms[metric] += counts

    def observe_one(self, metric: str, duration_ns: int) -> None:
        """Add one duration to a live histogram."""
        self._histograms[metric][EDGES_NS.searchsorted(duration_ns, side="right")] += 1


def _weighted(at: NDArray[np.intp], weights: Int64s) -> Int64s:
    return np.bincount(at, weights=weights, minlength=_BUCKETS).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All counters at about one instant.

    Attributes:
        monotonic_ns: CLOCK_MONOTONIC of the reading.
        workers: int64 (workers, slots); columns as in `Slot`.
        histograms: int64 (metrics, buckets), summed over the workers; rows as in LIVE_METRICS.
        command: what the parent last asked for.
        start_monotonic_ns: zero of the plan; None until known.
    """

    monotonic_ns: int
    workers: Int64s
    histograms: Int64s
    command: Command
    start_monotonic_ns: int | None

    def total(self, slot: int) -> int:
        """Sum of a count or level over the workers."""
        return int(self.workers[:, slot].sum())

    def peak(self, slot: int) -> int:
        """Largest value of the slot among the workers."""
        return int(self.workers[:, slot].max())

    @property
    def states(self) -> list[State]:
        """What each worker is doing."""
        return [State(value) for value in self.workers[:, Slot.STATE].tolist()]

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Finished requests by outcome; every outcome is listed."""
        return {outcome: self.total(_OUTCOME_AT[outcome]) for outcome in _OUTCOMES}

    def histogram(self, metric: str) -> Int64s:
        """Bucket counts of a live metric; bucket i holds EDGES_NS[i − 1] <= duration < EDGES_NS[i]."""
        counts: Int64s = self.histograms[LIVE_METRICS.index(metric)]
        return counts


def bucket_quantile(counts: Int64s, numerator: int, denominator: int) -> int | None:
    """Quantile of a live histogram in ns, by nearest rank, good to the width of a bucket (about 5 %).

    Args:
        counts: bucket counts, as from `Snapshot.histogram` or a difference of two.
        numerator, denominator: 99, 100 for p99.

    Returns:
        the geometric middle of the bucket that holds the rank; the finite edge of an outermost one; None without data.
    """
    total = int(counts.sum())
    if total <= 0:
        return None
    rank = max(1, -(-numerator * total // denominator))
    at = int(np.searchsorted(np.cumsum(counts), rank))
    low, high = EDGES_NS[max(at - 1, 0)], EDGES_NS[min(at, _EDGES - 1)]
    return round(float(np.sqrt(float(low) * float(high))))


class LiveCounters:
    """The shared memory; the parent creates it, workers open it by its path.

    Attributes:
        path: the file behind it.
        workers: number of workers.
    """

    def __init__(self, path: Path, cells: Int64s) -> None:
        self.path = path
        self.workers = int(cells[1])
        self._control = cells[_HEADER : _HEADER + _CONTROL]
        self._blocks = cells[_HEADER + _CONTROL :].reshape(self.workers, _BLOCK)

    @classmethod
    def create(cls, workers: int, directory: Path | None = None) -> LiveCounters:
        """Make the shared memory, all zero.

        Args:
            workers: how many blocks.
            directory: where its file goes; by default in memory (/dev/shm), where there is such a place, since a file
                on a disk is written back now and then and a worker that touches it meanwhile would wait for the disk.
        """
        handle, name = tempfile.mkstemp(prefix="servebench-", suffix=".live", dir=directory or _shared_memory())
        try:
            os.ftruncate(handle, 8 * (_HEADER + _CONTROL + workers * _BLOCK))
            cells = _map(handle)
        finally:
            os.close(handle)
        cells[:4] = _MAGIC, workers, _SLOTS, _BUCKETS
        return cls(Path(name), cells)

    @classmethod
    def open(cls, path: Path) -> LiveCounters:
        """Map the memory that another process created.

        Raises:
            ValueError: the file is something else, or of another version.
        """
        with path.open("r+b") as file:
            cells = _map(file.fileno())
        if cells[0] != _MAGIC or cells[2] != _SLOTS or cells[3] != _BUCKETS:
            raise ValueError(f"{path} does not hold the counters of this version of servebench")
        return cls(path, cells)

    def worker(self, number: int) -> WorkerCounters:
        """The block of a worker, for the worker to write."""
        return WorkerCounters(self._blocks[number], self._control)

    def command(self, command: Command) -> None:
        """Ask the workers for something; what was asked before only gives way to something stronger."""
        self._control[Control.COMMAND] = max(int(self._control[Control.COMMAND]), command)

    def start_at(self, monotonic_ns: int) -> None:
        """Fix the zero of the plan (CLOCK_MONOTONIC) and let the workers run."""
        self._control[Control.START_MONOTONIC_NS] = monotonic_ns
        self.command(Command.RUN)

    def stop_load(self) -> None:
        """Let the cool-down load end."""
        self._control[Control.LOAD_STOP] = 1

    def snapshot(self) -> Snapshot:
        """Read everything; takes some ten microseconds."""
        buckets = self._blocks[:, _SLOTS : _SLOTS + len(LIVE_METRICS) * _BUCKETS].sum(axis=0)
        return Snapshot(
            monotonic_ns=time.monotonic_ns(),
            workers=self._blocks[:, :_SLOTS].copy(),
            histograms=buckets.reshape(len(LIVE_METRICS), _BUCKETS),
            command=Command(int(self._control[Control.COMMAND])),
            start_monotonic_ns=int(self._control[Control.START_MONOTONIC_NS]) or None,
        )

    def unlink(self) -> None:
        """Remove the file; the memory lives on in the processes that have it open. A second call does nothing."""
        self.path.unlink(missing_ok=True)


@contextmanager
def live_counters(workers: int) -> Iterator[LiveCounters]:
    """Counters whose file is gone at the end, whatever happened."""
    counters = LiveCounters.create(workers)
    try:
        yield counters
    finally:
        counters.unlink()


def _map(handle: int) -> Int64s:
    return np.frombuffer(mmap.mmap(handle, 0), np.int64)


def _shared_memory() -> Path | None:
    place = Path("/dev/shm")
    return place if place.is_dir() and os.access(place, os.W_OK) else None
