"""One GPU while it is sampled: what it still answers, what it refuses, and whether it is still there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml

from servebench.telemetry.nvml_facts import device_facts
from servebench.telemetry.nvml_fields import (
    FAST_FIELDS,
    LENGTHY,
    SLOW_FIELDS,
    Field,
    Query,
    fallbacks,
    fast_queries,
    slow_queries,
)
from servebench.telemetry.nvml_gpm import METRICS, GpmReader, Value, why_no_gpm
from servebench.telemetry.nvml_processes import Residents
from servebench.telemetry.nvml_readers import FieldReader, QueryReader, Reader
from servebench.telemetry.source import Reading

SLOW_S = 1.0


class Turn:
    """A reader that is not read with every sample, and when it is next."""

    __slots__ = ("due", "reader")

    def __init__(self, reader: Reader, due: float) -> None:
        self.reader = reader
        self.due = due


class Gpu:
    """Reads one GPU.

    Fast values come with every sample and once-a-second ones in turns, so that no sample takes much longer than
    another. A call that lasts 20 ms has a sample to itself.

    Args:
        index: NVML's number of the device.
        handle: NVML's handle.
        residents: who is on it.
        clock: seconds.
    """

    def __init__(self, index: int, handle: Any, residents: Residents, clock: Callable[[], float]) -> None:
        self.index = index
        self.device = f"gpu-{index}"
        self.not_supported: dict[str, str] = {}
        self.lost: dict[str, Any] | None = None
        self._handle = handle
        self._residents = residents
        self._clock = clock
        self._facts = device_facts(handle)
        self._failures: Counter[str] = Counter()
        self._stand_ins: dict[str, str] = {}
        self._fallbacks = fallbacks()
        self._fast: list[Reader] = [self._fields(FAST_FIELDS), self._query(*fast_queries())]
        self._fast_names = {name for reader in self._fast for name in reader.names}
        self._turns = [Turn(reader, 0.0) for reader in self._slow_readers()]
        self._lengthy: list[Turn] = []
        self._gpm = self._make_gpm()

    def _slow_readers(self) -> Iterator[Reader]:
        yield self._fields(SLOW_FIELDS)
        yield from map(self._query, (*slow_queries(), self._residents.query))

    def _make_gpm(self) -> GpmReader | None:
        if (reason := why_no_gpm(self._handle)) is None:
            return GpmReader(self._handle, self._refuse, self._fail, self._clock)
        for name in METRICS:
            self._refuse(name, reason)
        return None

    def _fields(self, fields: Sequence[Field]) -> FieldReader:
        return FieldReader(self._handle, fields, self._refuse, self._fail)

    def _query(self, *queries: Query) -> QueryReader:
        return QueryReader(self._handle, queries, self._refuse, self._fail)

    def _refuse(self, name: str, reason: str) -> None:
        if name in self._fallbacks:
            self._stand_in(name)
        else:
            self._stand_ins.pop(name, None)
            self.not_supported[name] = reason

    def _stand_in(self, name: str) -> None:
        query = self._fallbacks.pop(name)
        self._stand_ins[name] = query.note
        reader = self._query(query)
        if name in LENGTHY:
            self._lengthy.append(Turn(reader, 0.0))
        elif name in self._fast_names:
            self._fast.append(reader)
        else:
            self._turns.append(Turn(reader, 0.0))

    def _fail(self, name: str, reason: str) -> None:
        self._failures[f"{name}: {reason}"] += 1

    def everything(self) -> list[Reading]:
        """All values, whether they are due or not; of the lengthy ones, those that are due."""
        now = self._clock()
        for number, turn in enumerate(self._turns):
            turn.due = now - number * SLOW_S / len(self._turns)  # so that from now on they are spread
        readings = self.due()
        while (more := self.lengthy()) is not None:
            readings += more
        return readings

    def due(self) -> list[Reading]:
        """What is due now, but for the lengthy calls."""
        readings = self._read(self._fast)
        now = self._clock()
        if self._gpm is not None:
            readings += self._read([self._gpm])
        for turn in self._turns:
            if turn.due <= now:
                readings += self._take(turn, now)
        return readings

    def lengthy(self) -> list[Reading] | None:
        """One value that takes 20 ms to read, or None where none is due."""
        now = self._clock()
        turn = min(self._lengthy, key=lambda turn: turn.due, default=None)
        return self._take(turn, now) if turn is not None and turn.due <= now else None

    def _take(self, turn: Turn, now: float) -> list[Reading]:
        turn.due += SLOW_S
        if turn.due <= now:  # late or new: nothing is made up for
            turn.due = now + SLOW_S
        return self._read([turn.reader])

    def _read(self, readers: list[Reader]) -> list[Reading]:
        readings: list[Reading] = []
        for reader in readers:
            values = self._values(reader)
            t_ns = time.time_ns()  # afterwards: a call that takes long waits for the driver's lock before it reads
            readings += [(self.device, name, value, t_ns) for name, value in values]
        return readings

    def _values(self, reader: Reader) -> list[Value]:
        if self.lost is None:
            try:
                return reader.read()
            except pynvml.NVMLError as error:
                self._lose(str(error))
        return [(name, None) for name in reader.names]

    def _lose(self, reason: str) -> None:
        self.lost = {"t_ns": time.time_ns(), "reason": reason}

    def facts(self) -> dict[str, Any]:
        """What the device is and how far it answered."""
        return {
            "index": self.index,
            **self._facts,
            "not_supported": dict(self.not_supported),
            "stand_ins": dict(self._stand_ins),
            "failures": dict(self._failures),
            "lost": self.lost,
            **self._residents.facts(),
        }

    def close(self) -> None:
        """Free what belongs to the device."""
        if self._gpm is not None:
            self._gpm.close()
