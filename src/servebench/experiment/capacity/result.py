"""The result of a capacity search from what is known of its rates; `capacity` describes its shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from servebench.experiment.capacity import verdict as capacity_verdict
from servebench.experiment.capacity.evidence import Effort, Evidence, Summary
from servebench.experiment.capacity.probe import Backlog, Judgement, Rules, Share, objectives, target_of, unusable
from servebench.experiment.capacity.search import Bounds, Decision, Known, bracket
from servebench.experiment.figures import value_of

LATENCIES = ("ttft.p50", "ttft.p95", "itl.p50", "itl.p99", "e2e.p95")
RATES = ("goodput_per_s", "output_tokens_per_s", "input_tokens_per_s")
NO_ENERGY = "no run at the sustained rate measured energy"

Document = dict[str, Any]


def conclude(asked: Mapping[str, Any], found: Sequence[Evidence], budget_s: float) -> Document:
    """Judge what was found so far by the rules of the question (`capacity.question`)."""
    effort, bounds, rules = Effort(**asked["effort"]), Bounds(**asked["bounds"]), rules_of(asked)
    known = {each.rate: each.known(rules, effort) for each in found}
    ends = bracket(list(known.values()))
    sustained = next((each for each in found if each.rate == ends.sustained), None)
    failed = next((each for each in found if each.rate == ends.failed), None)
    spent = sum(each.seconds for each in found)
    runs = [run for each in found for run in each.usable]
    result = {
        "sustained_per_s": ends.sustained,
        "failed_per_s": ends.failed,
        "max_per_s": bounds.most,
        "goodput_per_s": _mean(sustained, "goodput_per_s"),
        "binding": _binding(failed, rules),
        "slo": _slo(runs),
        "probes": [_probe(each, known[each.rate], rules) for each in sorted(found, key=lambda each: each.rate)],
        "tokens": _tokens(sustained),
        **_energy(sustained),
        "engine": _engine(asked, found),
        "scenario": asked["scenario"]["name"],
        "duration_s": asked["duration_s"],
        "confirmed": any(each.confirmed for each in known.values() if each.rate == ends.sustained),
        "precision": {"asked": bounds.precision, "reached": ends.width},
        "confidence": asked["confidence"],
        "simulated": any(bool(run.get("simulated")) for run in runs),
        "random_weights": any(bool(run.get("random_weights")) for run in runs),
        "budget": {
            "asked_s": budget_s if math.isfinite(budget_s) else None,
            "spent_s": round(spent, 3),
            "exhausted": spent >= budget_s,
        },
    }
    return result | {"verdict": capacity_verdict.judge(result, sustained)}


def rules_of(asked: Mapping[str, Any]) -> Rules:
    """The chance of error of a decision is shared among all looks at a rate (Bonferroni)."""
    return Rules(level=(1 - asked["confidence"]) / len(Effort(**asked["effort"]).looks))


def _binding(failed: Evidence | None, rules: Rules) -> Document:
    """What broke at the lowest rate that failed."""
    judgement = failed.judged(rules) if failed is not None else None
    if failed is None or judgement is None:
        return {"objective": None, "text": "no rate failed"}
    return {"objective": judgement.binding, "text": f"{judgement.reason}, at {failed.rate:g}/s"}


def _slo(runs: Sequence[Summary]) -> list[Document]:
    if not runs:
        return []
    return [
        {
            "objective": name,
            "text": f"{name} < {limit:g} ms",
            "metric": name.split()[0],
            "quantile": name.split()[1],
            "limit_ms": limit,
            "target": target_of(name),
        }
        for name, limit in objectives(runs[0]).items()
    ]


def _probe(found: Evidence, known: Known, rules: Rules) -> Document:
    judgement, runs = found.judged(rules), found.usable
    return {
        "rate": found.rate,
        "probe": found.number,
        "runs": len(runs),
        "failed_runs": len(found.outcomes) - len(runs),
        "ended_runs": sum(outcome.summary is not None for outcome in found.outcomes),
        "held_out_runs": len(found.held_out),
        "seconds": round(found.seconds, 3),
        "cells": [outcome.cell.name for outcome in found.outcomes],
        "decision": str(known.decision),
        "binding": judgement.binding if judgement is not None else None,
        "reason": _reason(found, known, judgement),
        "attainment": {name: _share(each) for name, each in judgement.attainment.items()} if judgement else {},
        "backlog": _backlog(judgement.backlog) if judgement else None,
        "failures": _failures(judgement.failures) if judgement else None,
        "all_objectives": _average([(run.get("slo") or {}).get("attainment") for run in runs]),
        **{_key(name): _median([value_of(run, name) for run in runs]) for name in LATENCIES},
        **{name: _average([value_of(run, name) for run in runs]) for name in RATES},
        "in_flight": _average([run["concurrency"]["total"]["window_mean"] for run in runs]),
        "energy_j_per_output_token": _average([value_of(run, "j_per_output_token") for run in runs]),
    }


def _reason(found: Evidence, known: Known, judgement: Judgement | None) -> str:
    if judgement is None:
        return next((why for outcome in found.outcomes if (why := _why_unusable(outcome))), "no run ended")
    if judgement.decision is Decision.PASS and known.decision is Decision.UNDECIDED:
        return f"passed with the seeds of the search, not with others: {judgement.reason}"
    return judgement.reason


def _why_unusable(outcome: Any) -> str | None:
    return outcome.reason if outcome.summary is None else unusable(outcome.summary)


def _key(name: str) -> str:
    """``ttft.p95`` as ``ttft_p95_ms``."""
    return f"{name.replace('.', '_')}_ms"


def _share(share: Share) -> Document:
    return {
        "value": share.value,
        "low": share.low,
        "high": share.high,
        "target": share.target,
        "decision": str(share.decision),
    }


def _backlog(backlog: Backlog) -> Document:
    return {
        "growth": backlog.growth,
        "requests": backlog.piled,
        "z": backlog.z,
        "limit": backlog.limit,
        "decision": str(backlog.decision),
    }


def _failures(share: Share) -> Document:
    """As the share that failed."""
    value, low, high = (None if each is None else 1 - each for each in (share.value, share.high, share.low))
    return {"value": value, "low": low, "high": high, "limit": 1 - share.target, "decision": str(share.decision)}


def _tokens(sustained: Evidence | None) -> Document:
    """Mean lengths by the server's count, over the ok requests of the runs at the sustained rate."""
    runs = sustained.usable if sustained is not None else []
    means = {
        kind: [((run["lengths"][kind].get("real")) or {}).get("mean") for run in runs] for kind in ("input", "output")
    }
    return {
        "input_mean": _average(means["input"]),
        "output_mean": _average(means["output"]),
        "input_tokens_per_s": _mean(sustained, "input_tokens_per_s"),
        "output_tokens_per_s": _mean(sustained, "output_tokens_per_s"),
    }


