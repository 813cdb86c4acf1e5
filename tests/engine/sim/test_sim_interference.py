"""Chunked prefill as a client sees it: what a long prompt does to the gaps of the streams beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.virtual import Arrival, Trace, simulate

COST = SimSettings(
    base=4e-3, per_prefill_token=60e-6, per_sequence=40e-6, per_context_token=0, enable_prefix_caching=False
)
CHATS = 4
LONG = 8000


def run(budget: int) -> tuple[list[Trace], Trace]:
    """Four chats that decode throughout, and one long prompt that comes in their midst."""
    arrivals = [Arrival(0.0, [salt] * 10, 400) for salt in range(CHATS)]
    arrivals.append(Arrival(0.5, [7] * LONG, 1))
    *chats, long = simulate(EngineCore(replace(COST, max_num_batched_tokens=budget)), arrivals)
    return chats, long


def quiet_gap() -> float:
    return COST.base + CHATS * COST.per_sequence


@pytest.mark.parametrize("budget", [256, 1024, 2048])
def test_a_long_prompt_lengthens_the_gaps_beside_it_in_proportion_to_the_budget(budget: int):
    chats, _ = run(budget)
    for chat in chats:
        assert max(chat.gaps) == pytest.approx(quiet_gap() + (budget - CHATS) * COST.per_prefill_token)
        assert min(chat.gaps) == pytest.approx(quiet_gap())


@pytest.mark.parametrize("budget", [256, 1024, 2048])
def test_as_many_gaps_are_long_as_the_prompt_has_chunks(budget: int):
    chats, _ = run(budget)
    chunks = -(-LONG // (budget - CHATS))
    for chat in chats:
        assert sum(gap > 1.01 * quiet_gap() for gap in chat.gaps) == chunks


def test_a_smaller_budget_trades_the_longest_gap_for_time_to_first_token():
    runs = {budget: run(budget) for budget in (256, 512, 1024, 2048, 4096)}
    stalls = [max(chats[0].gaps) for chats, _ in runs.values()]
    firsts = [long.ttft for _, long in runs.values()]
    assert stalls == sorted(stalls)
    assert firsts == sorted(firsts, reverse=True)
    assert stalls[-1] / stalls[0] > 5
    assert firsts[0] / firsts[-1] > 1.2


def test_context_makes_later_tokens_slower():
    cost = replace(COST, per_context_token=1e-6)
    [trace] = simulate(EngineCore(cost), [Arrival(0.0, [1] * 1000, 100)])
    growth = [b - a for a, b in zip(trace.gaps, trace.gaps[1:], strict=False)]
    assert growth == pytest.approx([1e-6] * len(growth), abs=1e-12)


def test_a_fuller_batch_makes_every_token_slower():
    alone, *_ = simulate(EngineCore(COST), [Arrival(0.0, [1], 50)])
    crowd = simulate(EngineCore(COST), [Arrival(0.0, [salt], 50) for salt in range(32)])
    assert crowd[0].gaps[-1] - alone.gaps[-1] == pytest.approx(31 * COST.per_sequence)
