"""summary.json: the figures of the report as one document (DESIGN §3.8); times in ms.

The document is a pure function of the run directory, so that computing it again yields the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from servebench.analysis import client_health, data, facts, joined, lengths
from servebench.analysis.attainment import Attained
from servebench.analysis.data import MISSING, SOURCES, RunData, RunSource
from servebench.analysis.facts import Facts, Reached, Statistics
from servebench.analysis.identities import Identity
from servebench.analysis.outcomes import Outcomes
from servebench.analysis.profile.stored import summary_of
from servebench.analysis.quantiles import REPORTED, sample_floor
from servebench.analysis.rounding import milliseconds, rounded
from servebench.analysis.stationarity import Drift
from servebench.analysis.verdict import Code, exit_code, judge, status
from servebench.record.columns import FAILURES

SCHEMA = 1
QUANTILE_RULE = "nearest rank ceil(q·n) over integer nanoseconds"
INTERVAL_RULE = "95 % block bootstrap over 20 blocks of time, within this run"

Document = dict[str, Any]


def summarize(run: RunSource) -> Document:
    """Compute the summary of a run directory, finished or not; see summary.schema.json for what it holds.

    Raises:
        ValueError: the directory's tables contradict each other or its plan does not match its hash.
    """
    return document(facts.gather(data.load(run)), summary_of(run.path))


def document(found: Facts, profile: Document | None = None) -> Document:
    """Write the facts of a run, and what its capture windows say, as summary.json's document."""
    manifest, codes = found.run.manifest, judge(found)
    verdict = status(codes)
    met = all(reached.met for reached in found.objectives) if found.objectives else None
    return {
        "schema": SCHEMA,
        "servebench": manifest.get("servebench"),
        "name": manifest.get("name"),
        "status": manifest.get("status"),
        "simulated": bool(manifest.get("simulated")),
        "random_weights": bool(manifest.get("random_weights")),
        "incomplete": found.run.incomplete,
        "verdict": {"status": str(verdict), "exit_code": int(exit_code(verdict, met)), "codes": _codes(codes)},
        "load": _load(found),
        "phases": _phases(found),
        "metrics": {name: _metric(statistics) for name, statistics in found.metrics.items()},
        "throughput": _throughput(found),
        "slo": _slo(found, met),
        "concurrency": _concurrency(found),
        "outcomes": _outcomes(found.whole),
        "cohort": _outcomes(found.offered),
        "errors": _errors(found.run),
        "finish_reasons": _finish_reasons(found.run),
        "tokens": _tokens(found),
        "lengths": lengths.compare(found),
        "client": client_health.describe(found),
        "identities": {i.name: _identity(i) for i in found.identities},
        "stationarity": [_drift(d) for d in found.drifts],
        **joined.describe(found),
        "profile": profile,
        "definitions": _definitions(found),
        **_carried(manifest),
    }


def _carried(manifest: Mapping[str, Any]) -> Document:
    """What the manifest says and the summary repeats, so that it can be read alone."""
    plan = manifest.get("plan") or {}
    return {
        "plan": {key: plan.get(key) for key in ("hash", "rows", "seeds", "salt", "classes")},
        "endpoint": manifest.get("endpoint"),
        "prompts": manifest.get("prompts"),
        "server_identity": manifest.get("server_identity"),
        "environment": manifest.get("environment") or {},
        "workers": list(manifest.get("workers") or []),
        "selftest": manifest.get("selftest"),
        "warnings": list(manifest.get("warnings") or []),
    }


def _codes(codes: tuple[Code, ...]) -> list[Document]:
    return [
        {
            "code": c.code,
            "level": str(c.level),
            "value": rounded(c.value),
            "limit": rounded(c.limit),
            "unit": c.unit,
            "text": c.text,
            "next": c.next,
        }
        for c in codes
    ]


def _load(found: Facts) -> Document:
    return {
        "kind": "closed" if found.run.closed else "open",
        "origin": "sent" if found.run.closed else "scheduled",
        "bounded_by": found.window.bounded_by,
    }


def _phases(found: Facts) -> Document:
    window = found.window

    def seconds(instant: int) -> float:
        return round((instant - window.start) / 1e9, 6)

    return {
        "start_ns": window.start,
        "warmup_end_s": seconds(window.warmup_end),
        "measured_end_s": seconds(window.measured_end),
        "throughput_end_s": seconds(window.throughput_end),
        "load_end_s": seconds(window.load_end),
        "end_s": seconds(window.end),
        "warmup_rule": "MSER-5" if window.truncation is not None else "stated",
        "notes": list(window.notes),
    }


def _metric(found: Statistics) -> Document:
    quantiles = {q.name: milliseconds(found.at(q.name)) for q in REPORTED}
    return {
        "unit": found.metric.unit,
        "n": found.n,
        "mean": milliseconds(found.mean),
        "min": milliseconds(found.low),
        "max": milliseconds(found.high),
        **quantiles,
        "ranks": {name: at for name, (_, at) in found.quantiles.items()},
        "below_floor": [q.name for q in REPORTED if found.n < sample_floor(q)],
        "within_run": _intervals(found),
        "each": found.metric.each,
        "population": found.metric.population,
        "definition": found.metric.definition,
    }


def _intervals(found: Statistics) -> Document | None:
    if found.intervals is None:
        return None
    return {name: [milliseconds(low), milliseconds(high)] for name, (low, high) in found.intervals.items()}


