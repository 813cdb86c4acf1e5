"""Each metric against a run that is small enough to be computed by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servebench.analysis import metrics
from servebench.analysis.data import MISSING, RunData
from servebench.analysis.facts import describe
from servebench.record.columns import Outcome
from servebench.testing.synthetic import MS, SyntheticRun, closed_run, open_run


def three_chunks(tokens: list[int], gaps_ms: list[int]) -> SyntheticRun:
    """One open-loop request whose chunks are given."""
    run = open_run(requests=1, warmup=0, cooldown=0)
    record = run.records[0]
    arrival = record.first_token_ns + np.cumsum([0, *gaps_ms]) * MS
    run.chunks[0] = (arrival.astype(np.int64), np.array(tokens, np.int32))
    record.chunks, record.first_chunk_tokens, record.output_tokens = len(tokens), tokens[0], sum(tokens)
    record.last_token_ns = int(arrival[-1])
    return run


def sample(run: SyntheticRun | RunData, name: str) -> metrics.Samples:
    data = run.data() if isinstance(run, SyntheticRun) else run
    metric = metrics.define(data)[name]
    return metric.sample(data, np.ones(len(data.requests), np.bool_))


def test_itl_is_weighted_by_the_tokens_of_the_later_chunk() -> None:
    run = three_chunks([2, 4, 1], [40, 30])
    found = sample(run, "itl")
    assert found.values.tolist() == [10 * MS, 30 * MS]
    assert found.weights is not None
    assert found.weights.tolist() == [4, 1]
    statistics, _ = describe(metrics.define(run.data())["itl"], found)
    assert statistics.n == 5
    assert statistics.mean == pytest.approx(14 * MS)  # (4·10 + 30)/5, which is Σ gaps / Σ tokens
    assert statistics.quantiles["p50"] == (10 * MS, 3)
    assert statistics.quantiles["p90"] == (30 * MS, 5)


def test_icl_and_stall_are_gaps_of_chunks_whatever_their_tokens() -> None:
    run = three_chunks([2, 4, 1], [40, 30])
    assert sample(run, "icl").values.tolist() == [40 * MS, 30 * MS]
    assert sample(run, "stall").values.tolist() == [40 * MS]


def test_tpot_leaves_the_first_chunks_tokens_out() -> None:
    assert sample(three_chunks([2, 4, 1], [40, 30]), "tpot").values.tolist() == [14 * MS]


def test_a_request_with_all_tokens_in_its_first_chunk_has_no_tpot_and_no_stall() -> None:
    run = three_chunks([5], [])
    assert sample(run, "tpot").values.size == 0
    assert sample(run, "stall").values.size == 0
    assert sample(run, "ttft").values.size == 1


def test_tokens_of_a_chunk_without_any_join_the_next() -> None:
    assert sample(three_chunks([1, 0, 2], [10, 20]), "itl").values.tolist() == [15 * MS]


def test_origin_is_scheduled_in_an_open_loop() -> None:
    run = open_run(requests=1, warmup=0, cooldown=0)
    record = run.records[0]
    assert sample(run, "ttft").values.tolist() == [record.first_token_ns - record.scheduled_ns]
    assert sample(run, "ttft_service").values.tolist() == [record.first_token_ns - record.sent_ns]
    assert "scheduled" in metrics.define(run.data())["ttft"].definition


def test_origin_is_sent_in_a_closed_loop() -> None:
    run = closed_run(concurrency=1, waves=1)
    record = run.records[0]
    assert sample(run, "ttft").values.tolist() == [record.first_token_ns - record.sent_ns]
    assert sample(run, "e2e").values.tolist() == [record.last_token_ns - record.sent_ns]
    assert "sent" in metrics.define(run.data())["ttft"].definition


def test_what_did_not_happen_is_left_out_and_never_zero() -> None:
    run = open_run(requests=20, warmup=0, cooldown=0)
    run.fail(3, Outcome.TIMEOUT)
    run.records[5].first_visible_ns = None
    assert sample(run, "ttft").values.size == 19
    assert sample(run, "ttfv").values.size == 18
    assert sample(run, "schedule_lag").values.size == 20
    assert min(sample(run, "ttft").values) > 0


def test_gaps_of_a_failed_request_count_but_its_ttft_does_not() -> None:
    run = three_chunks([1, 1, 1], [40, 30])
    run.records[0].outcome = Outcome.RESET
    assert sample(run, "icl").values.size == 2
    assert sample(run, "ttft").values.size == 0


def test_dispatch_lateness_leaves_the_wait_for_a_slot_out() -> None:
    run = open_run(requests=2, warmup=0, cooldown=0)
    first, second = run.records
    first.dispatched_ns += 50 * MS
    first.sent_ns += 50 * MS
    first.slot_ns = first.dispatched_ns - 3 * MS
    late = metrics.dispatch_late(run.data(), np.ones(2, np.bool_)).values
    assert late.tolist() == [3 * MS, second.dispatched_ns - second.scheduled_ns]


def test_values_by_request_are_aligned_with_the_requests() -> None:
    run = open_run(requests=6, warmup=0, cooldown=0)
    run.fail(2, Outcome.EMPTY)
    data = run.data()
    for values in (metrics.stall_values(data), metrics.tpot_values(data)):
        assert (values == MISSING).tolist() == [False, False, True, False, False, False]


chunk = st.tuples(st.integers(0, 50 * MS), st.integers(1, 6))


@settings(max_examples=60)
@given(st.lists(st.lists(chunk, min_size=1, max_size=8), min_size=1, max_size=6))
def test_pooled_samples_equal_a_plain_loop(requests: list[list[tuple[int, int]]]) -> None:
    run = open_run(requests=len(requests), warmup=0, cooldown=0)
    gaps, per_token = [], []
    for record, chunks in zip(run.records, requests, strict=True):
        arrival = record.first_token_ns + np.cumsum([gap for gap, _ in chunks])
        tokens = np.array([n for _, n in chunks], np.int32)
        run.chunks[record.index] = (arrival.astype(np.int64), tokens)
        gaps += [gap for gap, _ in chunks[1:]]
        per_token += [round(gap / n) for gap, n in chunks[1:] for _ in range(n)]
    assert sorted(sample(run, "icl").values.tolist()) == sorted(gaps)
    itl = sample(run, "itl")
    weights = itl.weights if itl.weights is not None else np.ones(itl.values.size, np.int64)
    found = np.sort(np.repeat(itl.values, weights))
    assert np.abs(found - np.sort(np.array(per_token, np.int64))).max(initial=0) <= 1  # halves round differently
