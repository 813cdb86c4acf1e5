import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from servebench.analysis.data import Ints
from servebench.analysis.steps import StepFunction, decoding, in_flight, prefilling
from servebench.record.columns import Outcome
from servebench.testing.synthetic import open_run

pairs = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)


def ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


@given(pairs, st.integers(0, 60), st.integers(1, 30))
def test_mean_and_peak_equal_a_count_at_every_instant(spans: list[tuple[int, int]], start: int, length: int) -> None:
    begin, end = ints([b for b, _ in spans]), ints([b + n for b, n in spans])
    steps = StepFunction.of_intervals(begin, end)
    levels = [int(((begin <= t) & (t < end)).sum()) for t in range(start, start + length)]
    mean = steps.mean(start, start + length)
    assert mean is not None
    assert abs(mean - sum(levels) / length) < 1e-9
    assert steps.peak(start, start + length) == max(levels)


def test_an_empty_window_has_no_mean() -> None:
    assert StepFunction.of_intervals(ints([1]), ints([5])).mean(3, 3) is None


def test_prefill_and_decode_add_up_to_the_time_up_to_the_last_token() -> None:
    run = open_run(requests=30, warmup=0, cooldown=0)
    requests, end = run.data().requests, run.manifest["phases"]["end_ns"]
    area = {f: int(f(requests, end).area(ints([end]))[0]) for f in (in_flight, prefilling, decoding)}
    tails = sum(r.end_ns - r.last_token_ns for r in run.records)
    assert area[prefilling] + area[decoding] + tails == area[in_flight]


def test_a_request_in_flight_lasts_to_the_end() -> None:
    run = open_run(requests=2, warmup=0, cooldown=0)
    run.fail(1, Outcome.IN_FLIGHT)
    requests = run.data().requests
    end = run.manifest["phases"]["end_ns"] + 10**9
    assert in_flight(requests, end).level[-1] == 0
    assert in_flight(requests, end).t[-1] == end
    assert prefilling(requests, end).t[-1] == end
