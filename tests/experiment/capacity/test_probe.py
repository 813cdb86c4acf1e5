"""The judge of a probe: by hand, and how often it errs on runs whose requests are correlated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from servebench.analysis.attainment import kept
from servebench.analysis.quantiles import Quantile
from servebench.analysis.stationarity import drift
from servebench.experiment.capacity.probe import (
    Decision,
    Part,
    Rules,
    judge,
    judge_share,
    objectives,
    overloaded,
    target_of,
    unusable,
)

PASS, FAIL, UNDECIDED = Decision.PASS, Decision.FAIL, Decision.UNDECIDED
RULES = Rules(level=0.025)


def objective(within: int, of: int, **more: Any) -> dict[str, Any]:
    share = {"value": within / of if of else None, "within": within, "of": of}
    error = math.sqrt(within * (of - within) / of**3) if of else None
    given = {"metric": "ttft", "quantile": "p95", "limit": 800.0, "error": error, "effective": float(of)} | more
    attainment = share | {"error": given.pop("error"), "effective": given.pop("effective")}
    return {**given, "attainment": attainment}


def summary(*slo: dict[str, Any], ok: int = 1000, planned: int = 1000, largest: float = 900.0, **more: Any) -> Any:
    """A run with these objectives; by default nothing failed and nothing grew."""
    return {
        "slo": {"objectives": list(slo)},
        "cohort": {"planned": planned, "ok": ok},
        "metrics": {metric: {"max": largest} for metric in ("ttft", "itl", "e2e")},
        "stationarity": [{"name": "in flight", "change": 0.0, "z": 0.0}],
        "concurrency": {"total": {"window_mean": 10.0}},
        "verdict": {"codes": []},
        **more,
    }


@pytest.mark.parametrize(
    ("within", "decision", "leans"),
    [(1000, PASS, True), (980, PASS, True), (955, UNDECIDED, True), (945, UNDECIDED, False), (900, FAIL, False)],
)
def test_many_independent_requests(within: int, decision: Decision, leans: bool) -> None:
    found = judge([summary(objective(within, 1000))] * 2, RULES)
    assert (found.decision, found.leans_pass) == (decision, leans)
    share = found.attainment["ttft p95"]
    assert share.value == within / 1000
    assert share.low is not None and share.high is not None
    assert share.low <= within / 1000 <= share.high or within == 1000


def test_the_same_share_of_correlated_requests_says_less() -> None:
    assert judge([summary(objective(980, 1000, error=0.02))] * 2, RULES).decision is UNDECIDED
    assert judge([summary(objective(980, 1000, effective=60.0))] * 2, RULES).decision is UNDECIDED


def test_runs_that_differ_say_less_than_their_blocks_promise() -> None:
    alike, apart = ([summary(objective(n, 1000)) for n in pair] for pair in ((978, 982), (999, 961)))
    assert judge(alike, RULES).decision is PASS
    assert judge(apart, RULES).decision is UNDECIDED


def test_few_requests_without_a_miss_pass_only_far_inside_the_limit() -> None:
    few = objective(30, 30, error=0.0)
    assert judge([summary(few, largest=700)] * 2, RULES).decision is UNDECIDED
    assert judge([summary(few, largest=399)] * 2, RULES).decision is PASS
    assert judge([summary(few, largest=399)], RULES).decision is UNDECIDED  # one run is no replication


def test_every_objective_must_pass_and_the_worst_is_named() -> None:
    first, second = objective(990, 1000), objective(985, 1000, metric="e2e", limit=5000.0)
    assert judge([summary(first, second)] * 2, RULES).binding == "e2e p95"
    worse = objective(700, 1000, metric="e2e", limit=5000.0)
    found = judge([summary(first, worse)] * 2, RULES)
    assert (found.decision, found.binding) == (FAIL, "e2e p95")
    assert found.reason == "70 % kept to e2e p95, target 95 %"


def test_requests_that_fail_fail_the_probe_even_where_the_objective_does_not_see_them() -> None:
    tokens = objective(10_000, 10_000, metric="itl", quantile="p99", limit=60.0)
    good = judge([summary(tokens, largest=20)] * 2, RULES)
    assert good.decision is PASS
    found = judge([summary(tokens, largest=20, ok=950)] * 2, RULES)
    assert (found.decision, found.binding) == (FAIL, "failures")
    assert judge([summary(tokens, largest=20, ok=999)] * 2, RULES).decision is PASS


def growing(change: float, z: float, level: float, planned: int = 1000) -> Any:
    within = objective(planned, planned)
    trend = [{"name": "in flight", "change": change, "z": z}]
    concurrency = {"total": {"window_mean": level}}
    return summary(within, planned=planned, ok=planned, largest=300, stationarity=trend, concurrency=concurrency)


@pytest.mark.parametrize(
    ("runs", "decision"),
    [
        ([growing(1.5, 4.0, 60.0)] * 2, FAIL),  # 90 of 1,000 pile up
        ([growing(0.0, 0.1, 60.0)] * 4, PASS),
        ([growing(0.2, 0.9, 10.0)] * 2, PASS),  # two requests are no backlog
        ([growing(0.5, 2.5, 30.0)] * 2, UNDECIDED),  # 15 of 1,000: more than chance, less than the limit
        ([growing(0.8, 4.0, 30.0), growing(-0.8, -4.0, 30.0)], UNDECIDED),  # runs that contradict
        ([growing(0.1, 0.5, 2.0, 40)] * 2, PASS),
        ([growing(2.0, 2.0, 4.0, 40)] * 2, UNDECIDED),  # 8 of 40, and still it may be chance
        ([growing(1.5, 4.0, 20.0, 100)], FAIL),
    ],
)
def test_a_backlog_that_grows_fails_though_every_latency_is_good(runs: list[Any], decision: Decision) -> None:
    found = judge(runs, RULES)
    assert found.decision is decision
    assert found.attainment["ttft p95"].value == 1
    if decision is FAIL:
        assert found.binding == "backlog"
        assert "piled up" in found.reason


def test_a_run_too_short_for_a_trend_has_none() -> None:
    assert judge([growing(0.0, 0.0, 1.0)] * 2, RULES).backlog.growth == 0
    unknown = summary(objective(1000, 1000), stationarity=[{"name": "in flight", "change": None, "z": None}])
    assert judge([unknown] * 2, RULES).backlog.decision is PASS


def test_a_clear_overload_needs_one_run_and_a_close_failure_more() -> None:
    assert overloaded(summary(objective(300, 1000)), RULES)
    assert not overloaded(summary(objective(930, 1000)), RULES)
    assert overloaded(growing(1.5, 4.0, 60.0), RULES)
    assert not overloaded(growing(1.0, 4.0, 40.0), RULES)  # 4 % pile up: a second run is worth it


def test_nothing_to_measure_is_not_a_pass() -> None:
    nothing = objective(0, 0, metric="itl", effective=None)
    found = judge([summary(nothing)] * 2, RULES)
    assert (found.decision, found.leans_pass, found.binding) == (UNDECIDED, False, "itl p95")
    assert found.reason == "itl p95: nothing was measured"


def test_names_and_targets_of_objectives() -> None:
    run = summary(objective(1, 1), objective(1, 1, limit=500.0), objective(1, 1, quantile="p99_9"))
    assert objectives(run) == {"ttft p95": 500.0, "ttft p99.9": 800.0}
    assert target_of("ttft p99.9") == 0.999
    strict = [objective(1000, 1000), objective(500, 1000, limit=500.0)]
    assert judge([summary(*strict)] * 2, RULES).decision is FAIL


def test_only_the_servers_own_failures_let_an_invalid_run_count() -> None:
    def invalid(code: str) -> Any:
        return summary(verdict={"codes": [{"code": code, "level": "fail", "text": "why"}]})

    assert unusable(summary()) is None
    assert unusable(invalid("server.failures")) is None
    assert unusable(invalid("client.cpu")) == "client.cpu: why"


def test_what_a_cap_drops_is_a_miss_and_no_fault_of_the_tool() -> None:
    late = {"code": "load.rate", "level": "fail", "text": "achieved 80 of 100"}
    cap = {"code": "load.max_in_flight", "level": "ok", "text": "no request waited"}
    assert unusable(summary(verdict={"codes": [late]})) == "load.rate: achieved 80 of 100"
    dropping = summary(objective(800, 1000), ok=800, verdict={"codes": [late, cap]})
    assert unusable(dropping) is None
    assert judge([dropping] * 2, RULES).decision is FAIL


def test_an_undecided_rate_is_explained_by_what_could_not_be_decided() -> None:
    nearer = [{"name": "in flight", "change": 0.19, "z": 0.1}]  # 1.9 % of the offered, and steady all the same
    level = {"total": {"window_mean": 10.0}}
    found = judge([summary(objective(96, 100), planned=100, ok=100, stationarity=nearer, concurrency=level)] * 2, RULES)
    assert found.backlog.decision is PASS
    assert found.backlog.lack > found.attainment["ttft p95"].lack
    assert (found.decision, found.binding) == (UNDECIDED, "ttft p95")
    steady = judge([growing(0.6, 1.0, 30.0)] * 2, RULES)
    assert (steady.decision, steady.binding) == (UNDECIDED, "backlog")
    assert steady.reason.endswith("piled up: too little is known to rule out a backlog")


def mg1_waits(rho: float, requests: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals and waits of an M/G/1 queue with lognormal service of mean 1 and CV 1 (Lindley's recursion)."""
    service = rng.lognormal(-math.log(2) / 2, math.sqrt(math.log(2)), requests)
    gaps = rng.exponential(1 / rho, requests)
    steps = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps[1:])])
    return np.cumsum(gaps), steps - np.minimum.accumulate(steps)


