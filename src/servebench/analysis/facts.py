"""What was computed of a run, once, for the verdict and the summary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.analysis import identities, intervals, outcomes, slo
from servebench.analysis.attainment import Attained, attained
from servebench.analysis.data import MISSING, Bools, Ints, RunData
from servebench.analysis.identities import Identity
from servebench.analysis.metrics import Metric, Samples, define
from servebench.analysis.outcomes import Outcomes
from servebench.analysis.quantiles import REPORTED, Quantile, nearest, nearest_weighted, rank, sample_floor
from servebench.analysis.stationarity import Drift, bin_medians, drift
from servebench.analysis.steps import StepFunction, decoding, in_flight, prefilling
from servebench.analysis.throughput import Throughput, throughput
from servebench.analysis.window import Window, find_window

DRIFT_BINS = 20
INTERVALS = tuple(q for q in REPORTED if q.name in ("p50", "p95", "p99"))


@dataclass(frozen=True, slots=True)
class Statistics:
    """A metric of a run, in ns.

    Attributes:
        metric: its definition.
        n: samples; tokens where they are weighted by tokens.
        quantiles: (value, rank) by name; empty without samples.
        intervals: within-run interval by name; None with too few samples.
    """

    metric: Metric
    n: int
    mean: float | None
    low: int | None
    high: int | None
    quantiles: dict[str, tuple[int, int]]
    intervals: dict[str, tuple[int, int]] | None

    def at(self, name: str) -> int | None:
        """The value of a quantile in ns; None without samples."""
        return self.quantiles[name][0] if name in self.quantiles else None


@dataclass(frozen=True, slots=True)
class Reached:
    """An objective and what the run reached.

    Attributes:
        objective: what was asked.
        value: the metric's quantile in ns; None without samples.
        n: samples.
        attained: what kept to the limit.
    """

    objective: slo.Objective
    value: int | None
    n: int
    attained: Attained

    @property
    def met(self) -> bool:
        """Whether the quantile is below its limit; without any sample it is not."""
        return self.value is not None and self.value < self.objective.limit_ns

    @property
    def below_floor(self) -> bool:
        """Whether the quantile rests on fewer samples than it needs."""
        return self.n < sample_floor(self.objective.quantile)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is computed once; see the modules named by the types."""

    run: RunData
    window: Window
    cohort: Bools
    whole: Outcomes
    offered: Outcomes
    metrics: dict[str, Statistics]
    throughput: Throughput
    steps: dict[str, StepFunction]
    drifts: tuple[Drift, ...]
    objectives: tuple[Reached, ...]
    good: int | None
    identities: tuple[Identity, ...]

    @property
    def attainment(self) -> float | None:
        """Share of the offered requests that met every objective; None without objectives or requests."""
        if self.good is None or not self.offered.planned:
            return None
        return self.good / self.offered.planned


def gather(run: RunData) -> Facts:
    """Compute them."""
    window = find_window(run)
    cohort = window.cohort(run)
    whole, offered = outcomes.count(run, window), outcomes.count(run, window, cohort)
    wanted = slo.objectives(run.manifest)
    steps = _steps(run, window)
    metrics, reached = _metrics(run, cohort, wanted)
    return Facts(
        run=run,
        window=window,
        cohort=cohort,
        whole=whole,
        offered=offered,
        metrics=metrics,
        throughput=throughput(run, window),
        steps=steps,
        drifts=_drifts(run, window, cohort, steps["concurrency"]),
        objectives=reached,
        good=int((slo.good_requests(run, wanted) & cohort).sum()) if wanted else None,
        identities=identities.check(run, window, whole, offered),
    )


def _steps(run: RunData, window: Window) -> dict[str, StepFunction]:
    functions = {"concurrency": in_flight, "prefill_concurrency": prefilling, "decode_concurrency": decoding}
    return {name: function(run.requests, window.end) for name, function in functions.items()}


def _metrics(
    run: RunData, cohort: Bools, wanted: tuple[slo.Objective, ...]
) -> tuple[dict[str, Statistics], tuple[Reached, ...]]:
    """Every metric in turn, its samples let go before the next is drawn; and the objectives, from the same samples."""
    metrics: dict[str, Statistics] = {}
    reached: dict[slo.Objective, Reached] = {}
    for name, metric in define(run).items():
        metrics[name], more = _metric(run, cohort, metric, tuple(o for o in wanted if o.metric == name))
        reached |= more
    return metrics, tuple(reached[o] for o in wanted)


def _metric(
    run: RunData, cohort: Bools, metric: Metric, objectives: tuple[slo.Objective, ...]
) -> tuple[Statistics, dict[slo.Objective, Reached]]:
    samples = metric.sample(run, cohort)
    found, values = describe(metric, samples, tuple(o.quantile for o in objectives))
    return found, {
        o: Reached(o, values.get(o.quantile.name), found.n, attained(run, cohort, o, samples)) for o in objectives
    }


def describe(metric: Metric, samples: Samples, more: tuple[Quantile, ...] = ()) -> tuple[Statistics, dict[str, int]]:
    """Statistics of the samples, and the quantiles in `more` by name (none without samples)."""
    if not samples.values.size:
        return Statistics(metric, 0, None, None, None, {}, None), {}
    within = intervals.within_run(samples, INTERVALS)
    total, values, weights = _total(samples), samples.values, samples.weights
    del samples  # of millions of tokens the instants need not outlive the interval
    ordered = _Ordered(values, weights)
    found = {q.name: (ordered.at(q), rank(q, ordered.n)) for q in REPORTED}
    low, high = int(ordered.values[0]), int(ordered.values[-1])
    statistics = Statistics(metric, ordered.n, total / ordered.n, low, high, found, within)
    return statistics, {q.name: ordered.at(q) for q in more}


def _total(samples: Samples) -> float:
    return float(samples.values.sum() if samples.weights is None else np.dot(samples.values, samples.weights))


class _Ordered:
    """Sorted values, and with weights their running sum; made with little more memory than it keeps.

    Attributes:
        values: int64, sorted.
        cumulative: running sum of the weights in that order; None without weights.
        n: sum of the weights.
    """

    def __init__(self, values: Ints, weights: NDArray[np.int32] | None) -> None:
        if weights is None:
            self.values, self.cumulative, self.n = np.sort(values), None, int(values.size)
            return
        order = np.argsort(values)
        weights = weights[order]
        self.values = values[order]
        del order
        self.cumulative = np.cumsum(weights, dtype=np.int64)
        self.n = int(self.cumulative[-1])

    def at(self, quantile: Quantile) -> int:
        if self.cumulative is None:
            return nearest(self.values, quantile)
        return nearest_weighted(self.values, self.cumulative, quantile)


def _drifts(run: RunData, window: Window, cohort: Bools, level: StepFunction) -> tuple[Drift, ...]:
    """The trends of the requests in flight and of the cohort's latency over the measured window."""
    edges = np.linspace(window.warmup_end, window.measured_end, DRIFT_BINS + 1)
    if window.measured_end - window.warmup_end < DRIFT_BINS:
        return ()
    requests = run.requests
    rows = cohort & requests.ok & (run.origin != MISSING) & (requests.first_token != MISSING)
    latency = bin_medians(requests.scheduled[rows], (requests.first_token - run.origin)[rows], edges)
    return drift("in flight", level.bin_means(edges)), drift("ttft", latency)
