import pytest

from servebench.analysis.facts import gather
from servebench.record.columns import Outcome
from servebench.testing.synthetic import SECOND, SyntheticRun, closed_run, open_run


def window_of(run: SyntheticRun) -> tuple[int, int]:
    window = gather(run.data()).window
    return window.warmup_end, window.throughput_end


def test_events_count_by_their_own_instant() -> None:
    run = open_run(tokens_per_chunk=3)
    start, end = window_of(run)
    found = gather(run.data()).throughput
    tokens = sum(int(n) for a, t in run.chunks.values() for at, n in zip(a, t, strict=True) if start <= at < end)
    assert found.output_tokens == tokens
    assert found.requests == sum(start <= r.last_token_ns < end for r in run.records)
    assert found.input_tokens == sum(r.input_tokens for r in run.records if start <= r.first_token_ns < end)
    assert found.seconds == (end - start) / SECOND


def test_tokens_of_failed_requests_arrived_too() -> None:
    run = open_run()
    before = gather(run.data()).throughput
    run.records[300].outcome = Outcome.RESET
    after = gather(run.data()).throughput
    assert after.output_tokens == before.output_tokens
    assert after.requests == before.requests - 1


def test_prompts_without_a_count_are_told() -> None:
    run = open_run()
    before = gather(run.data()).throughput
    run.records[300].input_tokens = None
    found = gather(run.data()).throughput
    assert found.uncounted_prompts == 1
    assert before.input_tokens is not None
    assert found.input_tokens == before.input_tokens - 200


def test_no_count_at_all_is_none_and_not_zero() -> None:
    run = open_run()
    for record in run.records:
        record.input_tokens = None
    assert gather(run.data()).throughput.input_tokens is None


def test_closed_loop_throughput_is_that_of_the_full_slots() -> None:
    """16 slots, a wave of 50 tokens each every 540 ms: the ramp-down of the last wave is left out."""
    run = closed_run(concurrency=16, waves=10)
    found = gather(run.data()).throughput
    assert found.output_tokens / found.seconds == pytest.approx(16 * 50 / 0.541, rel=0.02)


def test_peak_second() -> None:
    run = open_run()
    start, _ = window_of(run)
    bucket: dict[int, int] = {}
    for arrival, tokens in run.chunks.values():
        for at, n in zip(arrival.tolist(), tokens.tolist(), strict=True):
            second = (at - start) // SECOND
            bucket[second] = bucket.get(second, 0) + n
    found = gather(run.data()).throughput
    assert found.peak_output_tokens_per_s == max(n for s, n in bucket.items() if 0 <= s < int(found.seconds))


def test_a_short_window_has_no_peak() -> None:
    assert gather(closed_run(concurrency=4, waves=3).data()).throughput.peak_output_tokens_per_s is None
