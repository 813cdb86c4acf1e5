"""A single-server queue (M/G/1) for many runs at once: the truth against which statistics of runs are tested.

Requests come at random (exponential gaps), wait their turn and are served one after the other. Latencies of one run are
strongly correlated, as a real server's are, which is what makes statistics of requests fail and statistics of runs
necessary. One request after another is no loop here: Lindley's recursion W' = max(0, W + S − A) is a random walk less
its running minimum, so that thousands of runs are a cumulative sum and a cumulative minimum.

Gaps and service times are drawn apart and given apart, so that two arms can share either::

    base, cand = two_arms(count=1_000, runs=6, rho=0.5, seed=1, change=0.95, share=("arrivals", "service"), noise=0.01)
    differences = np.log(cand["p99"] / base["p99"])          # (1000, 6)

Times are in units of the mean service time of the base arm. Every run starts with an idle server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Floats = NDArray[np.float64]
Law = Callable[[np.random.Generator, tuple[int, ...]], Floats]

QUANTILES = {"p50": (1, 2), "p95": (19, 20), "p99": (99, 100)}  # exact shares: ranks are integer arithmetic
FIGURES = (*QUANTILES, "mean")
REQUESTS_AT_ONCE = 2_000_000


def lognormal(cv: float = 1.0) -> Law:
    """Service times of mean 1 with this coefficient of variation."""
    sigma = np.sqrt(np.log1p(cv**2))
    return lambda generator, shape: generator.lognormal(-(sigma**2) / 2, sigma, shape)


LOGNORMAL = lognormal()


def exponential() -> Law:
    """Service times of mean 1 without memory: M/M/1, whose sojourn times are exponential with the mean 1/(1 − ρ)."""
    return lambda generator, shape: generator.exponential(1.0, shape)


def autoregressive(phi: float, n: int, seed: int) -> Floats:
    """x' = φ·x + noise: the plainest correlated series, worth n·(1 − φ)/(1 + φ) independent values."""
    settling = 1_000
    noise = np.random.default_rng(seed).standard_normal(n + settling)
    series: Floats = lfilter([1.0], [1.0, -phi], noise)[settling:]
    return series


def sojourn(gaps: Floats, service: Floats) -> Floats:
    """Waiting and service time of each request, (..., requests), from the gap before it and its service time."""
    steps = np.empty(np.broadcast_shapes(gaps.shape, service.shape))
    steps[..., 0] = 0.0
    np.subtract(service[..., :-1], gaps[..., 1:], out=steps[..., 1:])
    walk = np.cumsum(steps, axis=-1, out=steps)
    walk -= np.minimum.accumulate(walk, axis=-1)
    return np.add(walk, service, out=walk)


def figures(times: Floats) -> dict[str, Floats]:
    """p50, p95, p99 (nearest rank) and mean over the last axis, one value a run."""
    n = times.shape[-1]
    ranks = [-(-n * over // under) - 1 for over, under in QUANTILES.values()]
    ordered = np.partition(times, ranks, axis=-1)
    found = {name: ordered[..., rank] for name, rank in zip(QUANTILES, ranks, strict=True)}
    return {**found, "mean": times.mean(axis=-1)}


@dataclass(frozen=True, slots=True)
class Arms:
    """How two arms are simulated.

    Attributes:
        rho: utilisation of the base arm, below 1 to be stable.
        requests: in each run.
        law: of service times.
        change: factor on the second arm's service times; 0.95 is 5 % faster, 1 is an A/A experiment.
        share: what both arms of a pair have in common: "arrivals", "service", both or nothing.
        noise: standard deviation of a log-normal factor on all service times of a run, drawn for each run of each arm:
            what a real server varies from start to start.
    """

    rho: float
    requests: int = 1_000
    law: Law = LOGNORMAL
    change: float = 1.0
    share: Collection[str] = ()
    noise: float = 0.0


def two_arms(count: int, runs: int, arms: Arms, seed: int) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Figures of both arms of many experiments: a (count, runs) array for each of `FIGURES`, base arm first.

    Run i of either arm is a pair: it shares what `arms.share` says. The same seed gives the same experiments.
    """
    generator = np.random.default_rng(seed)
    step = max(1, REQUESTS_AT_ONCE // (runs * arms.requests))
    parts = [_two_arms((min(step, count - at), runs), arms, generator) for at in range(0, count, step)]
    base, cand = zip(*parts, strict=True)
    return _joined(base), _joined(cand)


def _two_arms(shape: tuple[int, int], arms: Arms, generator: np.random.Generator) -> tuple[dict[str, Floats], ...]:
    gaps = _drawn(lambda g, s: g.exponential(1 / arms.rho, s), shape, arms, "arrivals", generator)
    service = _drawn(arms.law, shape, arms, "service", generator)
    factors = (1.0, arms.change)
    noise = [np.exp(arms.noise * generator.standard_normal(shape))[..., None] for _ in factors]
    return tuple(figures(sojourn(g, s * f * n)) for g, s, f, n in zip(gaps, service, factors, noise, strict=True))


def _drawn(
    law: Law, shape: tuple[int, int], arms: Arms, what: str, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    first = law(generator, (*shape, arms.requests))
    return first, first if what in arms.share else law(generator, first.shape)


def _joined(parts: Collection[dict[str, Floats]]) -> dict[str, Floats]:
    return {name: np.concatenate([part[name] for part in parts]) for name in FIGURES}
