"""What a faster part is worth: rows that match the arithmetic on paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profile_timelines import Made, at, vllm
from servebench.analysis.profile import amdahl, hot_parts
from servebench.analysis.profile.amdahl import Part
from servebench.analysis.profile.operators import find_operators
from servebench.analysis.profile.stepping import find_steps
from servebench.profile.timeline import Timeline
from servebench.testing.synthetic import MS

SPAN = at(-100), at(2000)


def test_a_fifth_of_the_step_30_percent_faster_gives_0_94() -> None:
    rows = amdahl.describe([Part("gemm", "device", 20)], 100, 10 * MS, 12 * MS)
    assert rows[1] == {
        "what": "gemm",
        "where": "device",
        "share": 0.2,
        "change": "-30 %",
        "factor": 0.7,
        "step_ratio": 0.94,
        "step_ms": [10, 9.4],
        "tpot_ms": [12, 11.4],  # what the client waits beyond the step is not the kernel's to save
    }
    assert (rows[0]["change"], rows[0]["factor"], rows[0]["step_ratio"]) == ("2x", 0.5, 0.9)
    assert rows[0]["step_ms"] == [10, 9]


def test_without_steps_or_a_client_there_are_shares_only() -> None:
    rows = amdahl.describe([Part("gemm", "device", 20)], 100, None)
    assert [row["step_ms"] for row in rows] == [row["tpot_ms"] for row in rows] == [None, None]
    assert amdahl.describe([Part("gemm", "device", 20)], 0, None) == []
    assert amdahl.describe([Part("hidden", "device", 0)], 100, None) == []
    assert len(amdahl.describe([Part(str(k), "host", 9 - k) for k in range(9)], 100, None)) == 2 * amdahl.TOP


@given(st.integers(1, 1000), st.integers(1, 1000), st.floats(1.0, 1e9))
def test_the_law(ns: int, more: int, step: float) -> None:
    total = ns + more
    for row in amdahl.describe([Part("k", "device", ns)], total, step):
        share = ns / total
        assert row["step_ratio"] == pytest.approx(1 - share * (1 - row["factor"]), abs=1e-6)
        assert row["factor"] <= row["step_ratio"] <= 1


def hidden() -> Timeline:
    """Four steps of 10 ms. gemm [1, 5) with copy [2, 3) and small [4, 6) on another stream; outside: gemm alone."""
    made = Made()
    for k in range(5):
        at_ = 10 * k
        made.range(vllm(0, 0, 4), at_, at_ + 8)
        made.kernel("gemm", at_ + 1, at_ + 5, launch=at_ + 0.5)
        made.kernel("copy", at_ + 2, at_ + 3, launch=at_ + 0.6, stream=8)
        made.kernel("small", at_ + 4, at_ + 6, launch=at_ + 0.7, stream=8)
    return made.timeline(span=SPAN)


def test_only_exposed_time_within_the_steps_counts() -> None:
    timeline = hidden()
    window = at(0), at(39)  # the last step is not in it, nor its kernels in the time of the others
    steps = find_steps(timeline, *window)
    parts, total = hot_parts.kernels(timeline, steps, *window)
    # steps 0 to 2 and 3 from 30 to 39: gemm is alone from 1 to 2 and 3 to 4, small from 5 to 6, copy never
    assert parts == [Part("gemm", "device", 8 * MS), Part("small", "device", 4 * MS)]
    assert total == 39 * MS
    rows = amdahl.describe(parts, total, float(steps.time.mean()))
    assert rows[0]["share"] == pytest.approx(8 / 39, abs=1e-6)
    assert rows[0]["step_ms"] == [10, pytest.approx(10 * (1 - 4 / 39), abs=1e-6)]


def test_two_devices_count_with_their_own_processes_steps() -> None:
    made = Made()
    for device, process in ((0, 1), (1, 2)):
        for k in range(3):
            made.range(vllm(0, 0, 4), 10 * k, 10 * k + 9, process=process)
            made.kernel("gemm", 10 * k + 1, 10 * k + 2 + 2 * device, launch=10 * k, process=process, device=device)
    timeline = made.timeline(span=SPAN)
    steps = find_steps(timeline, at(0), at(30))
    parts, total = hot_parts.kernels(timeline, steps, at(0), at(30))
    assert parts == [Part("gemm", "device", (3 * 1 + 3 * 3) * MS)]
    assert total == 2 * 29 * MS  # the last step ends with its work, for none follows


def test_without_steps_the_window_counts() -> None:
    made = Made()
    made.kernel("gemm", 0, 5)
    made.kernel("gemm", 6, 10)
    timeline = made.timeline(span=SPAN)
    steps = find_steps(timeline, at(0), at(20))
    assert hot_parts.kernels(timeline, steps, at(0), at(20)) == ([Part("gemm", "device", 9 * MS)], 20 * MS)


def test_operators_count_with_their_own_time() -> None:
    made = Made()
    made.range(vllm(0, 0, 4), 0, 10)
    made.operator("linear", 0, 8)
    made.operator("mm", 1, 7)
    timeline = made.timeline(span=SPAN)
    found = find_operators(timeline, find_steps(timeline, at(0), at(20)), at(0), at(20))
    assert hot_parts.of_operators(found) == (
        [Part("mm", "host", 6 * MS), Part("linear", "host", 2 * MS)],
        10 * MS,
    )
    assert hot_parts.of_operators(None) == ([], 0)
