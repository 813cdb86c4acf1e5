"""The phases of a run: exact step functions of what the server had to do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handmade import Sent, at, facts_of, handmade
from servebench.analysis import phases
from servebench.analysis.data import Ints
from servebench.analysis.phases import PHASES, Phases, combine, level_at, weighted
from servebench.analysis.steps import StepFunction
from servebench.record.columns import Outcome
from servebench.testing.synthetic import closed_run, open_run

PAIR = [Sent(100, [200, 300, 400]), Sent(250, [350, 450], input=300, cached=50)]
spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=10)


def ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def steps(pairs: list[tuple[int, int]]) -> StepFunction:
    return StepFunction.of_intervals(ints([b for b, _ in pairs]), ints([b + n for b, n in pairs]))


def combined(prefill: list[tuple[int, int]], decode: list[tuple[int, int]]) -> Phases:
    return combine(steps(prefill), steps(decode), steps([]))


def test_two_requests_by_hand() -> None:
    facts, found = facts_of(handmade(PAIR))
    section = phases.describe(facts, found)
    assert section["time_ms"] == {"idle": 650, "prefill_only": 100, "decode_only": 150, "mixed": 100}
    assert section["shares"] == {"idle": 0.65, "prefill_only": 0.1, "decode_only": 0.15, "mixed": 0.1}
    assert section["changes"] == 5
    assert section["prefill"] == {"mean": 0.2, "max": 1, "unit": "requests"}
    assert section["decode"] == {"mean": 0.3, "max": 2, "unit": "requests"}
    assert section["prefill_tokens"] == {"mean": 0.1 * 100 + 0.1 * 250, "max": 250, "unit": "tokens"}
    assert section["reason"] is None


def test_the_phase_holds_from_its_instant_on() -> None:
    _, found = facts_of(handmade(PAIR))
    instants = ints([at(ms) for ms in (0, 99, 100, 199, 200, 250, 349, 350, 449, 450, 999)])
    names = [PHASES[code] for code in found.at(instants)]
    assert (
        names
        == ["idle"] * 2 + ["prefill_only"] * 2 + ["decode_only"] + ["mixed"] * 2 + ["decode_only"] * 2 + ["idle"] * 2
    )


def test_only_the_measured_window_counts() -> None:
    facts, found = facts_of(handmade(PAIR, window=(150, 300)))
    section = phases.describe(facts, found)
    assert section["window_ms"] == 150
    assert section["time_ms"] == {"idle": 0, "prefill_only": 50, "decode_only": 50, "mixed": 50}


def test_a_prefill_without_a_token_lasts_as_long_as_its_request() -> None:
    failed = Sent(100, outcome=Outcome.TIMEOUT, more={"end_ns": at(400)})
    stuck = Sent(600)  # in flight at the end
    facts, found = facts_of(handmade([failed, stuck], window=(0, 1000)))
    assert phases.describe(facts, found)["time_ms"]["prefill_only"] == 300 + 400


def test_a_request_that_was_never_sent_is_in_no_phase() -> None:
    dropped = Sent(100, outcome=Outcome.DROPPED, more={"sent_ns": None, "dispatched_ns": None})
    facts, found = facts_of(handmade([dropped]))
    section = phases.describe(facts, found)
    assert section["reason"] == "no request was sent"
    assert (section["shares"], section["changes"]) == (None, None)


def test_an_empty_window_has_a_reason() -> None:
    facts, found = facts_of(handmade(PAIR, window=(500, 500)))
    assert phases.describe(facts, found)["reason"] == "the measured window is empty"


@given(spans, spans, st.integers(0, 60), st.integers(1, 40))
def test_times_in_phases_equal_a_count_at_every_instant(
    prefill: list[tuple[int, int]], decode: list[tuple[int, int]], start: int, length: int
) -> None:
    found = combined(prefill, decode)
    expected = dict.fromkeys(PHASES, 0)
    for t in range(start, start + length):
        code = any(b <= t < b + n for b, n in prefill) + 2 * any(b <= t < b + n for b, n in decode)
        expected[PHASES[code]] += 1
    assert found.time_in(start, start + length) == expected
    assert found.at(np.arange(start, start + length)).tolist().count(0) == expected["idle"]


@given(spans, spans, st.integers(-10, 60), st.integers(0, 40))
def test_times_add_up_to_the_window(
    prefill: list[tuple[int, int]], decode: list[tuple[int, int]], start: int, length: int
) -> None:
    assert sum(combined(prefill, decode).time_in(start, start + length).values()) == length


@given(spans, st.lists(st.integers(1, 9), min_size=10, max_size=10), st.integers(0, 80))
def test_a_weighted_level_is_the_sum_of_the_weights(pairs: list[tuple[int, int]], weights: list[int], t: int) -> None:
    weights = weights[: len(pairs)]
    found = weighted(ints([b for b, _ in pairs]), ints([b + n for b, n in pairs]), ints(weights))
    expected = sum(w for (b, n), w in zip(pairs, weights, strict=True) if b <= t < b + n)
    assert level_at(found, ints([t])).tolist() == [expected]


@pytest.mark.parametrize("run", [open_run(requests=300), closed_run()], ids=["open", "closed"])
def test_shares_of_synthetic_runs_sum_to_one_and_agree_with_the_concurrency(run: object) -> None:
    facts, found = facts_of(run)  # type: ignore[arg-type]
    section = phases.describe(facts, found)
    assert sum(section["shares"].values()) == pytest.approx(1, abs=1e-5)
    assert sum(section["time_ms"].values()) == pytest.approx(section["window_ms"])
    window = facts.window
    mean = facts.steps["prefill_concurrency"].mean(window.warmup_end, window.throughput_end)
    assert section["prefill"]["mean"] == pytest.approx(mean, abs=1e-6)
    assert section["prefill_tokens"]["mean"] == pytest.approx(200 * mean, rel=1e-5)
