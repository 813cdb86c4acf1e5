"""The algebra of intervals against the same on a grid of single instants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.profile import intervals
from servebench.profile.intervals import Ints, Spans

END = 30
loose = st.lists(st.tuples(st.integers(0, END), st.integers(0, 8), st.integers(0, 3)), max_size=14)


def columns(rows: list[tuple[int, int, int]]) -> tuple[Ints, Ints, Ints]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 0] + table[:, 1], table[:, 2]


def grid(starts: Ints, ends: Ints) -> list[bool]:
    """Which instants are covered."""
    return [bool(((starts <= t) & (t < ends)).any()) for t in range(-2, END + 12)]


def spans_of(rows: list[tuple[int, int, int]]) -> Spans:
    return intervals.union(*columns(rows)[:2])


def assert_proper(spans: Spans) -> None:
    assert (spans.ends > spans.starts).all()
    assert (spans.starts[1:] > spans.ends[:-1]).all()
    assert spans.starts.dtype == spans.ends.dtype == np.int64


@given(loose)
def test_a_union_covers_what_any_covers(rows: list[tuple[int, int, int]]) -> None:
    starts, ends, _ = columns(rows)
    found = intervals.union(starts, ends)
    assert_proper(found)
    assert grid(*found) == grid(starts, ends)
    assert found.total == sum(grid(starts, ends)) == found.lengths.sum()


@given(loose, st.integers(-1, END + 9), st.integers(-1, END + 9))
def test_a_clip_and_its_gaps_are_the_range(rows: list[tuple[int, int, int]], start: int, end: int) -> None:
    spans = spans_of(rows)
    inside, outside = intervals.clip(spans, start, end), intervals.gaps(spans, start, end)
    assert_proper(inside)
    assert_proper(outside)
    within = [start <= t < end for t in range(-2, END + 12)]
    assert grid(*inside) == [a and b for a, b in zip(grid(*spans), within, strict=True)]
    assert grid(*outside) == [b and not a for a, b in zip(grid(*spans), within, strict=True)]
    assert inside.total + outside.total == max(end - start, 0)


@given(loose, loose)
def test_intersection_and_difference(first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]) -> None:
    a, b = spans_of(first), spans_of(second)
    both, only = intervals.intersect(a, b), intervals.subtract(a, b)
    assert_proper(both)
    assert_proper(only)
    assert grid(*both) == [x and y for x, y in zip(grid(*a), grid(*b), strict=True)]
    assert grid(*only) == [x and not y for x, y in zip(grid(*a), grid(*b), strict=True)]


@given(loose, loose)
def test_how_much_of_each_is_covered(rows: list[tuple[int, int, int]], cover: list[tuple[int, int, int]]) -> None:
    starts, ends, _ = columns(rows)
    spans = spans_of(cover)
    covered = grid(*spans)
    wanted = [sum(covered[s + 2 : e + 2]) for s, e in zip(starts, ends, strict=True)]
    assert intervals.covered(starts, ends, spans).tolist() == wanted


@given(loose, st.integers(1, 5))
def test_who_is_alone(rows: list[tuple[int, int, int]], block: int) -> None:
    starts, ends, keys = columns(rows)
    wanted = [set(keys[(starts <= t) & (t < ends)].tolist()) for t in range(END + 10)]
    whole = intervals.alone(starts, ends, keys)
    blocks = list(intervals.alone_in_blocks(starts, ends, keys.astype(np.int32), rows=block))
    for found in (whole, *_joined(blocks)):
        spans, owners = found
        assert (spans.starts[1:] >= spans.ends[:-1]).all()
        at: dict[int, int] = {}
        for s, e, key in zip(*spans, owners.tolist(), strict=True):
            assert e > s
            at |= dict.fromkeys(range(s, e), key)
        assert at == {t: min(present) for t, present in enumerate(wanted) if len(present) == 1}


def _joined(blocks: list[tuple[Spans, Ints]]) -> list[tuple[Spans, Ints]]:
    if not blocks:
        return []
    starts = np.concatenate([spans.starts for spans, _ in blocks])
    ends = np.concatenate([spans.ends for spans, _ in blocks])
    return [(Spans(starts, ends), np.concatenate([keys for _, keys in blocks]))]


def test_two_that_overlap_fully_are_alone_only_under_one_key() -> None:
    starts, ends = np.array([0, 0]), np.array([10, 10])
    assert intervals.alone(starts, ends, np.array([1, 2]))[0].total == 0
    spans, owners = intervals.alone(starts, ends, np.array([5, 5]))
    assert (spans.total, set(owners.tolist())) == (10, {5})


@pytest.mark.parametrize("number", [3, 2_047])
def test_many_of_the_largest_keys_at_once_are_told_apart(number: int) -> None:
    largest = 2**20 - 1
    starts, ends = np.zeros(number, np.int64), np.full(number, 10)
    keys = np.full(number, largest)
    assert intervals.alone(starts, ends, keys)[0].total == 10
    keys[-1] -= 1
    assert intervals.alone(starts, ends, keys)[0].total == 0


def test_blocks_are_as_large_as_asked_for() -> None:
    starts = np.arange(10) * 10
    found = list(intervals.alone_in_blocks(starts, starts + 25, np.arange(10), rows=3))
    assert len(found) == 4
    assert [spans.starts[0] for spans, _ in found if spans.starts.size] == [0, 105]


def test_nothing_in_nothing_out() -> None:
    none = np.zeros(0, np.int64)
    assert intervals.union(none, none).total == 0
    assert intervals.alone(none, none, none)[1].size == 0
    assert intervals.subtract(Spans(none, none), Spans(none, none)).total == 0
    assert intervals.gaps(Spans(none, none), 3, 7) == Spans(np.array([3]), np.array([7]))
    assert intervals.covered(none, none, Spans(np.array([3]), np.array([7]))).size == 0
