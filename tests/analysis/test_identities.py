"""The identities of DESIGN §3.2 and §3.4, on runs in which anything may have happened."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servebench.analysis.facts import Facts, gather
from servebench.record.columns import Outcome
from servebench.testing.synthetic import MS, SyntheticRun, closed_run, open_run

FAILED = [o for o in Outcome if o != Outcome.OK]


@st.composite
def runs(draw: st.DrawFn) -> SyntheticRun:
    """A run of either kind in which some requests failed, some were never sent, and chunks hold several tokens."""
    count = draw(st.integers(2, 30))
    if draw(st.booleans()):
        run = open_run(
            requests=count,
            rate=draw(st.floats(0.5, 50)),
            warmup=draw(st.sampled_from([0.0, 0.1])),
            cooldown=0.0,
            tokens=draw(st.integers(1, 12)),
            tokens_per_chunk=draw(st.integers(1, 4)),
            seed=draw(st.integers(0, 99)),
        )
    else:
        run = closed_run(concurrency=draw(st.integers(1, 6)), waves=draw(st.integers(1, 4)), tokens=5)
    for record in run.records:
        if draw(st.integers(0, 4)) == 0:
            run.fail(record.index, draw(st.sampled_from(FAILED)))
    return run


@settings(max_examples=60)
@given(runs())
def test_all_identities_hold(run: SyntheticRun) -> None:
    facts = gather(run.data())
    assert [i for i in facts.identities if not i.ok] == []
    assert {i.name for i in facts.identities} == {"planned", "offered", "gaps", "tokens", "chunks", "littles_law"}


@settings(max_examples=40)
@given(runs())
def test_planned_is_the_sum_of_every_outcome(run: SyntheticRun) -> None:
    whole = gather(run.data()).whole
    assert whole.planned == sum(whole.by_outcome.values()) + whole.unrecorded == len(run.records)
    assert whole.planned == whole.ok + whole.failed + whole.dropped + whole.in_flight


@settings(max_examples=40)
@given(runs())
def test_latencies_fit_together(run: SyntheticRun) -> None:
    """e2e_service − ttft_service = Σ icl of the ok requests; Σ stall is no more."""
    facts = gather(run.data())
    n = facts.metrics["e2e_service"].n
    if not n:
        return
    decode = n * (_mean(facts, "e2e_service") - _mean(facts, "ttft_service"))
    ok = [r.index for r in run.records if r.outcome == Outcome.OK and facts.cohort[_row(run, r.index)]]
    gaps = sum(int(np.diff(run.chunks[i][0]).sum()) for i in ok)
    assert decode == pytest.approx(gaps, abs=n)


@settings(max_examples=40)
@given(runs())
def test_windowed_littles_law_within_its_error(run: SyntheticRun) -> None:
    """L·T = Σ stay of those that began in the window, but for what crosses its two edges."""
    facts = gather(run.data())
    window, requests = facts.window, facts.run.requests
    steps = facts.steps["concurrency"]
    mean = steps.mean(window.start, window.end)
    stays = [(r.end_ns or window.end) - r.sent_ns for r in run.records if r.sent_ns is not None]
    assert len(requests) == len(run.records)
    if mean is not None and stays:
        assert mean * (window.end - window.start) == pytest.approx(sum(stays), rel=1e-9, abs=1e-3 * MS)


def _mean(facts: Facts, name: str) -> float:
    mean = facts.metrics[name].mean
    assert mean is not None
    return mean


def _row(run: SyntheticRun, index: int) -> int:
    return sorted(r.index for r in run.records).index(index)


def broken(run: SyntheticRun, name: str) -> bool:
    return not {i.name: i.ok for i in gather(run.data()).identities}[name]


def test_a_last_token_beside_the_chunks_breaks_gaps() -> None:
    run = open_run(requests=20)
    run.records[10].last_token_ns += 1
    assert broken(run, "gaps")


def test_a_lost_token_breaks_tokens() -> None:
    run = open_run(requests=20)
    run.chunks[10][1][3] = 2
    assert broken(run, "tokens")


def test_a_lost_chunk_breaks_chunks() -> None:
    run = open_run(requests=20)
    run.records[10].chunks += 1
    assert broken(run, "chunks")
