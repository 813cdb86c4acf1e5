"""Made-up sets of runs for tests of the gate: queues whose truth is known, as summaries and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.experiment.cell import Cell, Outcome

REQUESTS = 200
STEP_MS = 10.0
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
SCENARIO: dict[str, Any] = {
    "workload": {"input_tokens": 20},
    "load": {"poisson": 50.0, "duration": 4.0},
    "endpoint": {"api": "chat", "stream": True},
    "slo": {"ttft": ["p95 < 800 ms"], "itl": ["p99 < 60 ms"]},
}

Array = NDArray[np.float64]


def run(
    path: str,
    latencies: dict[str, Array] | None = None,
    figures: dict[str, float] | None = None,
    plan: str = "plan-1",
    **more: Any,
) -> Outcome:
    """A run with these latencies in ms, or with these figures outright (``ttft.p99``); `more` are manifest keys."""
    metrics: dict[str, Any] = {name: _statistics(values) for name, values in (latencies or {}).items()}
    for name, value in (figures or {}).items():
        metric, _, statistic = name.partition(".")
        metrics.setdefault(metric, {"n": 1000, "below_floor": []})[statistic] = value
    failed = more.pop("failed", 0)
    summary = {
        "name": "queue",
        "simulated": True,
        "verdict": {"status": more.pop("verdict", "VALID"), "codes": []},
        "metrics": metrics,
        "throughput": more.pop("throughput", {}),
        "cohort": {"planned": REQUESTS, "ok": REQUESTS - failed},
        "plan": {"hash": plan, "seeds": {"arrivals": plan}},
    }
    scenario = more.pop("scenario", SCENARIO)
    manifest = {"simulated": True, "scenario": scenario, "endpoint": {"model": more.pop("model", "m")}, "created_ns": 0}
    return Outcome(Cell("run"), "done", summary, manifest | more, None, 1.0, Path(path))


def _statistics(values: Array) -> dict[str, Any]:
    ordered = np.sort(values)
    ranks = {name: ordered[int(np.ceil(share * ordered.size)) - 1] for name, share in QUANTILES.items()}
    return {"n": ordered.size, "below_floor": [], "mean": float(values.mean())} | {
        n: float(v) for n, v in ranks.items()
    }


def queue(seed: int, slower: float, noise: np.random.Generator) -> dict[str, Array]:
    """TTFT, ITL and E2E of `REQUESTS` requests to a half busy server, all of whose work takes `slower` times as long.

    `seed` makes the plan: instants and lengths. Of its own a run has a speed (0.5 % from run to run) and a jitter of
    each step (5 %), about what repeated runs of the simulated engine showed on a busy machine of two cores.
    """
    plan = np.random.default_rng(seed)
    gaps = plan.exponential(2 * 4 * STEP_MS, REQUESTS)
    prefill = plan.lognormal(np.log(3 * STEP_MS), 0.6, REQUESTS)
    tokens = plan.integers(6, 14, REQUESTS)
    speed = slower * noise.lognormal(0, 0.005)
    work = prefill * speed * noise.lognormal(0, 0.05, REQUESTS)
    wait = np.zeros(REQUESTS)
    for i in range(1, REQUESTS):
        wait[i] = max(0.0, wait[i - 1] + work[i - 1] - gaps[i])
    steps = [STEP_MS * speed * noise.lognormal(0, 0.05, n) for n in tokens]
    ttft = wait + work
    return {"ttft": ttft, "itl": np.concatenate(steps), "e2e": ttft + np.array([each.sum() for each in steps])}


def queues(
    name: str, count: int, slower: float, noise: np.random.Generator, seeds: Sequence[int] = (1,)
) -> list[Outcome]:
    """`count` runs of the queue, their plans by the seeds in turn."""
    found = []
    for i in range(count):
        seed = seeds[i % len(seeds)]
        found.append(run(f"{name}/r{i}", queue(seed, slower, noise), plan=f"plan-{seed}"))
    return found