def run_of(rho: float, requests: int, limit: float, quantile: Quantile, rng: np.random.Generator) -> Part:
    """Of a window after a fifth of warm-up, as short as tests of a server are."""
    at, waits = mg1_waits(rho, round(requests * 1.4) + 100, rng)
    start, end = 0.2 * requests / rho, 1.2 * requests / rho
    inside = (at >= start) & (at < end)
    found = kept(waits[inside] < limit, (waits[inside] * 1e9).astype(np.int64), quantile)
    return Part(found.within, found.of, found.error, found.effective)


def true_quantile(rho: float, share: float) -> float:
    rng = np.random.default_rng(77)
    return float(np.mean([np.quantile(mg1_waits(rho, 200_000, rng)[1][20_000:], share) for _ in range(12)]))


@pytest.mark.parametrize(
    ("rho", "quantile", "requests", "runs", "most"),
    [
        (0.5, "p95", 300, 2, 0.05),
        (0.5, "p99", 1000, 4, 0.06),
        (0.8, "p95", 300, 2, 0.05),
        (0.8, "p95", 1500, 6, 0.08),
        (0.9, "p95", 1000, 2, 0.05),
        (0.9, "p95", 3000, 4, 0.10),
    ],
)
def test_at_the_very_rate_at_which_the_target_is_reached_few_decisions_are_made(
    rho: float, quantile: str, requests: int, runs: int, most: float
) -> None:
    """Both would be wrong; each is allowed 2.5 %, which strong correlation and few runs stretch."""
    wanted = Quantile.parse(quantile)
    target = float(wanted.share)
    limit, rng = true_quantile(rho, target), np.random.default_rng(20261130)
    decisions = [
        judge_share([run_of(rho, requests, limit, wanted, rng) for _ in range(runs)], target, 0.025, 0.025).decision
        for _ in range(200)
    ]
    assert decisions.count(PASS) <= most * 200
    assert decisions.count(FAIL) <= most * 200


