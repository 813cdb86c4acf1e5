"""Steps of an engine: found by name, each once, with what they gave the devices to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profile_timelines import PROCESS, Made, at, vllm
from servebench.analysis.profile.step_names import KINDS, Named, parse
from servebench.analysis.profile.step_table import describe
from servebench.analysis.profile.stepping import PAUSE_NS, Steps, find_steps
from servebench.errors import UsageError
from servebench.profile.intervals import union
from servebench.profile.timeline import NONE, Kind, Timeline
from servebench.testing.synthetic import MS

SPAN = at(-100), at(2000)
DECODE, PREFILL, MIXED = vllm(0, 0, 8), vllm(1, 512, 0), vllm(2, 700, 6)


def steps_of(made: Made, start: float = 0, end: float = 1000, pattern: str | None = None) -> Steps:
    return find_steps(made.timeline(span=SPAN), at(start), at(end), pattern)


def ms(values: np.ndarray) -> list[float]:
    return [NONE if v == NONE else v / MS for v in values.tolist()]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (DECODE, Named("decode_only", 0, 0, 8, 8)),
        (PREFILL, Named("prefill_only", 1, 512, 0, 0)),
        (MIXED, Named("mixed", 2, 700, 6, 6)),
        (vllm(0, 0, 0), Named("idle", 0, 0, 0, 0)),
        (vllm(0, 0, 3, 12), Named("decode_only", 0, 0, 3, 12)),  # speculative: more tokens than requests
        (
            "execute_519_context_2(sq512sk900sqsq131072sqsk99)_generation_7(sq7sk812sqsq7sqsk812)",
            Named("mixed", 2, 512, 7, 7),
        ),
        (f"{DECODE}_suffix", Named("decode_only", 0, 0, 8, 8)),
        ("step[DECODE bs=63]", Named("decode_only", 0, 0, 63, NONE)),
        ("step[DECODE bs=64 g_sk=580480]", Named("decode_only", 0, 0, 64, NONE)),
        ("step[EXTEND bs=2 toks=1018]", Named("prefill_only", 2, 1018, 0, 0)),
        ("step[MIXED bs=2]", Named("mixed")),
        ("step[IDLE bs=0]", Named("idle")),
        ("step[DRAFT_EXTEND_V2 bs=2]", None),
        ("step[WHATEVER bs=2]", None),
        ("execute_model", None),
        ("execute_context_1(2)_generation_", None),
        ("", None),
    ],
)
def test_names(name: str, found: Named | None) -> None:
    assert parse(name) == found


def test_steps_have_the_kind_and_the_numbers_of_their_names() -> None:
    made = Made()
    for k, name in enumerate((PREFILL, MIXED, DECODE, vllm(0, 0, 0))):
        made.range(name, 10 * k, 10 * k + 8)
    found = steps_of(made)
    assert [KINDS[k] for k in found.kind] == ["prefill_only", "mixed", "decode_only", "idle"]
    assert found.context_tokens.tolist() == [512, 700, 0, 0]
    assert found.generation_requests.tolist() == [0, 6, 8, 0]
    assert ms(found.duration) == [8, 8, 8, 8]
    assert ms(found.period) == [10, 10, 10, NONE]
    assert ms(found.time) == [10, 10, 10, 8]
    assert (found.found_by, found.reason, found.work_by) == ("names", None, None)
    assert set(found.busy.tolist()) == set(found.idle.tolist()) == {NONE}  # no device, so nothing is known of it


def test_a_step_cut_by_an_edge_is_dropped_and_counted() -> None:
    made = Made()
    for k in range(5):
        made.range(DECODE, 10 * k, 10 * k + 8)
    found = steps_of(made, start=5, end=45)
    assert (len(found), found.truncated) == (3, 2)
    assert ms(found.period) == [10, 10, 10]  # the cut one still tells when it began
    found = steps_of(made, start=2, end=7)
    assert (len(found), found.truncated, found.found_by) == (0, 1, "none")
    assert found.reason == "no whole step lies in the window (1 cut by its edges)"


def test_a_step_that_ends_with_the_capture_was_still_open() -> None:
    made = Made()
    for k in range(3):
        made.range(DECODE, 10 * k, 10 * k + 8)
    found = find_steps(made.timeline(), at(0), at(1000))  # its span ends with the last row
    assert (len(found), found.truncated) == (2, 1)


def test_a_last_step_without_length_was_still_open() -> None:
    made = Made()
    for k in range(3):
        made.range(DECODE, 10 * k, 10 * k + (9 if k < 2 else 0))
    found = steps_of(made)
    assert (len(found), found.truncated) == (2, 1)


def test_annotations_repeated_on_the_device_count_once() -> None:
    made = Made()
    for k in range(3):
        made.range(DECODE, 10 * k, 10 * k + 4)
        for stream in (7, 8):
            made.range(DECODE, 10 * k + 3, 10 * k + 9 + stream / 10, device=0, stream=stream, thread=NONE)
        made.range(DECODE, 10 * k + 1, 10 * k + 3)  # a second annotator's, inside the first one's
    found = steps_of(made)
    assert ms(found.duration) == [4, 4, 4]


def test_where_only_the_device_has_annotations_they_are_steps() -> None:
    made = Made()
    for k in range(3):
        made.range("step[DECODE bs=2]", 10 * k, 10 * k + 9.5, device=0, stream=7, thread=NONE)
        made.range("step[DECODE bs=2]", 10 * k + 1, 10 * k + 9.8, device=0, stream=8, thread=NONE)  # the same step
    assert ms(steps_of(made).duration) == [9.5, 9.5, 9.5]


def test_steps_that_merely_touch_a_little_are_not_the_same() -> None:
    made = Made()
    for k in range(4):
        made.range("step[DECODE bs=2]", 9 * k, 9 * k + 10, device=0, stream=7, thread=NONE)
    assert len(steps_of(made)) == 4


def test_each_worker_process_has_steps_of_its_own() -> None:
    made = Made()
    for process in (1, 2):
        for k in range(4):
            made.range(DECODE, 10 * k + process, 10 * k + 5 + process, process=process)
    found = steps_of(made)
    assert found.process.tolist() == [1] * 4 + [2] * 4
    assert ms(found.period) == [10, 10, 10, NONE] * 2
    document = describe(found)
    assert (document["n"], document["processes"]) == (8, 2)
    assert found.spans(2).total == 35 * MS


def test_a_pause_is_no_part_of_a_step() -> None:
    made = Made()
    for start in (0, 10, 10 + 8 + PAUSE_NS / MS + 1):
        made.range(DECODE, start, start + 8)
    found = steps_of(made)
    assert ms(found.period) == [10, NONE, NONE]
    assert ms(found.time) == [10, 8, 8]


def test_device_time_belongs_to_the_step_that_launched_it() -> None:
    """Asynchronous: every range is over after 2 ms, and what it launched runs while the next one is being prepared."""
    made = Made()
    for k in range(4):
        made.range(DECODE, 10 * k, 10 * k + 2)
        made.kernel("a", 10 * k + 11, 10 * k + 14, launch=10 * k + 1)
        made.kernel("b", 10 * k + 12, 10 * k + 17, launch=10 * k + 1.5, stream=8)
        made.kernel("sample", 10 * k + 18, 10 * k + 19, launch=10 * k + 3)  # after the range, before the next step
    found = steps_of(made)
    assert found.work_by == "launch"
    assert ms(found.busy) == [7, 7, 7, 7]  # 11 to 17 and 18 to 19: two streams do not count twice
    assert ms(found.idle) == [3, 3, 3, NONE]
    assert ms(found.duration) == [2, 2, 2, 2]
    assert ms(found.until - found.start) == [19, 19, 19, 19]


def test_correlations_repeat_across_processes() -> None:
    made = Made()
    for process in (1, 2):
        for k in range(2):
            made.range(DECODE, 10 * k, 10 * k + 5, process=process)
            call = {"process": process, "correlation": k}
            made.add(Kind.API, "launch", 10 * k + 1, 10 * k + 1.1, thread=9, **call)
            made.add(Kind.COMPUTE, "k", 10 * k + 2, 10 * k + 2 + process, device=process, stream=1, **call)
    found = steps_of(made)
    assert ms(found.busy) == [1, 1, 2, 2]
    assert found.kernels.tolist() == [1] * 4


def test_without_launches_device_time_goes_by_when_it_ran() -> None:
    made = Made()
    for k in range(3):
        made.range(DECODE, 10 * k, 10 * k + 5)
        made.kernel("a", 10 * k + 2, 10 * k + 6)
    found = steps_of(made)
    assert (found.work_by, ms(found.busy)) == ("time", [4, 4, 4])


def test_work_that_no_step_launched_is_no_step_s() -> None:
    made = Made()
    made.kernel("before", 1, 4, launch=0.5)
    made.range(DECODE, 5, 9)
    made.kernel("inside", 6, 7, launch=5.5)
    assert ms(steps_of(made).busy) == [1]


def test_what_is_launched_as_a_step_begins_is_its_own() -> None:
    made = Made()
    made.range(DECODE, 0, 10)
    made.range(DECODE, 10, 20)
    made.kernel("k", 11, 14, launch=10)
    assert ms(steps_of(made).busy) == [0, 3]


def test_what_is_launched_long_after_a_step_is_no_step_s() -> None:
    made = Made()
    for k in range(3):
        made.range(DECODE, 10 * k, 10 * k + 9)
        made.kernel("gemm", 10 * k + 2, 10 * k + 8, launch=10 * k + 1)
    made.kernel("sampler", 29.5, 31, launch=29.2)  # the step's, though its annotation is over
    for at_ms in range(100, 400, 10):
        made.kernel("dummy batch", at_ms, at_ms + 9, launch=at_ms - 1)
    found = steps_of(made)
    assert ms(found.busy) == [6, 6, 7.5]
    assert ms(found.time) == [10, 10, 11]
    assert found.kernels.tolist() == [1, 1, 2]


def test_a_user_s_pattern() -> None:
    made = Made()
    made.range("forward 0 of 3", 0, 5)
    made.range("batch ctx=2 gen=1 tokens=900", 10, 15)
    made.range("batch ctx=0 gen=4 tokens=0", 20, 25)
    assert len(steps_of(made, pattern=r"^forward \d+")) == 1
    assert KINDS[steps_of(made, pattern="^forward").kind[0]] == "unknown"
    pattern = r"ctx=(?P<context_requests>\d+) gen=(?P<generation_requests>\d+) tokens=(?P<context_tokens>\d+)"
    found = steps_of(made, pattern=pattern)
    assert found.found_by == "pattern"
    assert [KINDS[k] for k in found.kind] == ["mixed", "decode_only"]
    assert found.context_tokens.tolist() == [900, 0]
    none = steps_of(made, pattern="nothing")
    assert (len(none), none.found_by) == (0, "none")
    assert none.reason == 'no annotation or operator matches "nothing"'


def test_steps_that_the_file_marks_are_steps_where_no_engine_s_names_are_known() -> None:
    made = Made()
    for k in range(4):
        made.range("train", 10 * k, 10 * k + 8)
        made.range("other", 10 * k + 1, 10 * k + 3)
    timeline = replace(made.timeline(span=SPAN), facts={"step_names": ["train"]})
    steps = find_steps(timeline, at(0), at(1000))
    assert (steps.found_by, len(steps)) == ("names", 4)
    assert {KINDS[k] for k in steps.kind} == {"unknown"}
    assert not len(find_steps(made.timeline(span=SPAN), at(0), at(1000)))


def test_a_pattern_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no regular expression"):
        steps_of(Made(), pattern="(")


def test_without_names_there_is_a_reason() -> None:
    made = Made()
    made.range("something else", 0, 5)
    found = steps_of(made)
    assert (len(found), found.found_by) == (0, "none")
    assert "pattern" in (found.reason or "")
    assert describe(found)["kinds"] == []
    assert len(steps_of(Made())) == 0


def test_the_table_is_nearest_rank() -> None:
    made = Made()
    start = 0.0
    for length in (5, 1, 4, 2, 3):
        made.range(DECODE, start, start + length)
        start += 10
    for length in (7, 9):
        made.range(PREFILL, start, start + length)
        start += 10
    document = describe(steps_of(made))
    prefill, decode = document["kinds"]
    assert (prefill["kind"], prefill["n"], prefill["context_tokens_mean"]) == ("prefill_only", 2, 512)
    assert [decode[key] for key in ("kind", "n", "mean", "p50", "p95", "max")] == ["decode_only", 5, 3, 3, 5, 5]
    assert decode["period"] == {"n": 5, "mean": 10, "p50": 10, "p95": 10, "max": 10}
    assert (prefill["period"]["n"], decode["busy_p50"], decode["idle_p50"]) == (1, None, None)
    assert decode["generation_requests_mean"] == 8


@st.composite
def captures(draw: st.DrawFn) -> Timeline:
    """Steps of one process, and kernels launched at any time that run at any later time, on two streams."""
    made = Made()
    start = 0.0
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 8))
        made.range(DECODE, start, start + length)
        start += length + draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 12))):
        launch = draw(st.integers(-3, int(start) + 3)) + 0.25
        begin = launch + draw(st.integers(0, 20))
        made.kernel("k", begin, begin + draw(st.integers(0, 9)), launch, stream=draw(st.integers(1, 2)))
    return made.timeline(span=SPAN)


@given(captures())
def test_busy_is_the_union_of_what_was_launched_in_the_step(timeline: Timeline) -> None:
    found = find_steps(timeline, at(-100), at(1000))
    assert len(found) == int((timeline.kind == Kind.RANGE).sum())
    calls = {(int(c), int(p)): int(s) for c, p, s in zip(*_calls(timeline), strict=True)}
    edges = [*found.start.tolist(), np.iinfo(np.int64).max]
    for k in range(len(found)):
        rows = [
            row
            for row in np.flatnonzero(timeline.on_device)
            if edges[k] <= calls[int(timeline.correlation[row]), PROCESS] < edges[k + 1]
        ]
        assert found.busy[k] == union(timeline.start[rows], timeline.end[rows]).total


def _calls(timeline: Timeline) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = timeline.kind == Kind.API
    return timeline.correlation[rows], timeline.process[rows], timeline.start[rows]
