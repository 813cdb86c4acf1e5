"""The load generator's own figures: its cost, its lateness and where its stamps come from."""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.facts import Facts
from servebench.analysis.metrics import dispatch_late
from servebench.analysis.quantiles import Quantile, nearest
from servebench.analysis.rounding import milliseconds, rounded

P99 = Quantile.parse("p99")


def describe(facts: Facts) -> dict[str, Any]:
    """The `client` section of summary.json."""
    workers: list[dict[str, Any]] = list(facts.run.manifest.get("workers") or [])
    late = np.sort(dispatch_late(facts.run, facts.cohort).values)
    reads, kernel = _total(workers, "reads"), _total(workers, "kernel_stamped_reads")
    tokens = int(facts.run.chunks.tokens.sum(dtype=np.int64))
    cpu = _total(workers, "cpu_load_s")
    return {
        "workers": len(workers),
        "cpu_us_per_token": rounded(1e6 * cpu / tokens) if cpu is not None and tokens else None,
        "cpu_load_s": rounded(cpu),
        "max_rss_bytes": _total(workers, "max_rss_bytes"),
        "stamp_source": {
            "kernel": kernel,
            "user": reads - kernel if reads is not None and kernel is not None else None,
        },
        "schedule_lag_p99_ms": milliseconds(facts.metrics["schedule_lag"].at("p99")),
        "dispatch_late_p99_ms": milliseconds(nearest(late, P99)) if late.size else None,
        "loop_lag_p99_ms": _worst(workers, "loop_lag_p99_ms"),
        "coalesced_reads": int(facts.run.requests.coalesced_reads.sum()),
        "connections": _total(workers, "connections"),
        "gc_collections": _total(workers, "gc_collections"),
        "fds_max": _worst(workers, "fds_max"),
    }


def _known(workers: list[dict[str, Any]], key: str) -> list[Any]:
    return [w[key] for w in workers if w.get(key) is not None]


def _total(workers: list[dict[str, Any]], key: str) -> Any:
    """Sum over the workers that know the figure; None when none does."""
    known = _known(workers, key)
    return sum(known) if known else None


def _worst(workers: list[dict[str, Any]], key: str) -> Any:
    return rounded(max(_known(workers, key), default=None))
