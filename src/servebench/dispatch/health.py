"""How the worker itself is doing: the client is the first suspect."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

from servebench.dispatch.sender import Sender
from servebench.dispatch.slices import Slices
from servebench.record.counters import Slot, WorkerCounters
from servebench.record.health import ProcessHealth
from servebench.record.journal import JournalWriter

LAG_EVERY_S = 0.05
COLLECT_AFTER_BYTES = 96 << 20  # cyclic garbage is collected only when memory has grown by this much


class Health:
    """Samples the worker once a second into the journal and the live counters.

    The cyclic collector is off while load runs, since it stops everything for tens of milliseconds; should memory grow,
    it is run once and counted.
    """

    def __init__(
        self,
        worker: int,
        sender: Sender,
        slices: Slices,
        journal: JournalWriter,
        counters: WorkerCounters,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._device = f"worker-{worker}"
        self._sender = sender
        self._slices = slices
        self._journal = journal
        self._counters = counters
        self._loop = loop
        self._process = ProcessHealth()
        self._lag_s = 0.0
        self._lags: list[float] = []
        self._collected_at = 0
        self._last_cpu = time.process_time_ns()
        self._last_wall = time.monotonic_ns()
        self.collections = 0
        self.fds_max = 0
        self.rss_max = 0

    def start(self) -> None:
        """Begin sampling."""
        self._expect()
        self._loop.call_later(1.0, self._second)

    def _expect(self) -> None:
        self._expected = self._loop.time() + LAG_EVERY_S
        self._loop.call_later(LAG_EVERY_S, self._arrived)

    def _arrived(self) -> None:
        lag = max(0.0, self._loop.time() - self._expected)
        self._lags.append(lag)
        self._lag_s = max(self._lag_s, lag)
        self._expect()

    def _second(self) -> None:
        self.sample()
        self._loop.call_later(1.0, self._second)

    def sample(self) -> None:
        """Take one sample of everything."""
        cpu, wall, now = time.process_time_ns(), time.monotonic_ns(), time.time_ns()
        usage = self._process.sample()
        share = (cpu - self._last_cpu) / max(1, wall - self._last_wall)
        self._last_cpu, self._last_wall = cpu, wall
        late_ms, self._sender.late_ns = self._sender.late_ns / 1e6, 0
        lag_ms, self._lag_s = self._lag_s * 1e3, 0.0
        self.fds_max = max(self.fds_max, usage.fds or 0)
        self.rss_max = max(self.rss_max, usage.rss_bytes or 0)
        self._collect_if_grown(usage.rss_bytes or 0)
        values: dict[str, float | None] = {
            "loop_lag_ms": lag_ms,
            "cpu_share": share,
            "rss_bytes": usage.rss_bytes,
            "fds": usage.fds,
            "gc_collections": self.collections,
            "in_flight": self._sender.in_flight,
            "dispatch_late_ms": late_ms,
            "backlog": self._slices.backlog,
        }
        for name, value in values.items():
            self._journal.sample("client", self._device, name, now, value)
        self._publish(lag_ms, late_ms, cpu)

    def _publish(self, lag_ms: float, late_ms: float, cpu_ns: int) -> None:
        counters = self._counters
        counters.lag(Slot.LOOP_LAG_US, Slot.LOOP_LAG_MAX_US, round(lag_ms * 1e3))
        counters.lag(Slot.LATE_US, Slot.LATE_MAX_US, round(late_ms * 1e3))
        counters.set(Slot.CPU_NS, cpu_ns)
        counters.set(Slot.BACKLOG, self._slices.backlog)
        counters.heartbeat()

    def _collect_if_grown(self, rss: int) -> None:
        if not self._collected_at:
            self._collected_at = rss
        elif rss - self._collected_at > COLLECT_AFTER_BYTES:
            gc.collect()
            self.collections += 1
            self._collected_at = rss

    def figures(self) -> dict[str, Any]:
        """What the manifest keeps of the worker's health."""
        lags = sorted(self._lags)
        return {
            "gc_collections": self.collections,
            "fds_max": self.fds_max or None,
            "max_rss_bytes": self.rss_max or None,
            "loop_lag_p99_ms": round(lags[-(-99 * len(lags) // 100) - 1] * 1e3, 3) if lags else None,
            "loop_lag_max_ms": round(lags[-1] * 1e3, 3) if lags else None,
        }
