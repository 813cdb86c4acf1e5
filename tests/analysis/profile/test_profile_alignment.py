"""Timelines whose clock is off by a known amount are brought back to within the residual that is claimed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from servebench.analysis.profile.alignment import align
from servebench.analysis.profile.clock_offset import Offset, vote
from servebench.profile.intervals import union
from servebench.profile.timeline import Alignment, Kind, Timeline

Ints = NDArray[np.int64]
US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
T0 = 1_790_000_000 * SECOND
STATED = Alignment("the session's start as the file states it", reason="not bounded yet")


@dataclass
class Truth:
    """What really happened, on the client's clock."""

    starts: Ints  # of the send calls
    ends: Ints
    arrivals: Ints
    steps: Ints  # their ends
    noise: tuple[Ints, Ints]  # calls that sent nothing to the client


def serve(seed: int, steps: int = 200, streams: int = 4, late: float = 0.0) -> Truth:
    """An engine of 10 ms steps that sends to its streams after each.

    Args:
        late: share of the chunks that the kernel delivers after the call, by up to 300 µs.
    """
    rng = np.random.default_rng(seed)
    step_ends = T0 + np.cumsum(rng.normal(10 * MS, 200 * US, steps).astype(np.int64))
    calls = rng.lognormal(np.log(5 * US), 0.8, (steps, streams)).astype(np.int64) + 500
    between = rng.integers(2 * US, 30 * US, (steps, streams))
    ends = step_ends[:, None] + 100 * US + np.cumsum(calls + between, axis=1)
    starts = ends - calls
    arrivals = starts + (rng.uniform(0.05, 0.95, calls.shape) * calls).astype(np.int64)
    delayed = rng.random(calls.shape) < late
    arrivals = np.where(delayed, ends + rng.integers(0, 300 * US, calls.shape), arrivals)
    other = np.sort(rng.integers(T0, step_ends[-1], 2 * steps))
    return Truth(starts.ravel(), ends.ravel(), arrivals.ravel(), step_ends, (other, other + rng.integers(US, 40 * US)))


def recorded(truth: Truth, offset_ns: int, drift: float = 0.0, *, sends: bool = True) -> Timeline:
    """What a profiler wrote whose clock is behind the client's by `offset_ns`, and loses `drift` of each second."""

    def to_file(instants: Ints) -> Ints:
        return instants - offset_ns - np.rint(drift * (instants - T0)).astype(np.int64)

    names = ("sendto", "epoll_wait", "write", "execute_context_0(0)_generation_6(6)")
    starts = [truth.starts, truth.ends, truth.noise[0], truth.steps - 9 * MS]
    ends = [truth.ends, truth.ends + US, truth.noise[1], truth.steps]
    kinds = [Kind.SYSTEM, Kind.SYSTEM, Kind.SYSTEM, Kind.RANGE]
    kept = range(4) if sends else (3,)
    columns = {
        "start": to_file(np.concatenate([starts[i] for i in kept])),
        "end": to_file(np.concatenate([ends[i] for i in kept])),
        "kind": np.concatenate([np.full(starts[i].size, kinds[i]) for i in kept]),
        "name": np.concatenate([np.full(starts[i].size, i) for i in kept]),
    }
    return Timeline.of_columns("nsys", names, columns, alignment=STATED)


def worst_error(truth: Truth, aligned: Timeline) -> int:
    """How far the steps lie from where they were."""
    ends = np.sort(aligned.end[aligned.of_kind(Kind.RANGE)])
    return int(np.abs(ends - truth.steps).max())


def residual(timeline: Timeline) -> int:
    assert timeline.alignment is not None
    assert timeline.alignment.residual_ns is not None, timeline.alignment.reason
    return timeline.alignment.residual_ns


