"""Runs made by hand: instants in ms after the start, so that what follows from them can be computed on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servebench.analysis.facts import Facts, gather
from servebench.analysis.phases import Phases, find
from servebench.record.columns import Outcome, RequestRecord, TokenSource
from servebench.testing.synthetic import MS, START_NS, SyntheticRun, anchors, open_run
from servebench.workload.plan import Plan

Points = Iterable[tuple[float, float | None]]


@dataclass
class Sent:
    """One request.

    Attributes:
        sent: ms after the start; it was due then, too.
        chunks: arrivals, ms after the start.
        tokens: of each chunk; one for all where empty.
        input, cached: tokens of the prompt.
        group, prefix: of a shared prefix.
        cls: class id.
    """

    sent: float
    chunks: Sequence[float] = ()
    tokens: Sequence[int] = ()
    input: int = 100
    cached: int | None = None
    group: int = -1
    prefix: int = 0
    cls: int = 0
    outcome: str | None = None
    more: dict[str, Any] = field(default_factory=dict)


def at(ms: float) -> int:
    """An instant in ns of CLOCK_REALTIME."""
    return START_NS + round(ms * MS)


def handmade(
    requests: Sequence[Sent], window: tuple[float, float] = (0, 1000), end: float | None = None, **manifest: Any
) -> SyntheticRun:
    """A run of these requests, measured in `window` (ms), with further manifest keys."""
    run = open_run(requests=max(len(requests), 1))
    run.plan = _plan(requests) if requests else run.plan
    run.manifest["plan"] |= {"hash": run.plan.hash, "rows": len(run.plan)}
    run.records, run.chunks, run.samples = [], {}, []
    for index, request in enumerate(requests):
        _add(run, index, request)
    last = end if end is not None else max([window[1], *(c for r in requests for c in (r.sent, *r.chunks))]) + 1
    load = {"poisson": 1.0, "duration": (window[1] - window[0]) / 1e3, "warmup": window[0] / 1e3, "drain": 60.0}
    run.manifest["scenario"]["load"] = load
    run.manifest["phases"] = {
        "start_ns": START_NS,
        "warmup_end_ns": at(window[0]),
        "measured_end_ns": at(window[1]),
        "load_end_ns": at(window[1]),
        "end_ns": at(last),
    }
    run.manifest["clocks"] = {"anchors": anchors(range(START_NS, at(last), 1000 * MS))}
    run.manifest |= manifest
    return run


def sample(run: SyntheticRun, source: str, device: str, name: str, points: Points) -> None:
    """Add a series of (ms, value)."""
    run.samples += [(source, device, name, at(ms), value) for ms, value in points]


def facts_of(run: SyntheticRun) -> tuple[Facts, Phases]:
    facts = gather(run.data())
    return facts, find(facts)


def _plan(requests: Sequence[Sent]) -> Plan:
    return Plan(
        scheduled_ns=np.array([round(r.sent * MS) for r in requests], np.int64),
        input_tokens=np.array([r.input for r in requests], np.int32),
        output_tokens=np.array([max(sum(_sizes(r)), 1) for r in requests], np.int32),
        class_id=np.array([r.cls for r in requests], np.int16),
        content_seed=np.arange(len(requests), dtype=np.int64),
        prefix_group=np.array([r.group for r in requests], np.int32),
        prefix_tokens=np.array([r.prefix for r in requests], np.int32),
        classes=tuple(f"class{k}" for k in range(max(r.cls for r in requests) + 1)),
    )


def _sizes(request: Sent) -> Sequence[int]:
    return request.tokens or [1] * len(request.chunks)


def _add(run: SyntheticRun, index: int, request: Sent) -> None:
    arrival = np.array([at(ms) for ms in request.chunks], np.int64)
    first, last = (int(arrival[0]), int(arrival[-1])) if arrival.size else (None, None)
    outcome = request.outcome or (Outcome.OK if arrival.size else Outcome.IN_FLIGHT)
    run.chunks[index] = (arrival, np.asarray(_sizes(request), np.int32))
    record = RequestRecord(
        index=index,
        worker=0,
        class_id=request.cls,
        scheduled_ns=at(request.sent),
        dispatched_ns=at(request.sent),
        sent_ns=at(request.sent),
        first_token_ns=first,
        first_visible_ns=first,
        last_token_ns=last,
        end_ns=last,
        outcome=outcome,
        http_status=200,
        input_planned=request.input,
        output_planned=max(sum(_sizes(request)), 1),
        input_tokens=request.input if arrival.size else None,
        output_tokens=sum(_sizes(request)) if arrival.size else None,
        cached_tokens=request.cached,
        token_source=TokenSource.EVENTS if arrival.size else None,
        finish_reason="length" if arrival.size else None,
        chunks=len(arrival),
        first_chunk_tokens=_sizes(request)[0] if arrival.size else 0,
        kernel_stamps=True,
    )
    for name, value in request.more.items():
        setattr(record, name, value)
    run.records.append(record)