def test_away_from_that_rate_decisions_are_made_and_right() -> None:
    limit, rng, wanted = true_quantile(0.6, 0.95), np.random.default_rng(5), Quantile.parse("p95")

    def decided(rho: float) -> list[Decision]:
        return [
            judge_share([run_of(rho, 1000, limit, wanted, rng) for _ in range(4)], 0.95, 0.025, 0.025).decision
            for _ in range(60)
        ]

    below, above = decided(0.4), decided(0.75)
    assert below.count(PASS) >= 54
    assert below.count(FAIL) == 0
    assert above.count(FAIL) >= 54
    assert above.count(PASS) == 0


def walk(load: float, rng: np.random.Generator, offered: int = 1000) -> Any:
    """A single server at `load` times what it carries, as the trend of its queue sees it."""
    at, waits = mg1_waits(load, offered * 2, rng)
    start, end = offered * 0.5 / load, offered * 1.5 / load
    edges = np.linspace(start, end, 21)
    leaves = np.sort(at + waits)
    mids = (edges[:-1, None] + np.diff(edges)[:, None] * np.linspace(0.05, 0.95, 10)).ravel()
    level = (np.searchsorted(at, mids) - np.searchsorted(leaves, mids)).reshape(20, 10).mean(axis=1)
    trend = drift("in flight", level)
    return growing(trend.change or 0.0, trend.z or 0.0, float(level.mean()), offered)


@pytest.mark.parametrize(("load", "runs"), [(0.5, 2), (0.7, 2), (0.85, 4)])
def test_a_queue_that_is_stable_is_seldom_said_to_grow(load: float, runs: int) -> None:
    rng = np.random.default_rng(3)
    found = [judge([walk(load, rng) for _ in range(runs)], RULES).backlog.decision for _ in range(100)]
    assert found.count(FAIL) <= 3


@pytest.mark.parametrize(("load", "runs"), [(1.1, 4), (1.2, 2), (1.5, 1)])
def test_a_queue_that_is_overloaded_is_seen_to_grow(load: float, runs: int) -> None:
    rng = np.random.default_rng(4)
    found = [judge([walk(load, rng) for _ in range(runs)], RULES).backlog.decision for _ in range(100)]
    assert found.count(FAIL) >= 90
    assert found.count(PASS) <= 1


def test_what_a_server_just_carries_is_seldom_said_to_be_steady() -> None:
    rng = np.random.default_rng(6)
    found = [judge([walk(1.0, rng) for _ in range(4)], RULES).backlog.decision for _ in range(100)]
    assert found.count(PASS) <= 15
