"""Operators of the host: own and total time, nesting, the thread that works most, and only within the steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profile_timelines import PROCESS, THREAD, Made, at, vllm
from servebench.analysis.profile import system
from servebench.analysis.profile.nesting import order, parents, times
from servebench.analysis.profile.operators import Operators, describe, find_operators
from servebench.analysis.profile.stepping import find_steps
from servebench.profile.intervals import Spans
from servebench.profile.timeline import Kind
from servebench.testing.synthetic import MS

SPAN = at(-100), at(2000)


def operators_of(made: Made, start: float = 0, end: float = 1000) -> Operators | None:
    timeline = made.timeline(span=SPAN)
    return find_operators(timeline, find_steps(timeline, at(start), at(end)), at(start), at(end))


def figures(found: Operators | None) -> dict[str, tuple[int, float, float]]:
    assert found is not None
    rows = zip(found.names, found.n.tolist(), (found.own / MS).tolist(), (found.total / MS).tolist(), strict=True)
    return {name: (n, own, total) for name, n, own, total in rows}


def nested() -> Made:
    """linear [0, 10) holds addmm [1, 8), which holds copy [2, 4); then a bare copy [20, 21)."""
    made = Made()
    made.operator("linear", 0, 10)
    made.operator("addmm", 1, 8)
    made.operator("copy", 2, 4)
    made.operator("copy", 20, 21)
    return made


def test_own_time_is_without_what_lies_inside() -> None:
    assert figures(operators_of(nested())) == {"addmm": (1, 5, 7), "linear": (1, 3, 10), "copy": (2, 3, 3)}


def test_the_rows_are_in_the_order_of_own_time() -> None:
    document = describe(operators_of(nested(), 0, 100))
    assert document is not None
    assert [row["name"] for row in document["rows"]] == [
        "addmm",
        "linear",
        "copy",
    ]  # as the file names them where they tie
    assert document["rows"][0] == {"name": "addmm", "n": 1, "self_ms": 5, "total_ms": 7, "share": 0.05}
    assert (document["process"], document["thread"]) == (PROCESS, THREAD)
    assert (document["within_ms"], document["names_n"]) == (100, 3)


def test_only_the_time_within_the_steps_counts() -> None:
    made = nested()
    made.range(vllm(0, 0, 4), 3, 7)
    found = operators_of(made)
    assert figures(found) == {"addmm": (1, 3, 4), "copy": (1, 1, 1), "linear": (1, 0, 4)}
    document = describe(found)
    assert document is not None
    assert (document["within_ms"], document["rows"][0]["share"]) == (4, 0.75)


def test_only_the_time_within_the_window_counts() -> None:
    assert figures(operators_of(nested(), 3, 9)) == {"addmm": (1, 4, 5), "linear": (1, 1, 6), "copy": (1, 1, 1)}


def test_a_name_inside_itself_counts_once_in_its_total() -> None:
    made = Made()
    made.operator("f", 0, 10)
    made.operator("f", 1, 9)
    made.operator("f", 2, 3)
    assert figures(operators_of(made)) == {"f": (3, 10, 10)}


def test_the_thread_that_works_most_is_told() -> None:
    made = nested()
    for k in range(30):
        made.operator("wait", k, k + 0.9, thread=9)
    found = operators_of(made)
    assert found is not None
    assert (found.thread, found.names) == (9, ("wait",))


def test_the_thread_that_works_most_is_the_one_within_the_steps() -> None:
    made = nested()
    made.operator("other", 500, 900, thread=9)
    made.range(vllm(0, 0, 4), 0, 10)
    found = operators_of(made)
    assert found is not None
    assert found.thread == THREAD


def test_a_thread_counts_within_the_steps_of_its_own_process() -> None:
    made = Made()
    made.range(vllm(0, 0, 4), 0, 10, process=1)
    made.range(vllm(0, 0, 4), 20, 30, process=2)
    made.operator("early", 0, 9, process=2)  # in the other's step only
    made.operator("late", 21, 23, process=2)
    made.operator("mine", 4, 5, process=1)
    found = operators_of(made)
    assert figures(found) == {"late": (1, 2, 2)}
    assert found is not None
    assert (found.process, found.within.total) == (2, 10 * MS)


def test_there_are_none_without_operators() -> None:
    made = Made()
    made.range(vllm(0, 0, 4), 0, 10)
    assert operators_of(made) is None
    made.operator("outside", 50, 60)
    assert operators_of(made) is None
    assert describe(None) is None


def test_one_that_outlives_its_parent_counts_inside_it_only() -> None:
    start, end = np.array([0, 5]), np.array([10, 15])
    total, own = times(start, end, None)
    assert (total.tolist(), own.tolist()) == ([10, 10], [5, 10])


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(start, end, parent) of properly nested intervals, in order of start."""
    found: list[tuple[int, int, int]] = []

    def grow(start: int, end: int, parent: int, depth: int) -> None:
        at_ = start
        while depth and at_ < end and draw(st.booleans()):
            begin = draw(st.integers(at_, end - 1))
            stop = draw(st.integers(begin + 1, end))
            found.append((begin, stop, parent))
            grow(begin, stop, len(found) - 1, depth - 1)
            at_ = stop

    grow(0, 60, -1, 4)
    return found


@given(trees(), st.integers(0, 60), st.integers(0, 60))
def test_parents_and_own_times_of_any_tree(tree: list[tuple[int, int, int]], low: int, high: int) -> None:
    start, end = (np.array([row[k] for row in tree], np.int64) for k in (0, 1))
    rows = order(start, end)
    assert rows.tolist() == list(range(len(tree)))
    found = parents(start, end)
    # an equal interval inside may stand for its parent: own time is the same
    for k, (_, _, parent) in enumerate(tree):
        assert found[k] == parent or (start[found[k]], end[found[k]]) == (start[parent], end[parent])
    low, high = sorted((low, high))
    total, own = times(start, end, Spans(np.array([low]), np.array([high])))
    assert total.tolist() == [len(range(max(s, low), min(e, high))) for s, e, _ in tree]
    top = sum(int(total[k]) for k, row in enumerate(tree) if row[2] == -1)
    assert int(own.sum()) == top
    assert (own >= 0).all()


def test_system_calls_are_summed_over_threads_and_cut_to_the_window() -> None:
    made = Made()
    made.add(Kind.SYSTEM, "poll", -5, 5, thread=1)
    made.add(Kind.SYSTEM, "poll", 0, 10, thread=2)
    made.add(Kind.SYSTEM, "read", 2, 3, thread=2)
    made.add(Kind.SYSTEM, "write", 50, 60, thread=2)
    assert system.describe(made.timeline(), at(0), at(20)) == [
        {"name": "poll", "n": 2, "ms": pytest.approx(15)},
        {"name": "read", "n": 1, "ms": 1},
    ]
    assert system.describe(Made().timeline(), at(0), at(20)) == []
