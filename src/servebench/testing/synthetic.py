"""Runs that never happened, with known truth: what the analysis and the reports are tested on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servebench.record.columns import CHUNKS, REQUESTS, TELEMETRY, Outcome, RequestRecord, TokenSource
from servebench.workload.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa

    from servebench.analysis.data import RunData
    from servebench.record.rundir import RunDir

START_NS = 1_800_000_000_000_000_000
MS = 1_000_000
SECOND = 1_000_000_000


@dataclass
class SyntheticRun:
    """A run in memory; change any part of it, then `data` or `write` it.

    Attributes:
        manifest: run.json.
        plan: what was planned.
        records: one a request, in the order of the plan.
        chunks: arrival (ns) and tokens of the chunks of each request that has any, by its index; those of a request
            without a record do not count.
        samples: rows of the telemetry table.
    """

    manifest: dict[str, Any]
    plan: Plan
    records: list[RequestRecord]
    chunks: dict[int, tuple[NDArray[np.int64], NDArray[np.int32]]]
    samples: list[tuple[str, str, str, int, float | None]] = field(default_factory=list)

    @property
    def incomplete(self) -> bool:
        """As a run directory says it: anything but ``complete``."""
        return bool(self.manifest["status"] != "complete")

    def requests(self) -> pa.Table:
        """The table of the REQUESTS schema."""
        import msgspec
        import pyarrow as pa

        rows = [msgspec.structs.asdict(r) for r in sorted(self.records, key=lambda r: r.index)]
        return pa.Table.from_pylist(rows, schema=REQUESTS)

    def chunk_table(self) -> pa.Table:
        """The table of the CHUNKS schema, sorted by request and arrival."""
        import pyarrow as pa

        keys = sorted(self.chunks.keys() & {r.index for r in self.records})
        arrivals = [self.chunks[k][0] for k in keys] or [np.empty(0, np.int64)]
        tokens = [self.chunks[k][1] for k in keys] or [np.empty(0, np.int32)]
        request = np.repeat(np.asarray(keys, np.int64), [len(self.chunks[k][0]) for k in keys])
        zeros = np.zeros(request.size, np.int64)
        columns = [request, np.concatenate(arrivals), np.concatenate(tokens), zeros.astype(np.int8), zeros]
        return pa.table([pa.array(c).cast(f.type) for c, f in zip(columns, CHUNKS, strict=True)], schema=CHUNKS)

    def telemetry(self) -> pa.Table:
        """The table of the TELEMETRY schema."""
        import pyarrow as pa

        columns = list(zip(*self.samples, strict=True)) if self.samples else [()] * len(TELEMETRY)
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, TELEMETRY, strict=True)], schema=TELEMETRY)

    def data(self) -> RunData:
        """The run as the analysis reads it."""
        from servebench.analysis.data import RunData, chunk_columns, request_columns, telemetry_series

        requests = request_columns(self.requests())
        chunks = chunk_columns(self.chunk_table(), requests.index)
        series = telemetry_series(self.telemetry())
        return RunData(self.manifest, self.plan, requests, chunks, series, self.incomplete)

    def write(self, path: Path) -> RunDir:
        """Store it as a finished run directory."""
        from servebench.record.journal import JournalWriter
        from servebench.record.rundir import RunDir

        run = RunDir.create(path)
        self.plan.write(run.plan_path)
        journal = JournalWriter(run.journal_dir, 0)
        for record in self.records:
            arrival, tokens = self.chunks.get(record.index, (np.empty(0, np.int64), np.empty(0, np.int32)))
            journal.add(record, arrival, tokens, np.zeros(len(arrival), np.int8), np.zeros(len(arrival), np.int32))
        for sample in self.samples:
            journal.sample(*sample)
        journal.close()
        run.manifest.update(self.manifest)
        run.save_manifest()
        if not self.incomplete:
            run.finalise()
        return run

    def fail(self, index: int, outcome: Outcome, error: str | None = None, http_status: int | None = None) -> None:
        """Make a request end in `outcome`, without any token."""
        record = next(r for r in self.records if r.index == index)
        record.outcome, record.error, record.http_status = outcome, error, http_status
        record.first_event_ns = record.first_token_ns = record.first_visible_ns = record.last_token_ns = None
        record.output_tokens = record.input_tokens = record.token_source = record.finish_reason = None
        record.chunks = record.first_chunk_tokens = 0
        self.chunks.pop(index, None)
        if outcome in (Outcome.DROPPED, Outcome.IN_FLIGHT):
            record.end_ns = None
        if outcome == Outcome.DROPPED:
            record.dispatched_ns = record.connected_ns = record.sent_ns = record.headers_ns = None


def open_run(
    *,
    requests: int = 800,
    rate: float = 20.0,
    tokens: int = 40,
    input_tokens: int = 200,
    warmup: float = 5.0,
    cooldown: float = 5.0,
    ttft: Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]] | None = None,
    itl: float = 0.010,
    tokens_per_chunk: int = 1,
    lateness: float = 0.0002,
    slo: dict[str, Any] | None = None,
    seed: int = 1,
) -> SyntheticRun:
    """A healthy poisson run bounded by time, in which all that was planned was sent.

    Args:
        requests: how many in all.
        rate: per second.
        tokens: of each answer.
        input_tokens: of each prompt.
        warmup, cooldown: seconds before and after the measured window.
        ttft: seconds to the first token after sending, from the due times (seconds) and a generator; 50 ms ± 10 %.
        itl: mean seconds between tokens, with 5 % noise.
        tokens_per_chunk: of every chunk but the first, which holds one.
        lateness: seconds from due to dispatched.
        slo: the scenario's, resolved.
        seed: of everything.
    """
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate, requests))
    first = (ttft or _steady)(due, rng)
    end = float(due[-1])
    load: dict[str, Any] = {"poisson": rate, "duration": end - warmup - cooldown, "warmup": warmup, "drain": 60.0}
    scheduled = np.round(due * SECOND).astype(np.int64)
    plan = _plan(scheduled, input_tokens, tokens)
    sizes = _chunk_sizes(tokens, tokens_per_chunk)
    sent = START_NS + scheduled + round((lateness + 0.0001) * SECOND)
    run = SyntheticRun(_manifest(plan, load, slo), plan, [], {})
    for i in range(requests):
        gaps = rng.normal(itl, 0.05 * itl, len(sizes) - 1) * sizes[1:]
        arrival = sent[i] + np.round(np.cumsum(np.concatenate([[first[i]], gaps])) * SECOND).astype(np.int64)
        _add(run, i, START_NS + int(scheduled[i]), int(sent[i]), arrival, sizes, input_tokens, tokens)
    _finish(run, warmup, end - cooldown, end)
    return run


def closed_run(
    *, concurrency: int = 16, waves: int = 4, tokens: int = 50, itl: float = 0.010, ttft: float = 0.050, seed: int = 1
) -> SyntheticRun:
    """A healthy closed loop bounded by a request count, in which all slots move in step, as `waves` waves."""
    rng = np.random.default_rng(seed)
    number = concurrency * waves
    plan = _plan(np.full(number, -1, np.int64), 200, tokens)
    load = {"closed": {"concurrency": concurrency, "think": 0.0}, "requests": number, "warmup": 0.0, "drain": 60.0}
    run = SyntheticRun(_manifest(plan, load, None), plan, [], {})
    sizes = _chunk_sizes(tokens, 1)
    free = np.full(concurrency, START_NS, np.int64)
    for i in range(number):
        slot = i % concurrency
        first = ttft * rng.uniform(0.95, 1.05)
        gaps = np.concatenate([[first], rng.normal(itl, 0.01 * itl, tokens - 1)])
        scheduled = int(free[slot])
        sent = scheduled + 300_000
        arrival = sent + np.round(np.cumsum(gaps) * SECOND).astype(np.int64)
        _add(run, i, scheduled, sent, arrival, sizes, 200, tokens)
        free[slot] = int(arrival[-1]) + 100_000
    end = (int(free.max()) - START_NS) / SECOND
    _finish(run, 0.0, end, end)
    return run


def _steady(due: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    return 0.050 * rng.uniform(0.9, 1.1, due.size)


def _chunk_sizes(tokens: int, per_chunk: int) -> NDArray[np.int32]:
    whole, rest = divmod(tokens - 1, per_chunk)
    return np.asarray([1] + [per_chunk] * whole + ([rest] if rest else []), np.int32)


def _plan(scheduled: NDArray[np.int64], input_tokens: int, tokens: int) -> Plan:
    n = scheduled.size
    return Plan(
        scheduled_ns=scheduled,
        input_tokens=np.full(n, input_tokens, np.int32),
        output_tokens=np.full(n, tokens, np.int32),
        class_id=np.zeros(n, np.int16),
        content_seed=np.arange(n, dtype=np.int64),
        prefix_group=np.full(n, -1, np.int32),
        prefix_tokens=np.zeros(n, np.int32),
    )


def _add(
    run: SyntheticRun,
    index: int,
    scheduled: int,
    sent: int,
    arrival: NDArray[np.int64],
    sizes: NDArray[np.int32],
    input_tokens: int,
    tokens: int,
) -> None:
    run.chunks[index] = (arrival, sizes)
    run.records.append(
        RequestRecord(
            index=index,
            worker=0,
            class_id=0,
            scheduled_ns=scheduled,
            dispatched_ns=sent - 100_000,
            connected_ns=sent - 50_000 if index < 8 else None,
            sent_ns=sent,
            headers_ns=int(arrival[0]) - 200_000,
            first_event_ns=int(arrival[0]) - 100_000,
            first_token_ns=int(arrival[0]),
            first_visible_ns=int(arrival[0]),
            last_token_ns=int(arrival[-1]),
            end_ns=int(arrival[-1]) + 100_000,
            outcome=Outcome.OK,
            http_status=200,
            input_planned=input_tokens,
            output_planned=tokens,
            input_tokens=input_tokens,
            output_tokens=tokens,
            token_source=TokenSource.EVENTS,
            finish_reason="length",
            chunks=len(arrival),
            first_chunk_tokens=int(sizes[0]),
            bytes_received=250 * len(arrival),
            kernel_stamps=True,
            connection=index % 8,
        )
    )


def _manifest(plan: Plan, load: dict[str, Any], slo: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "schema": 1,
        "servebench": "0.0.0",
        "name": "synthetic",
        "status": "complete",
        "created_ns": START_NS,
        "command": ["servebench", "run", "synthetic"],
        "simulated": False,
        "random_weights": False,
        "scenario": {"servebench": 1, "name": "synthetic", "load": load, "slo": slo or {}},
        "plan": {"hash": plan.hash, "rows": len(plan), "seeds": {}, "salt": 1, "classes": list(plan.classes)},
        "endpoint": {
            "url": "http://127.0.0.1:8000",
            "api": "chat",
            "model": "synthetic",
            "engine": {"name": "unknown", "version": None},
            "tls": None,
            "extras": [],
        },
        "prompts": {"method": "server_tokenizer", "exact": True, "overhead": 0, "note": ""},
        "cold_start": None,
        "environment": {},
        "selftest": None,
        "warnings": [],
    }


def _finish(run: SyntheticRun, warmup: float, measured_end: float, load_end: float) -> None:
    """Add phases, clocks, a worker's closing report and its heartbeats."""
    last = max(r.end_ns or 0 for r in run.records)
    run.manifest["phases"] = {
        "start_ns": START_NS,
        "warmup_end_ns": START_NS + round(warmup * SECOND),
        "measured_end_ns": START_NS + round(measured_end * SECOND),
        "load_end_ns": START_NS + round(load_end * SECOND) + MS,
        "end_ns": last + MS,
    }
    beats = range(START_NS, last + SECOND, SECOND)
    run.manifest["clocks"] = {"anchors": anchors(beats)}
    chunks = sum(len(arrival) for arrival, _ in run.chunks.values())
    run.manifest["workers"] = [
        {
            "worker": 0,
            "pid": 4242,
            "exit": "clean",
            "cpu_s": 1.2e-5 * chunks + 0.3,
            "cpu_load_s": 1.2e-5 * chunks,
            "max_rss_bytes": 80_000_000,
            "gc_collections": 0,
            "reads": chunks,
            "kernel_stamped_reads": chunks,
            "connections": 8,
            "fds_max": 24,
            "loop_lag_p99_ms": 0.8,
        }
    ]
    for name, value in (("loop_lag_ms", 0.6), ("cpu_share", 0.2), ("rss_bytes", 8e7), ("fds", 24.0)):
        run.samples += [("client", "worker-0", name, t, value) for t in beats]


def anchors(instants: Sequence[int]) -> list[dict[str, int]]:
    """Clock anchors at the instants, of a wall clock that is never touched."""
    return [{"realtime_ns": t, "monotonic_ns": t - START_NS + SECOND, "error_ns": 200} for t in instants]
