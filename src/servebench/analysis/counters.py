"""The server's counters: how much they grew over the run and over the window, and whether the server restarted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import Ints, RunData, Series
from servebench.analysis.facts import Facts
from servebench.analysis.sampling import covers, told, value_at

SOURCE = "server"
COUNTERS = {
    "requests_success": "requests",
    "requests_aborted": "requests",
    "rejections": "requests",
    "preemptions": "requests",
    "prompt_tokens": "tokens",
    "generation_tokens": "tokens",
    "cached_tokens": "tokens",
    "prefix_queries": "tokens",
    "prefix_hits": "tokens",
    "steps": "steps",
    "step_tokens_sum": "tokens",
    "spec_drafted": "tokens",
    "spec_accepted": "tokens",
    "estimated_flops": "FLOP",
    "estimated_read_bytes": "bytes",
    "estimated_write_bytes": "bytes",
}
HISTOGRAMS = ("ttft", "itl", "e2e", "queue", "prefill", "decode", "inference")


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a counter grew, all engines together; None where the samples do not say.

    Attributes:
        run: from the first sample to the last, which is before the first request and after the last.
        window: over the measured window, interpolated at its edges.
    """

    run: float | None
    window: float | None


NOTHING = Growth(None, None)


def engines(run: RunData) -> tuple[str, ...]:
    """Devices of the server that left any sample of theirs; that it does not answer is none."""
    known = {d for (s, d, name), series in run.telemetry.items() if s == SOURCE and name != "up" and series.t.size}
    return tuple(sorted(known))


def growth(facts: Facts, name: str) -> Growth:
    """Growth of a counter; after a restart it begins at 0 again, and what it had grown unseen is lost."""
    found = [_monotone(s) for s in facts.run.workers(name, SOURCE).values() if s.t.size]
    if not found:
        return NOTHING
    window = facts.window
    first, last = _span(facts)
    whole = [float(s.value[-1] - s.value[0]) if covers(s.t, first, last) else None for s in found]
    inside = [_between(s, window.warmup_end, window.throughput_end) for s in found]
    return Growth(_sum(whole), _sum(inside))


def _span(facts: Facts) -> tuple[int, int]:
    """The first and the last instant at which the run bears on the server."""
    requests = facts.run.requests
    sent = requests.sent[requests.sent >= 0]
    ends = requests.end[requests.end >= 0]
    start = int(sent.min()) if sent.size else facts.window.start
    return start, max(int(ends.max()) if ends.size else start, start)


def _monotone(series: Series) -> Series:
    """The counter as if no restart had set it back."""
    fell = np.flatnonzero(np.diff(series.value) < 0)
    lift = np.zeros(series.value.size)
    lift[fell + 1] = series.value[fell]
    return Series(series.t, series.value + np.cumsum(lift))


def _between(series: Series, start: int, end: int) -> float | None:
    before, after = value_at(series, start), value_at(series, end)
    return after - before if before is not None and after is not None else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def restarts(run: RunData) -> Ints:
    """Instants (ns) of the first sample after each restart: by the sampler, or a counter that was lower than before."""
    names = [*COUNTERS, *(f"{name}_{part}" for name in HISTOGRAMS for part in ("sum", "count"))]
    noticed = [restart["t_ns"] for restart in told(run, SOURCE).get("restarts") or []]
    found: list[NDArray[np.int64]] = [np.asarray(noticed, np.int64)]
    for name in names:
        found += [s.t[1:][np.diff(s.value) < 0] for s in run.workers(name, SOURCE).values()]
    return np.unique(np.concatenate(found))