class TestSendCalls:
    @settings(max_examples=60, deadline=None)
    @given(
        seed=st.integers(0, 10_000),
        offset_us=st.integers(-90_000, 90_000),
        late=st.sampled_from([0.0, 0.02, 0.08]),
        drift=st.sampled_from([0.0, 5e-6, -2e-5, 1e-4]),
    )
    def test_the_error_is_within_the_residual_and_that_within_a_millisecond(
        self, seed: int, offset_us: int, late: float, drift: float
    ) -> None:
        truth = serve(seed, late=late)
        aligned = align(recorded(truth, offset_us * US, drift), truth.arrivals)
        # beyond the first and last chunk that were looked at, a drift is extrapolated
        assert worst_error(truth, aligned) <= residual(aligned) + 20 * US * (drift != 0)
        assert residual(aligned) < MS
        assert aligned.alignment is not None
        assert "send calls" in aligned.alignment.method

    def test_a_drift_is_taken_out_and_named(self) -> None:
        truth = serve(1)
        aligned = align(recorded(truth, 5 * MS, 1e-4), truth.arrivals)
        assert aligned.alignment is not None
        assert "drift by 100" in aligned.alignment.method
        assert worst_error(truth, aligned) < 30 * US  # a constant offset would leave 100

    def test_chunks_of_another_server_are_no_proof(self) -> None:
        truth, other = serve(1), serve(2)
        aligned = align(recorded(truth, 0), other.arrivals)
        assert aligned.alignment is not None
        assert aligned.alignment.residual_ns is None
        assert "of the chunks fit into send calls" in (aligned.alignment.reason or "")
        assert (aligned.start == recorded(truth, 0).start).all()

    def test_a_server_elsewhere_is_not_compared(self) -> None:
        truth = serve(1)
        aligned = align(recorded(truth, MS), truth.arrivals, loopback=False)
        assert aligned.alignment is not None
        assert aligned.alignment.offset_ns == 0
        assert "different machines" in (aligned.alignment.reason or "")

    def test_too_few_chunks_are_no_proof(self) -> None:
        truth = serve(1)
        aligned = align(recorded(truth, 0), truth.arrivals[400:410])
        assert aligned.alignment is not None
        assert "only 10 chunks" in (aligned.alignment.reason or "")

    def test_a_drift_that_one_offset_could_hide_is_within_the_residual(self) -> None:
        truth = serve(1723, late=0.08)
        aligned = align(recorded(truth, 0, -2e-5), truth.arrivals)
        assert worst_error(truth, aligned) <= residual(aligned) + 2 * US


class TestWithoutSendCalls:
    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 10_000), offset_us=st.integers(-1_000, 1_000))
    def test_steps_bound_the_error(self, seed: int, offset_us: int) -> None:
        truth = serve(seed)
        timeline = recorded(truth, offset_us * US, sends=False)
        aligned = align(timeline, truth.arrivals, step_ends=timeline.end)
        assert worst_error(truth, aligned) <= residual(aligned) < 4 * MS
        assert aligned.alignment is not None
        assert "after a step's end" in aligned.alignment.method

    def test_what_the_file_states_is_kept_where_it_is_possible(self) -> None:
        truth = serve(3)
        timeline = recorded(truth, 0, sends=False)
        aligned = align(timeline, truth.arrivals, step_ends=timeline.end)
        assert aligned.alignment is not None
        assert aligned.alignment.offset_ns == 0

    def test_the_bracket_of_the_capture_is_the_last_resort(self) -> None:
        truth = serve(4)
        timeline = recorded(truth, 0, sends=False)
        bracket = (timeline.span[0] - 30 * MS, timeline.span[1] + 40 * MS)
        aligned = align(timeline, np.empty(0, np.int64), bracket=bracket)
        assert aligned.alignment == Alignment(
            f"{STATED.method}, bounded only by when the capture began and ended", 0, 40 * MS
        )

    def test_a_capture_that_is_longer_than_its_bracket_bounds_nothing(self) -> None:
        timeline = recorded(serve(4), 0, sends=False)
        aligned = align(timeline, np.empty(0, np.int64), bracket=(timeline.span[0] + 1, timeline.span[1] - 1))
        assert residual_reason(aligned) is not None

    def test_nothing_at_all_leaves_a_reason(self) -> None:
        aligned = align(recorded(serve(4), 0, sends=False), np.empty(0, np.int64))
        assert residual_reason(aligned) is not None

    def test_an_unknown_clock_stays_unknown(self) -> None:
        truth = serve(1)
        timeline = Timeline.of_columns("nsys", ("write",), {"start": truth.starts, "end": truth.ends})
        assert align(timeline, truth.arrivals) is timeline


def residual_reason(timeline: Timeline) -> str | None:
    assert timeline.alignment is not None
    assert timeline.alignment.residual_ns is None
    return timeline.alignment.reason


class TestVote:
    def test_the_offsets_under_which_all_fit(self) -> None:
        spans = union(np.array([0, 100, 250]), np.array([10, 120, 255]))
        found = vote(spans, np.array([1_007, 1_105, 1_252]), Offset(900, 1_100))
        assert found == Offset(997, 1_002, 1.0)

    def test_only_offsets_within_the_search_count(self) -> None:
        spans = union(np.array([0]), np.array([10]))
        assert vote(spans, np.array([5]), Offset(0, 3)) == Offset(0, 3, 1.0)
        assert vote(spans, np.array([5]), Offset(20, 30)) is None
        assert vote(spans, np.array([5]), Offset(3, 2)) is None

    def test_many_pairs_are_thinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("servebench.analysis.profile.clock_offset.MOST_PAIRS", 5_000)
        truth = serve(5)
        found = vote(union(truth.starts, truth.ends), truth.arrivals + 3 * MS, Offset(-100 * MS, 100 * MS))
        assert found is not None
        assert found.low <= 3 * MS <= found.high
        assert found.high - found.low < 100 * US
