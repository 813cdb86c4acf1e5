"""How many workers a run takes, and what each of them is told."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from servebench.dispatch.job import Job, share
from servebench.errors import UsageError

if TYPE_CHECKING:
    from servebench.engine.attach import EndpointFacts
    from servebench.record.counters import LiveCounters
    from servebench.record.rundir import RunDir
    from servebench.run.options import RunOptions
    from servebench.scenario.schema import Scenario
    from servebench.workload.kit import PromptKit
    from servebench.workload.plan import Plan

TOKENS_PER_WORKER = 25_000  # a second; what one worker is trusted with on `--workers auto`
TOKENS_PER_STREAM = 60  # a second; a guess at what a closed loop's slot will receive


def planned_rate(plan: Plan) -> float:
    """Output tokens a second that an open loop asks for, on average."""
    seconds = max(1.0, float(plan.scheduled_ns[-1]) / 1e9)
    return float(plan.output_tokens.sum(dtype="int64")) / seconds


def workers_for(scenario: Scenario, plan: Plan) -> int:
    """As many workers as the expected token rate needs, but one processor stays free where there are several."""
    if scenario.load.closed is not None:
        rate = float(scenario.load.closed.concurrency * TOKENS_PER_STREAM)
    else:
        rate = planned_rate(plan)
    needed = -(-int(rate) // TOKENS_PER_WORKER)
    return max(1, min(needed, _processors() - 1, *_shared_out(scenario).values()))


def _shared_out(scenario: Scenario) -> dict[str, int]:
    """What the workers share among them, of which each needs one at least."""
    load = scenario.load
    limits = {}
    if load.closed:
        limits["load.closed.concurrency"] = load.closed.concurrency
    if load.max_in_flight:
        limits["load.max_in_flight"] = load.max_in_flight.limit
    if load.throttle:
        limits["load.throttle"] = load.throttle.limit
    return limits


def check_workers(scenario: Scenario, workers: int) -> None:
    """Raise UsageError when there are more workers than there is something to share among them."""
    for key, limit in _shared_out(scenario).items():
        if workers > limit:
            raise UsageError(f"{workers} workers cannot share the {limit} of {key}: give --workers {limit} or fewer")


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def window_of(scenario: Scenario) -> tuple[int, int | None]:
    """The measured window, ns after the start; without an end where a request count bounds the run."""
    from servebench.workload.planning import cohort_bounds_ns

    start, end = cohort_bounds_ns(scenario.load)
    return start, None if scenario.load.duration is None else end


def job_of(
    scenario: Scenario,
    options: RunOptions,
    rundir: RunDir,
    counters: LiveCounters,
    facts: EndpointFacts,
    kit: PromptKit,
    salt: int,
    number: int,
    workers: int,
) -> Job:
    """The job of worker `number` of `workers`."""
    from servebench.engine.attach import extras_for, min_tokens_for

    load, endpoint = scenario.load, scenario.endpoint
    cap, throttle = load.max_in_flight, load.throttle
    return Job(
        rundir=str(rundir.path),
        counters=str(counters.path),
        worker=number,
        workers=workers,
        url=facts.url,
        api=endpoint.api,
        model=facts.model,
        stream=endpoint.stream,
        headers=dict(endpoint.headers),
        extras=extras_for(facts, scenario),
        min_tokens=min_tokens_for(facts, scenario),
        kit=kit.to_dict(),
        salt=salt,
        api_key_env=options.api_key_env,
        verify=not options.insecure,
        ca_file=str(options.ca_file) if options.ca_file else None,
        connect_timeout=endpoint.connect_timeout,
        idle_timeout=endpoint.idle_timeout,
        timeout=endpoint.timeout,
        concurrency=share(load.closed.concurrency, number, workers) if load.closed else None,
        think=load.closed.think if load.closed else 0.0,
        max_in_flight=share(cap.limit, number, workers) if cap else None,
        drop_when_full=cap is not None and cap.policy == "drop",
        throttle=(share(throttle.limit, number, workers), throttle.period) if throttle else None,
        cohort=window_of(scenario),
        keep_raw=options.keep_raw,
        tokenizer=options.tokenizer,
    )
