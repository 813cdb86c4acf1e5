"""`client.*`: whether the load generator, rather than the server, was the limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from servebench.analysis.data import MISSING, Series
from servebench.analysis.facts import Facts
from servebench.analysis.metrics import dispatch_late
from servebench.analysis.quantiles import Quantile, nearest
from servebench.analysis.verdict.codes import Code, Level, above, unmeasured

P99 = Quantile.parse("p99")

LOOP_LAG_KERNEL_MS = 100.0  # with kernel stamps a late loop does not enter the figures, but it delays sends
LOOP_LAG_SHARE = 0.1  # of the median ITL, where the loop's own clock stamps the tokens
CPU_WARN = 0.90
CPU_FAIL = 0.98
LATE_WARN_MS, LATE_WARN_SHARE = 5.0, 0.05  # of the median TTFT, whichever is more
LATE_FAIL_MS, LATE_FAIL_SHARE = 50.0, 0.5
GC_A_MINUTE = 2
FDS_SHARE = 0.9
CHURN_SHARE = 0.1
KERNEL_SHARE = 0.99
COALESCED_WARN, COALESCED_FAIL = 0.01, 0.25
CEILING_SHARE = 0.8


def check(facts: Facts) -> list[Code]:
    """All codes of the family; none for a run that never came to its first request."""
    if not len(facts.run.requests):
        return []
    checks: tuple[Callable[[Facts], Code], ...] = (
        dispatch_lateness,
        loop_lag,
        cpu,
        collections,
        descriptors,
        connection_churn,
        stamp_source,
        coalesced_reads,
        workers_died,
        selftest_ceiling,
    )
    return [each(facts) for each in checks]


def dispatch_lateness(facts: Facts) -> Code:
    """p99 of dispatched − max(scheduled, slot): in an open loop it is part of every latency from `scheduled`.

    In a closed loop latencies count from `sent`, so that lateness costs concurrency, which `load.concurrency` judges.
    """
    late = dispatch_late(facts.run, facts.cohort).values
    if not late.size:
        return unmeasured("client.dispatch_late", "ms", "no request was dispatched")
    value = nearest(np.sort(late), P99) / 1e6
    text = f"requests were dispatched up to {value:.2f} ms late (p99)"
    if facts.run.closed:
        return Code("client.dispatch_late", Level.OK, value, None, "ms", text)
    base = (facts.metrics["ttft"].at("p50") or 0) / 1e6
    warn, fail = max(LATE_WARN_MS, LATE_WARN_SHARE * base), max(LATE_FAIL_MS, LATE_FAIL_SHARE * base)
    step = "the client could not keep the schedule: use more --workers, or free the machine"
    return above("client.dispatch_late", value, "ms", text, step, warn=warn, fail=fail)


def loop_lag(facts: Facts) -> Code:
    """p99 of the event-loop delay of the worst worker."""
    value = _loop_lag_ms(facts)
    if value is None:
        return _unknown("client.loop_lag", "ms", "no worker reported its loop lag")
    text = f"the event loop was late by {value:.1f} ms (p99, worst worker)"
    step = "use more --workers, or free the machine"
    if _kernel_share(facts) >= KERNEL_SHARE:
        return above("client.loop_lag", value, "ms", text, step, warn=LOOP_LAG_KERNEL_MS)
    gap = (facts.metrics["itl"].at("p50") or 0) / 1e6
    warn = max(1.0, LOOP_LAG_SHARE * gap)
    text += ", and without kernel stamps that is in every figure"
    return above("client.loop_lag", value, "ms", text, step, warn=warn, fail=max(10.0, gap))


def cpu(facts: Facts) -> Code:
    """Median CPU share of the busiest worker in the measured window."""
    shares = {d: _inside(facts, s).value for d, s in facts.run.workers("cpu_share").items()}
    medians = {d: float(np.median(v)) for d, v in shares.items() if v.size}
    if not medians:
        return _unknown("client.cpu", "%", "no worker reported its CPU use")
    worker = max(medians, key=lambda d: medians[d])
    text = f"the busiest worker ({worker}) used {100 * medians[worker]:.0f} % of a core (median)"
    step = "the client is the limit: use more --workers, or a machine with more cores"
    return above("client.cpu", 100 * medians[worker], "%", text, step, warn=100 * CPU_WARN, fail=100 * CPU_FAIL)


def collections(facts: Facts) -> Code:
    """Runs of Python's cyclic garbage collector in the workers; each may pause a worker for tens of ms."""
    known = [w["gc_collections"] for w in _workers(facts) if w.get("gc_collections") is not None]
    if not known:
        return _unknown("client.gc", "collections", "no worker reported its garbage collections")
    text = f"{sum(known)} garbage collections in {len(known)} workers during the load"
    step = "the client's memory grows: use more --workers, or report it"
    often = len(known) * max(1.0, GC_A_MINUTE * (facts.window.load_end - facts.window.start) / 60e9)
    return above("client.gc", sum(known), "collections", text, step, warn=often)


def descriptors(facts: Facts) -> Code:
    """Most file descriptors of a worker against its limit."""
    used = max((w["fds_max"] for w in _workers(facts) if w.get("fds_max") is not None), default=None)
    if used is None:
        return _unknown("client.fds", "descriptors", "no worker reported its file descriptors")
    limit = ((facts.run.manifest.get("environment") or {}).get("limits") or {}).get("fds_soft")
    text = f"at most {used} file descriptors in a worker" + (f", of {limit} allowed" if limit else "")
    step = "raise the limit (ulimit -n), or use more --workers"
    warn = FDS_SHARE * limit if limit else None
    return above("client.fds", used, "descriptors", text, step, warn=warn)


