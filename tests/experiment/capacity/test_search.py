"""Where a capacity search goes next, by tables, and to its end against made-up servers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.experiment.capacity.search import (
    Bounds,
    Bracket,
    Confirm,
    Decision,
    Known,
    More,
    Probe,
    Step,
    bracket,
    next_step,
)

PASS, FAIL, UNDECIDED = Decision.PASS, Decision.FAIL, Decision.UNDECIDED
FREE = Bounds(first=1.0, least=1.0)


def known(rate: float, decision: str) -> Known:
    """``p`` pass, ``P`` confirmed, ``f`` fail, ``+ -`` undecided that lean; all runs: ``F = _``; none usable: ``b``."""
    decisions = {"p": PASS, "P": PASS, "f": FAIL, "F": FAIL}
    return Known(
        rate=rate,
        decision=decisions.get(decision, UNDECIDED),
        leans_pass=decision in "pP+=",
        exhausted=decision in "F=_b",
        confirmed=decision == "P",
        blind=decision == "b",
    )


def rates(text: str) -> list[Known]:
    """``1p 2+ 4f``."""
    return [known(float(word[:-1]), word[-1]) for word in text.split()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Probe(1.0)),
        ("1p", Probe(2.0)),
        ("1p 2+", Probe(4.0)),  # face value will do far from the answer
        ("1p 2p 4f", Probe(2.83)),
        ("1p 2p 4-", Probe(2.83)),
        ("1p 2p 4f 2.83p", Probe(3.36)),
        ("1p 2p 4f 2.83f", Probe(2.38)),
        ("1p 2+ 4f 2.83p 3.36f", Probe(3.08)),  # 2/s is below a pass: no more is asked of it
        ("1p 3.36f 3.08p", Confirm(3.08)),
        ("1p 3.36f 3.08P", Bracket(3.08, 3.36)),
        ("1p 3.36f 3.08+", More(3.08)),
        ("1p 3.36- 3.08P", More(3.36)),
        ("1p 3.36- 3.08+", More(3.08)),
        ("1p 3.36f 3.08-", Probe(1.75)),  # the runs that were added turned it round
    ],
)
def test_doubling_bisection_and_the_ends(text: str, expected: Step) -> None:
    assert next_step(FREE, rates(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1p 2.5p 3.36f 3.08=", Probe(2.939)),  # somewhat less than half of the precision beside it
        ("1p 2.94P 3.08= 3.23F", Bracket(2.94, 3.23)),
        ("1p 2.94P 3.08_ 3.24-", More(3.24)),
        ("1p 2.94P 3.08_ 3.29F", Bracket(2.94, 3.29)),
        ("1p 2.94P 3.08_ 3.31F", Probe(3.227)),
        ("1p 2.8p 3.08_ 3.36F", Probe(2.939)),
        ("1p 2.94p 3.08= 3.36F", Probe(3.227)),
        ("1p 2.94P 3.08= 3.23_ 3.36F", Bracket(2.94, 3.36)),
        ("1p 2.94P 3.08_ 3.6F", Probe(3.227)),
        ("1p 2.94P 3.08_", Probe(3.227)),
        ("1p 2.94= 3.08_ 3.24F", Probe(2.806)),
    ],
)
def test_a_rate_that_cannot_be_decided_is_stepped_away_from(text: str, expected: Step) -> None:
    assert next_step(FREE, rates(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4p 2f", More(2.0)),
        ("4p 2F", More(4.0)),
        ("4+ 2F 1P", Probe(1.41)),  # resolved: the pass was none
        ("4p 2p 1p", Probe(8.0)),  # resolved: the failure was none
    ],
)
def test_a_failure_below_a_pass_reopens_both(text: str, expected: Step) -> None:
    assert next_step(FREE, rates(text)) == expected


def test_a_contradiction_that_stays_is_decided_by_the_lower_rate() -> None:
    stays = [*rates("1P 2F"), Known(4.0, PASS, leans_pass=True, exhausted=True)]
    assert next_step(FREE, stays) == Probe(1.41)
    assert bracket(stays) == Bracket(1.0, 2.0)


@pytest.mark.parametrize(
    ("bounds", "text", "expected"),
    [
        (Bounds(1, 1, most=3), "1p 2p", Probe(3.0)),
        (Bounds(1, 1, most=3), "1p 2p 3p", Confirm(3.0)),
        (Bounds(1, 1, most=3), "1p 2p 3P", Bracket(3.0, None)),
        (Bounds(1, 1, most=3), "1p 2p 3+", More(3.0)),
        (Bounds(1, 1, most=3), "1p 2p 3=", Probe(2.863)),
        (Bounds(1, 1), "1f", Bracket(None, 1.0)),
        (Bounds(1, 1), "1-", More(1.0)),
        (Bounds(1, 0.25), "1f", Probe(0.5)),
        (Bounds(1, 0.25), "1f 0.5- 0.25f", Bracket(None, 0.25)),
        (Bounds(1, 0.3), "1f 0.5f", Probe(0.3)),
        (Bounds(1, 0.25), "1f 0.5p", Probe(0.707)),
        (Bounds(1, 1, precision=0.02), "1p 1.01P 1.03f", Bracket(1.01, 1.03)),
        (Bounds(1, 1, precision=0.02), "1p 1.01P 1.05f", Probe(1.03)),
    ],
)
def test_limits(bounds: Bounds, text: str, expected: Step) -> None:
    assert next_step(bounds, rates(text)) == expected


def test_above_a_rate_at_which_no_run_could_be_used_nothing_is_tried() -> None:
    assert next_step(FREE, rates("1p 2p 4b")) == Probe(2.83)
    assert next_step(FREE, rates("1p 2+ 2.1b")) == More(2.0)
    assert next_step(FREE, rates("1p 2P 2.1b")) == Bracket(2.0, None)
    assert next_step(FREE, rates("1b")) == Bracket(None, None)


def test_a_pass_whose_held_out_runs_cannot_be_used_ends_the_search_unconfirmed() -> None:
    ends = [Known(2.0, PASS, leans_pass=True, unconfirmable=True), known(2.1, "f")]
    assert next_step(FREE, ends) == Bracket(2.0, 2.1)


def play(bounds: Bounds, answer: Callable[[float, int], Known]) -> tuple[Bracket, int]:
    """Follow the search to its end; `answer` says what is known of a rate after so many steps at it."""
    asked: dict[float, int] = {}
    for _ in range(500):
        step = next_step(bounds, [answer(rate, n) for rate, n in asked.items()])
        if isinstance(step, Bracket):
            return step, len(asked)
        asked[step.rate] = asked.get(step.rate, 0) + 1
    raise AssertionError("the search does not end")


def exact(capacity: float) -> Callable[[float, int], Known]:
    return lambda rate, n: Known(rate, PASS if rate <= capacity else FAIL, rate <= capacity, n > 3, n > 1)


@pytest.mark.parametrize("capacity", [1.0, 1.001, 1.7, 3.999, 4.0, 4.001, 5.3, 72.3, 1e4])
@pytest.mark.parametrize("precision", [0.01, 0.1, 0.5])
def test_an_exact_answer_is_enclosed_as_narrowly_as_asked(capacity: float, precision: float) -> None:
    found, probes = play(Bounds(1, 1, precision=precision), exact(capacity))
    assert found.sustained is not None and found.failed is not None and found.width is not None
    assert found.sustained <= capacity < found.failed
    assert 0 < found.width <= precision * 1.0001
    halvings = math.ceil(math.log2(math.log(2) / math.log(1 + precision)))
    assert probes <= math.floor(math.log2(capacity)) + 2 + halvings + 1


@pytest.mark.parametrize("capacity", [5.0, 5.3, 6.1, 7.9])
def test_next_to_the_capacity_where_nothing_can_be_decided_the_bracket_is_as_wide_as_it_must_be(
    capacity: float,
) -> None:
    def hazy(rate: float, n: int) -> Known:
        if abs(rate / capacity - 1) > 0.06:
            return exact(capacity)(rate, n)
        return Known(rate, UNDECIDED, leans_pass=rate <= capacity, exhausted=n > 2)

    found, _ = play(FREE, hazy)
    assert found.sustained is not None and found.failed is not None
    assert found.sustained < capacity < found.failed
    assert found.width is not None and 0.1 < found.width < 0.25


def test_a_pass_that_is_not_confirmed_steps_down() -> None:
    def lucky(rate: float, n: int) -> Known:
        """7.07/s to 8/s pass with the search's seeds and not with others."""
        if 6 < rate < 8 and n > 1:
            return Known(rate, UNDECIDED, leans_pass=False, exhausted=True)
        return exact(8.0 if n < 2 else 6.0)(rate, n)

    found, _ = play(FREE, lucky)
    assert found.sustained is not None and found.sustained <= 6
    assert found.failed is not None and found.failed > 6


@given(seed=st.integers(0, 10_000), hazy=st.floats(0, 1), wrong=st.floats(0, 0.5))
def test_it_ends_whatever_the_runs_say_and_never_with_a_point(seed: int, hazy: float, wrong: float) -> None:
    def answer(rate: float, n: int) -> Known:
        luck = random.Random(f"{seed} {rate} {n}")
        good = (rate <= 5.3) != (luck.random() < wrong)
        decision = UNDECIDED if luck.random() < hazy else PASS if good else FAIL
        return Known(rate, decision, good, exhausted=n >= 4, confirmed=n >= 2, blind=False)

    found, _ = play(Bounds(1, 1 / 16, most=1000), answer)
    if found.sustained is not None and found.failed is not None:
        assert found.failed > found.sustained