def _throughput(found: Facts) -> Document:
    events, seconds = found.throughput, found.throughput.seconds

    def rate(number: int | None, over: float = seconds) -> float | None:
        return rounded(number / over) if number is not None and over > 0 else None

    both = None if events.input_tokens is None else events.input_tokens + events.output_tokens
    return {
        "window_s": rounded(seconds),
        "output_tokens_per_s": rate(events.output_tokens),
        "input_tokens_per_s": rate(events.input_tokens),
        "total_tokens_per_s": rate(both),
        "requests_per_s": rate(events.requests),
        "peak_output_tokens_per_s": events.peak_output_tokens_per_s,
        "uncounted_prompts": events.uncounted_prompts,
        "offered_requests_per_s": rounded(found.offered.planned / _cohort_seconds(found))
        if _cohort_seconds(found)
        else None,
        "goodput_per_s": rate(found.good, _cohort_seconds(found)),
        "attainment": rounded(found.attainment),
    }


def _cohort_seconds(found: Facts) -> float:
    """The cohort's own window, in which the good requests were due; the longer one when that was a mere instant."""
    window = found.window
    return window.seconds if window.bounded_by == "requests" else window.cohort_seconds


def _slo(found: Facts, met: bool | None) -> Document | None:
    if not found.objectives:
        return None
    return {
        "met": met,
        "good": found.good,
        "offered": found.offered.planned,
        "attainment": rounded(found.attainment),
        "objectives": [_objective(reached) for reached in found.objectives],
    }


def _objective(reached: Reached) -> Document:
    objective = reached.objective
    return {
        "text": objective.text,
        "metric": objective.metric,
        "quantile": objective.quantile.name,
        "limit": milliseconds(objective.limit_ns),
        "value": milliseconds(reached.value),
        "unit": "ms",
        "n": reached.n,
        "below_floor": reached.below_floor,
        "met": reached.met,
        "attainment": _attainment(reached.attained),
    }


def _attainment(found: Attained) -> Document:
    return {
        "value": rounded(found.share),
        "within": found.within,
        "of": found.of,
        "error": rounded(found.error),
        "effective": rounded(found.effective),
    }


def _concurrency(found: Facts) -> Document:
    window, out = found.window, {}
    for name, steps in found.steps.items():
        out[name.removesuffix("_concurrency") if name != "concurrency" else "total"] = {
            "mean": rounded(steps.mean(window.start, window.end)),
            "max": steps.peak(window.start, window.end),
            "window_mean": rounded(steps.mean(window.warmup_end, window.throughput_end)),
            "window_max": steps.peak(window.warmup_end, window.throughput_end),
        }
    return out | {"unit": "requests", "population": "whole run; window_*: the measured window"}


def _outcomes(numbers: Outcomes) -> Document:
    return {
        "planned": numbers.planned,
        "sent": numbers.sent,
        **numbers.by_outcome,
        "unrecorded": numbers.unrecorded,
        "failed": numbers.failed,
    }


def _errors(run: RunData) -> list[Document]:
    """The most frequent errors, each with its outcome and status."""
    requests = run.requests
    failed = requests.ended(*FAILURES)
    counted: Counter[tuple[str, int | None, str | None]] = Counter()
    for i in np.flatnonzero(failed):
        http = int(requests.http_status[i])
        counted[(str(data.OUTCOMES[requests.outcome[i]]), None if http == MISSING else http, requests.error[i])] += 1
    return [{"outcome": o, "http_status": h, "error": e, "n": n} for (o, h, e), n in counted.most_common(5)]


def _finish_reasons(run: RunData) -> Document:
    counted = Counter(r or "none" for r, ok in zip(run.requests.finish_reason, run.requests.ok, strict=True) if ok)
    return dict(sorted(counted.items()))


def _tokens(found: Facts) -> Document:
    run, requests = found.run, found.run.requests
    cohort_chunks = run.chunks.of(found.cohort)
    sources = np.bincount(requests.token_source[requests.token_source >= 0], minlength=len(SOURCES)).tolist()
    return {
        "output": int(run.chunks.tokens.sum(dtype=np.int64)),
        "input": _sum(requests.input_tokens),
        "cached_input": _sum(requests.cached_tokens),
        "cohort_output": int(run.chunks.tokens[cohort_chunks].sum(dtype=np.int64)),
        "cohort_input": _sum(requests.input_tokens[found.cohort]),
        "source": {str(name): n for name, n in zip(SOURCES, sources, strict=True) if n},
        "population": "all that was received in the whole run, of any outcome; cohort_*: of the cohort's requests",
    }


def _sum(column: data.Ints) -> int | None:
    known = column[column != MISSING]
    return int(known.sum()) if known.size else None


def _identity(identity: Identity) -> Document:
    return {
        "ok": identity.ok,
        "text": identity.text,
        "left": identity.left,
        "right": identity.right,
        "violations": identity.violations,
    }


def _drift(found: Drift) -> Document:
    return {
        "name": found.name,
        "change": rounded(found.change),
        "z": rounded(found.z),
        "bins": found.bins,
        "significant": found.significant,
    }


def _definitions(found: Facts) -> Document:
    window = found.window
    cohort = "requests scheduled inside the measured window"
    if window.bounded_by == "requests":
        cohort = "requests scheduled after the warm-up, to the last"
    return {
        "quantiles": QUANTILE_RULE,
        "intervals": INTERVAL_RULE,
        "cohort": cohort,
        "throughput": "events inside the measured window, by the instant of each, over its length",
        "goodput": "requests of the cohort that met every objective, per second; attainment: over all offered",
        "origin": "sent (closed loop)" if found.run.closed else "scheduled (open loop)",
    }
