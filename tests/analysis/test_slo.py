import numpy as np
import pytest

from servebench.analysis import slo
from servebench.analysis.data import MISSING
from servebench.analysis.facts import gather
from servebench.analysis.quantiles import Quantile
from servebench.record.columns import Outcome
from servebench.testing.synthetic import MS, SyntheticRun, open_run

METRICS = ("ttft", "ttfv", "e2e", "tpot", "stall", "itl", "icl")


def objective(text: str) -> slo.Objective:
    metric, rest = text.split(" ", 1)
    (found,) = slo.objectives({"scenario": {"slo": {metric: [rest]}}})
    return found


def test_objectives_are_read_in_their_order() -> None:
    written = {"ttft": ["p95 < 800ms", "p99 < 2s"], "itl": "p99.9 <= 60 ms"}
    found = slo.objectives({"scenario": {"slo": written}})
    assert [o.text for o in found] == ["ttft p95 < 800 ms", "ttft p99 < 2000 ms", "itl p99.9 < 60 ms"]


def test_a_resolved_scenario_is_read() -> None:
    from servebench.scenario.schema import Slo

    written = Slo.model_validate({"ttft": "p95 < 800ms", "itl": ["p99 < 60ms"]}).model_dump(mode="json")
    assert [o.text for o in slo.objectives({"scenario": {"slo": written}})] == ["ttft p95 < 800 ms", "itl p99 < 60 ms"]


@pytest.mark.parametrize("manifest", [{}, {"scenario": None}, {"scenario": {"slo": None}}, {"scenario": {"slo": {}}}])
def test_no_objectives(manifest: dict[str, object]) -> None:
    assert slo.objectives(manifest) == ()


def test_a_strange_objective_is_refused() -> None:
    with pytest.raises(ValueError, match=r'slo.ttft: "fast" is not'):
        slo.objectives({"scenario": {"slo": {"ttft": "fast"}}})


def one(tokens: list[int], gaps_ms: list[int]) -> SyntheticRun:
    run = open_run(requests=1, warmup=0, cooldown=0)
    record = run.records[0]
    arrival = record.first_token_ns + np.cumsum([0, *gaps_ms]) * MS
    run.chunks[0] = (arrival.astype(np.int64), np.array(tokens, np.int32))
    record.chunks, record.first_chunk_tokens, record.output_tokens = len(tokens), tokens[0], sum(tokens)
    record.last_token_ns = int(arrival[-1])
    return run


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [
        ("icl p50 < 1s", 20),
        ("icl p99 < 1s", 90),
        ("itl p50 < 1s", 5),  # 4 tokens at 5, one at 10, one at 90
        ("itl p80 < 1s", 10),
        ("itl p99 < 1s", 90),
        ("stall p50 < 1s", 90),
        ("tpot p50 < 1s", 20),
    ],
)
def test_value_of_a_request(text: str, value_ms: int) -> None:
    run = one([1, 4, 1, 1], [20, 10, 90])
    assert slo.request_values(run.data(), objective(text)).tolist() == [value_ms * MS]


@pytest.mark.parametrize("metric", METRICS)
def test_a_request_without_tokens_has_no_value(metric: str) -> None:
    run = open_run(requests=3, warmup=0, cooldown=0)
    run.fail(1, Outcome.TIMEOUT)
    values = slo.request_values(run.data(), slo.Objective(metric, Quantile.parse("p99"), MS))
    assert (values == MISSING).tolist() == [False, True, False]


def test_own_quantiles_equal_a_loop() -> None:
    rng = np.random.default_rng(5)
    run = open_run(requests=30, warmup=0, cooldown=0, tokens_per_chunk=1)
    for record in run.records:
        run.chunks[record.index] = (
            record.first_token_ns + np.cumsum(rng.integers(0, 50 * MS, 40)).astype(np.int64),
            rng.integers(1, 5, 40).astype(np.int32),
        )
    for text in ("icl p95 < 1s", "itl p95 < 1s"):
        found = slo.request_values(run.data(), objective(text)).tolist()
        for record, value in zip(run.records, found, strict=True):
            arrival, tokens = run.chunks[record.index]
            gaps, weights = np.diff(arrival), tokens[1:].astype(np.int64)
            if text.startswith("itl"):
                gaps = np.repeat((2 * gaps + weights) // (2 * weights), weights)
            assert value == np.sort(gaps)[-(-gaps.size * 95 // 100) - 1]


def test_attainment_counts_every_offered_request() -> None:
    run = open_run(requests=100, warmup=0, cooldown=0, slo={"ttft": ["p95 < 1s"]})
    offered = gather(run.data()).offered.planned
    for index, outcome in enumerate((Outcome.TIMEOUT, Outcome.DROPPED, Outcome.IN_FLIGHT, Outcome.EMPTY)):
        run.fail(index, outcome)
    facts = gather(run.data())
    assert (facts.good, facts.offered.planned) == (offered - 4, offered)
    assert facts.attainment == (offered - 4) / offered


def test_a_request_must_meet_every_objective() -> None:
    run = open_run(requests=100, warmup=0, cooldown=0, slo={"ttft": ["p50 < 1s"], "itl": ["p50 < 1ms"]})
    assert gather(run.data()).good == 0


def test_a_request_cannot_miss_what_does_not_occur_in_it() -> None:
    run = open_run(requests=100, warmup=0, cooldown=0, tokens=1, slo={"itl": ["p99 < 1ms"], "stall": ["p99 < 1ms"]})
    facts = gather(run.data())
    assert facts.good == facts.offered.planned
    assert not any(r.met for r in facts.objectives)  # but a quantile of nothing is not met


def test_the_limit_itself_is_a_miss() -> None:
    run = open_run(requests=1, warmup=0, cooldown=0)
    record = run.records[0]
    exact = record.first_token_ns - record.scheduled_ns
    wanted = (slo.Objective("ttft", Quantile.parse("p50"), exact),)
    assert slo.good_requests(run.data(), wanted).tolist() == [False]
    wanted = (slo.Objective("ttft", Quantile.parse("p50"), exact + 1),)
    assert slo.good_requests(run.data(), wanted).tolist() == [True]


def test_an_objective_at_a_quantile_of_its_own() -> None:
    facts = gather(open_run(slo={"ttft": ["p97.5 < 1s"]}).data())
    (reached,) = facts.objectives
    assert reached.value is not None
    assert facts.metrics["ttft"].at("p95") <= reached.value <= facts.metrics["ttft"].at("p99")
