"""The scheduler alone: what goes into a step."""

from __future__ import annotations

import pytest

from servebench.engine.sim.request import Finish, Request, State
from servebench.engine.sim.scheduler import Scheduler, Step, TooLongError
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.steptime import step_seconds


def make(**limits: int | bool) -> Scheduler:
    return Scheduler(SimSettings.of({"kv_tokens": 16_000, "enable_prefix_caching": False, **limits}))


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(salt * 1000 + i) % 50_000 for i in range(length)]


def run_step(scheduler: Scheduler) -> Step:
    step = scheduler.schedule()
    scheduler.complete(step)
    return step


def test_a_step_never_exceeds_its_budget_and_cuts_the_prompt_there():
    scheduler = make(max_num_batched_tokens=100)
    scheduler.add(Request(prompt(250), 5))
    assert [run_step(scheduler).prefill_tokens for _ in range(3)] == [100, 100, 50]


def test_only_the_step_that_completes_the_prompt_emits_its_first_token():
    scheduler = make(max_num_batched_tokens=100)
    request = Request(prompt(250), 5)
    scheduler.add(request)
    emitting = [run_step(scheduler).emitting for _ in range(4)]
    assert emitting == [[], [], [request], [request]]


def test_decodes_take_their_token_before_prefill_takes_the_rest():
    scheduler = make(max_num_batched_tokens=100)
    chats = [Request(prompt(10, salt), 50) for salt in range(1, 5)]
    for request in chats:
        scheduler.add(request)
    run_step(scheduler)
    scheduler.add(Request(prompt(500), 5))
    step = run_step(scheduler)
    assert (step.decode_sequences, step.prefill_tokens) == (4, 96)
    assert step.emitting == chats


def test_a_running_prefill_goes_before_a_waiting_one():
    scheduler = make(max_num_batched_tokens=100)
    first, second = Request(prompt(150, 1), 5), Request(prompt(150, 2), 5)
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    step = run_step(scheduler)
    assert step.admitted == [second]
    assert (first.computed, second.computed) == (150, 50)


def test_waiting_requests_enter_in_order_of_arrival_up_to_max_num_seqs():
    scheduler = make(max_num_seqs=2)
    requests = [Request(prompt(10, salt), 2) for salt in range(4)]
    for request in requests:
        scheduler.add(request)
    admitted = [run_step(scheduler).admitted for _ in range(3)]
    assert admitted == [requests[:2], [], requests[2:]]


def test_context_tokens_count_what_each_sequence_attends_to():
    scheduler = make(max_num_batched_tokens=100)
    scheduler.add(Request(prompt(150), 3))
    assert [run_step(scheduler).context_tokens for _ in range(4)] == [100, 150, 151, 152]


def test_step_time_is_linear_in_what_the_step_holds():
    step = Step(prefill_tokens=100, decode_sequences=7, context_tokens=5000)
    cost = SimSettings(base=1e-3, per_prefill_token=1e-5, per_sequence=1e-4, per_context_token=1e-8)
    assert step_seconds(step, cost) == pytest.approx(1e-3 + 1e-3 + 7e-4 + 5e-5)


def test_a_request_that_fits_exactly_is_taken_and_one_token_more_is_refused():
    scheduler = make(kv_tokens=160)
    scheduler.add(Request(prompt(100), 60))
    with pytest.raises(TooLongError, match=r"maximum context length is 160 tokens.*requested 161"):
        scheduler.add(Request(prompt(100), 61))


def test_an_empty_scheduler_has_no_work():
    scheduler = make()
    assert not scheduler.has_work
    scheduler.add(Request(prompt(4), 1))
    assert scheduler.has_work
    run_step(scheduler)
    assert not scheduler.has_work


def test_out_of_blocks_the_request_admitted_last_is_preempted_and_finishes_exactly():
    scheduler = make(kv_tokens=64)
    first, second = Request(prompt(20, 1), 40), Request(prompt(20, 2), 40)
    scheduler.add(first)
    scheduler.add(second)
    preempted: list[Request] = []
    while scheduler.has_work:
        preempted += run_step(scheduler).preempted
    assert set(preempted) == {second}
    assert second.preemptions == len(preempted) >= 1
    assert [first.output_tokens, second.output_tokens] == [40, 40]
    assert scheduler.pool.free == 4


def test_a_preempted_request_computes_prompt_and_answer_anew_but_emits_nothing_twice():
    scheduler = make(kv_tokens=64)
    first, second = Request(prompt(20, 1), 40), Request(prompt(20, 2), 40)
    scheduler.add(first)
    scheduler.add(second)
    while not second.preemptions:
        run_step(scheduler)
    made = second.output_tokens
    assert second.computed == 0
    while scheduler.has_work and second.state is State.WAITING:
        step = run_step(scheduler)
    assert step.admitted == [second]
    assert step.prefill_tokens == 20 + made
    assert second.output_tokens == made + 1


def test_a_preempted_request_goes_back_before_those_that_wait():
    scheduler = make(kv_tokens=64)
    first, second, third = (Request(prompt(20, salt), 40) for salt in (1, 2, 3))
    for request in (first, second, third):
        scheduler.add(request)
    while not second.preemptions:
        run_step(scheduler)
    assert list(scheduler.waiting) == [second, third]


def test_nothing_enters_in_a_step_that_preempts_even_if_a_shared_block_would_make_room():
    scheduler = make(kv_tokens=80, enable_prefix_caching=True)
    for _ in range(3):  # alike, so that the victim could share the blocks of those that go on
        scheduler.add(Request([0], 17))
    steps = []
    while scheduler.has_work:
        steps.append(run_step(scheduler))
    assert any(step.preempted for step in steps)
    assert not any(step.preempted and step.admitted for step in steps)


def test_a_prompt_is_not_admitted_until_blocks_for_all_of_it_are_free():
    scheduler = make(kv_tokens=160, max_num_batched_tokens=64)
    scheduler.add(Request(prompt(60, 1), 30))
    run_step(scheduler)
    scheduler.add(Request(prompt(100, 2), 4))
    assert run_step(scheduler).admitted == []


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_abort_frees_the_blocks_at_once(steps: int):
    scheduler = make(max_num_batched_tokens=64)
    request = Request(prompt(100), 50)
    scheduler.add(request)
    for _ in range(steps):
        run_step(scheduler)
    scheduler.abort(request)
    assert request.finish is Finish.ABORT
    assert scheduler.pool.used == 0
    assert not scheduler.has_work


def test_a_request_aborted_while_its_step_runs_gets_no_token():
    scheduler = make()
    leaving, staying = Request(prompt(10, 1), 5), Request(prompt(10, 2), 5)
    scheduler.add(leaving)
    scheduler.add(staying)
    step = scheduler.schedule()
    scheduler.abort(leaving)
    assert [request for request, _ in scheduler.complete(step)] == [staying]
    assert leaving.output_tokens == 0


def test_abort_after_the_end_changes_nothing():
    scheduler = make()
    request = Request(prompt(10), 1)
    scheduler.add(request)
    run_step(scheduler)
    scheduler.abort(request)
    assert request.finish is Finish.LENGTH