def _energy(sustained: Evidence | None) -> Document:
    runs = sustained.usable if sustained is not None else []
    each = _mean(sustained, "j_per_output_token")
    reasons = [run["energy"].get("reason") for run in runs if run.get("energy")]
    reason = None if each is not None else next((text for text in reasons if text), NO_ENERGY)
    return {"energy_j_per_output_token": each, "energy_reason": reason}


def _engine(asked: Mapping[str, Any], found: Sequence[Evidence]) -> Document:
    """The server, by the first run that met it; its flags only where this tool has set them."""
    run = next((run for each in found for run in each.usable), {})
    endpoint: Mapping[str, Any] = run.get("endpoint") or {}
    engine = endpoint.get("engine") or {}
    vllm = (asked["scenario"].get("engine") or {}).get("vllm") or {}
    gpus = [gpu for gpu in (run.get("energy") or {}).get("gpus") or [] if gpu.get("used")]
    return {
        "name": engine.get("name"),
        "version": engine.get("version"),
        "model": endpoint.get("model"),
        "flags": dict(vllm.get("flags") or {}) if asked["endpoint"] == "vllm" else {},
        "gpus": len(gpus) or None,
        "gpu": gpus[0].get("name") if gpus else None,
    }


def _mean(found: Evidence | None, name: str) -> float | None:
    return _average([value_of(run, name) for run in found.usable]) if found is not None else None


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