def connection_churn(facts: Facts) -> Code:
    """New connections beyond those that the concurrency needs, as a share of the requests sent."""
    requests = facts.run.requests
    sent = int((requests.sent != MISSING).sum())
    if not sent:
        return unmeasured("client.connection_churn", "%", "no request was sent")
    opened = int(((requests.connected != MISSING) & (requests.sent != MISSING)).sum())
    needed = facts.steps["concurrency"].peak(facts.window.start, facts.window.end + 1)
    share = 100 * max(opened - needed, 0) / sent
    text = f"{opened} connections were opened for {sent} requests, at most {needed} of them at a time"
    step = "the server closes connections, so TTFT includes connecting: raise its keep-alive limit"
    return above("client.connection_churn", share, "%", text, step, warn=100 * CHURN_SHARE)


def stamp_source(facts: Facts) -> Code:
    """Share of the reads that carried the kernel's stamp."""
    share = _kernel_share(facts)
    if np.isnan(share):
        return unmeasured("client.stamp_source", "%", "nothing was received")
    text = f"{100 * share:.1f} % of the reads carried the kernel's receive stamp"
    level = Level.OK if share >= KERNEL_SHARE else Level.WARN
    step = "the event loop's delay is in these figures: run on Linux, without a proxy" if level is Level.WARN else ""
    return Code("client.stamp_source", level, 100 * share, 100 * KERNEL_SHARE, "%", text, step)


def coalesced_reads(facts: Facts) -> Code:
    """Share of the chunks whose read held several writes of the server, the earlier stamps of which are lost.

    It is the client's doing only when its loop was late by about a token's time; else the server wrote them together.
    """
    requests = facts.run.requests
    chunks, coalesced = int(requests.chunks.sum()), int(requests.coalesced_reads.sum())
    if not chunks:
        return unmeasured("client.coalesced_reads", "%", "no token was received")
    share = 100 * coalesced / chunks
    text = f"{coalesced} of {chunks} reads held several of the server's writes"
    lag, gap = _loop_lag_ms(facts), facts.metrics["icl"].at("p50")
    if share > 100 * COALESCED_WARN and lag is not None and gap is not None and lag < 0.5 * gap / 1e6:
        text += "; the client's loop was on time, so the server sent them together"
        return Code("client.coalesced_reads", Level.OK, share, 100 * COALESCED_WARN, "%", text)
    step = "the client read too late: use more --workers, or free the machine"
    return above("client.coalesced_reads", share, "%", text, step, warn=100 * COALESCED_WARN, fail=100 * COALESCED_FAIL)


def workers_died(facts: Facts) -> Code:
    """Workers that did not end in order."""
    workers = _workers(facts)
    died = [str(w.get("worker")) for w in workers if w.get("exit") == "died"]
    if not workers:
        return _unknown("client.worker_died", "workers", "no worker left its closing report")
    text = f"worker {', '.join(died)} died" if died else f"all {len(workers)} workers ended in order"
    step = "the load was not the plan's from then on: see the worker's log, then run again"
    return above("client.worker_died", len(died), "workers", text, step, warn=0)


def selftest_ceiling(facts: Facts) -> Code:
    """The token rate of the run against what `servebench selftest` showed that this machine's workers carry."""
    ceiling = (facts.run.manifest.get("selftest") or {}).get("tokens_per_s_at_1ms_p99")
    if not ceiling:
        return unmeasured(
            "client.selftest_ceiling", "%", "this machine has no self-test on record: servebench selftest"
        )
    rate = facts.throughput.peak_output_tokens_per_s
    if rate is None:
        return unmeasured("client.selftest_ceiling", "%", "the window is too short for a token rate")
    workers = max(len(_workers(facts)), 1)
    share = 100 * rate / (ceiling * workers)
    text = f"the peak of {rate:.0f} tokens/s is {share:.0f} % of what the self-test showed for {workers} workers"
    step = "use more --workers, or a faster machine"
    return above("client.selftest_ceiling", share, "%", text, step, warn=100 * CEILING_SHARE)


def _workers(facts: Facts) -> list[dict[str, Any]]:
    return list(facts.run.manifest.get("workers") or [])


def _inside(facts: Facts, series: Series) -> Series:
    """The samples of the load; a second beyond, since a sample speaks for the second before it."""
    return series.within(facts.window.warmup_end, facts.window.throughput_end + 1_000_000_000)


def _loop_lag_ms(facts: Facts) -> float | None:
    """p99 by the worst worker's own count; of a worker that left none, of its worst in each second."""
    known = [w["loop_lag_p99_ms"] for w in _workers(facts) if w.get("loop_lag_p99_ms") is not None]
    if known:
        return float(max(known))
    parts = [_inside(facts, s).value for s in facts.run.workers("loop_lag_ms").values()]
    samples = np.sort(np.concatenate(parts)) if parts else np.empty(0)
    return float(samples[-(-samples.size * 99 // 100) - 1]) if samples.size else None


def _kernel_share(facts: Facts) -> float:
    """Share of reads with kernel stamps by the workers' counts; by requests when a run has none; NaN without any."""
    workers = [w for w in _workers(facts) if w.get("reads") and w.get("kernel_stamped_reads") is not None]
    if workers:
        return sum(int(w["kernel_stamped_reads"]) for w in workers) / sum(int(w["reads"]) for w in workers)
    stamps = facts.run.requests.kernel_stamps
    known = stamps >= 0
    return float(np.mean(stamps[known] == 1)) if known.any() else float("nan")


def _unknown(code: str, unit: str, why: str) -> Code:
    return unmeasured(
        code, unit, why, level=Level.WARN, step="the client's health is unknown: do not trust close calls"
    )
