"""The prefix cache: what is found again, to the block, and what is evicted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.engine.sim.blocks import BlockPool
from servebench.engine.sim.request import Request
from servebench.engine.sim.scheduler import Scheduler
from servebench.engine.sim.settings import SimSettings


def make(**limits: int | bool) -> Scheduler:
    return Scheduler(SimSettings.of({"kv_tokens": 16_000, **limits}))


def finish(scheduler: Scheduler, prompt: list[int], max_tokens: int = 1) -> Request:
    request = Request(prompt, max_tokens)
    scheduler.add(request)
    while scheduler.has_work:
        scheduler.complete(scheduler.schedule())
    return request


@pytest.mark.parametrize(
    ("shared", "length", "cached"),
    [
        (0, 100, 0),
        (15, 100, 0),
        (16, 100, 16),
        (31, 100, 16),
        (32, 100, 32),
        (100, 100, 96),
        (96, 96, 80),
        (33, 33, 32),
    ],
)
def test_hits_are_whole_blocks_and_leave_one_token_to_compute(shared: int, length: int, cached: int):
    scheduler = make()
    finish(scheduler, list(range(100)))
    request = finish(scheduler, list(range(shared)) + [9999] * (length - shared))
    assert request.cached_tokens == cached


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 200), st.integers(1, 40))
def test_hits_equal_the_common_prefix_to_a_block(first: int, shared: int, second: int, size: int):
    scheduler = make(block_size=size)
    a = list(range(first))
    b = a[:shared] + [9999] * max(0, second - shared)
    b = b or [9999]
    finish(scheduler, a)
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert finish(scheduler, b).cached_tokens == min(common, len(b) - 1) // size * size


def test_the_same_block_behind_another_beginning_is_no_hit():
    scheduler = make()
    finish(scheduler, [1] * 16 + [2] * 16 + [3])
    finish(scheduler, [8] * 16 + [9] * 16 + [3])
    assert finish(scheduler, [1] * 16 + [9] * 16 + [3]).cached_tokens == 16


def test_an_answer_is_found_again_as_part_of_the_next_turn():
    scheduler = make()
    turn = finish(scheduler, list(range(20)), max_tokens=30)
    assert finish(scheduler, [*turn.tokens, 7, 7, 7]).cached_tokens == 48


def test_queries_and_hits_count_prompt_tokens():
    scheduler = make()
    finish(scheduler, list(range(40)))
    finish(scheduler, list(range(40)))
    assert (scheduler.cache_queries, scheduler.cache_hits) == (80, 32)


def test_switched_off_nothing_is_found():
    scheduler = make(enable_prefix_caching=False)
    finish(scheduler, list(range(40)))
    assert finish(scheduler, list(range(40))).cached_tokens == 0
    assert scheduler.cache_hits == 0


def test_requests_share_blocks_while_both_run():
    scheduler = make()
    first, second = (Request(list(range(64)), 50) for _ in range(2))
    scheduler.add(first)
    scheduler.complete(scheduler.schedule())
    alone = scheduler.pool.used
    scheduler.add(second)
    scheduler.complete(scheduler.schedule())
    assert second.blocks[:3] == first.blocks[:3]
    assert scheduler.pool.used == alone + 2  # its fourth block, where the last token is computed, and its fifth


def test_a_preempted_request_finds_its_own_blocks_but_counts_no_hit():
    scheduler = make(kv_tokens=80)
    first, second = Request(list(range(20)), 18), Request(list(range(100, 120)), 40)
    scheduler.add(first)
    scheduler.add(second)
    resumed = []
    while scheduler.has_work:
        step = scheduler.schedule()
        resumed += [(step.tokens, second.computed) for request in step.admitted if request.preemptions]
        scheduler.complete(step)
    assert resumed == [(1, 33)]  # of its 33 tokens it had to compute only the last anew
    assert second.cached_tokens == 0
    assert scheduler.cache_hits == 0


def test_free_blocks_that_a_request_would_share_are_not_counted_twice():
    scheduler = make(kv_tokens=160)
    finish(scheduler, list(range(64)))
    scheduler.add(Request(list(range(100, 180)), 40))
    for _ in range(2):
        scheduler.complete(scheduler.schedule())
    assert scheduler.pool.free == 4  # those of the first request, all of them cached
    scheduler.add(Request(list(range(84)), 4))
    assert scheduler.schedule().admitted == []


def test_reset_forgets_and_is_refused_while_blocks_are_in_use():
    scheduler = make()
    finish(scheduler, list(range(40)))
    assert scheduler.pool.reset()
    assert finish(scheduler, list(range(40))).cached_tokens == 0
    scheduler.add(Request(list(range(40)), 5))
    scheduler.complete(scheduler.schedule())
    assert not scheduler.pool.reset()


def test_the_least_recently_freed_block_is_evicted_first():
    pool = BlockPool(3)
    for value in (1, 2, 3):
        [block] = pool.allocate(1)
        pool.publish(block, value)
        pool.release([block])
    pool.share(pool.lookup([1]))
    pool.release(pool.lookup([1]))
    pool.allocate(1)
    assert [len(pool.lookup([value])) for value in (1, 2, 3)] == [1, 0, 1]


def test_the_tail_of_a_prefix_is_evicted_before_its_head():
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    for block, value in zip(blocks, (1, 2), strict=True):
        pool.publish(block, value)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.lookup([1, 2]) == blocks[:1]


def test_a_shared_block_is_free_only_when_the_last_reference_goes():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.used == 1
    pool.release(blocks)
    assert pool.used == 0
