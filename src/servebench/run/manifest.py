"""What run.json says: before the first request, and after the last one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from servebench import __version__
from servebench.record.ceiling import read_ceiling
from servebench.run.staff import planned_rate, workers_for

if TYPE_CHECKING:
    from servebench.dispatch.conductor import Course
    from servebench.engine.attach import EndpointFacts
    from servebench.record.rundir import RunDir
    from servebench.run.options import RunOptions
    from servebench.run.target import Target
    from servebench.scenario.schema import Scenario
    from servebench.workload.kit import PromptKit
    from servebench.workload.plan import Plan


def opening(scenario: Scenario, options: RunOptions) -> dict[str, Any]:
    """What is known before anything has happened."""
    return {
        "servebench": __version__,
        "name": scenario.name,
        "command": ["servebench", *sys.argv[1:]],
        "scenario": scenario.resolved(),
        "simulated": options.endpoint == "sim",
        "random_weights": False,
        "warnings": [],
    }


def describe(
    rundir: RunDir,
    scenario: Scenario,
    options: RunOptions,
    plan: Plan,
    target: Target,
    facts: EndpointFacts,
    kit: PromptKit,
    salt: int,
) -> None:
    """Write into the manifest what is known before the first request."""
    manifest = rundir.manifest
    manifest["simulated"] = target.simulated or facts.simulated
    manifest["random_weights"] = target.random_weights or facts.random_weights
    manifest["plan"] = {
        "hash": plan.hash,
        "rows": len(plan),
        "seeds": scenario.seeds.model_dump(),
        "salt": salt,
        "classes": list(plan.classes),
    }
    tls = {"verified": not options.insecure, "ca_file": options.ca_file is not None}
    manifest["endpoint"] = {
        "url": facts.url,
        "api": facts.api,
        "model": facts.model,
        "engine": {"name": facts.engine, "version": facts.version},
        "max_model_len": facts.max_model_len,
        "server": target.server,
        "tls": tls if facts.url.startswith("https:") else None,
        "extras": list(facts.extras),
    }
    manifest["prompts"] = kit.summary()
    manifest["cold_start"] = target.cold_start
    manifest["selftest"] = read_ceiling()
    manifest["warnings"] += [*facts.notes, *_warnings(scenario, options, plan, facts)]


def _warnings(scenario: Scenario, options: RunOptions, plan: Plan, facts: EndpointFacts) -> list[str]:
    warnings = _beyond_ceiling(scenario, options, plan)
    if options.insecure:
        warnings.append("TLS certificates were not checked (--insecure)")
    longest = int((plan.input_tokens.astype("int64") + plan.output_tokens).max())
    if facts.max_model_len is not None and longest > facts.max_model_len:
        over = int((plan.input_tokens.astype("int64") + plan.output_tokens > facts.max_model_len).sum())
        warnings.append(
            f"{over} of {len(plan)} requests are longer than the server's context of {facts.max_model_len} tokens"
        )
    return warnings


def _beyond_ceiling(scenario: Scenario, options: RunOptions, plan: Plan) -> list[str]:
    """A warning when the plan asks for more tokens a second than this machine's workers have shown."""
    shown = (read_ceiling() or {}).get("tokens_per_s_at_1ms_p99")
    if not shown or scenario.load.closed is not None:  # a closed loop asks for no rate
        return []
    workers = options.workers or workers_for(scenario, plan)
    rate = planned_rate(plan)
    if rate <= shown * workers:
        return []
    return [
        f"the plan asks for {rate:,.0f} tokens/s; {workers} workers on this machine have shown {shown * workers:,.0f} "
        "(servebench selftest): use more --workers, or a larger machine"
    ]


def closing(course: Course, workers: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known after the last request."""
    names = ("start_ns", "warmup_end_ns", "measured_end_ns", "load_end_ns", "end_ns")
    return {
        "workers": workers,
        "phases": {name: getattr(course, name) for name in names},
        "clocks": {"anchors": [asdict(anchor) for anchor in course.anchors]},
        "status": "interrupted" if course.interrupted else "complete",
    }
