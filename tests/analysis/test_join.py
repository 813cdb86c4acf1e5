"""Samples of telemetry joined to the phase at their instants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handmade import Sent, at, facts_of, handmade, sample
from servebench.analysis import join, sampling
from servebench.analysis.data import Series
from servebench.analysis.join import Level, given_phase
from servebench.analysis.phases import PHASES
from servebench.testing.synthetic import SyntheticRun

# idle 0-100, prefill only 100-200, decode only 200-250, mixed 250-350, decode only 350-450, idle 450-1000
PAIR = [Sent(100, [200, 300, 400]), Sent(250, [350, 450])]


def powered(points: list[tuple[float, float | None]], window: tuple[float, float] = (0, 1000)) -> SyntheticRun:
    run = handmade(PAIR, window=window)
    sample(run, "nvml", "gpu-0", "power_w", points)
    return run


def test_each_sample_goes_to_the_phase_at_its_instant() -> None:
    watts = {50: 60, 99.999999: 70, 100: 300, 150: 320, 225: 200, 300: 400, 400: 220, 450: 80, 500: 90}
    facts, found = facts_of(powered(list(watts.items())))
    [table] = join.describe(facts, found)
    assert (table["source"], table["device"], table["name"], table["unit"]) == ("nvml", "gpu-0", "power_w", "W")
    assert table["given"]["idle"] == {"n": 4, "mean": 75, "p50": 70, "p95": 90}
    assert table["given"]["prefill_only"] == {"n": 2, "mean": 310, "p50": 300, "p95": 320}
    assert table["given"]["decode_only"] == {"n": 2, "mean": 210, "p50": 200, "p95": 220}
    assert table["given"]["mixed"] == {"n": 1, "mean": 400, "p50": 400, "p95": 400}
    assert table["all"]["n"] == table["n"] == 9


def test_samples_outside_the_window_and_nulls_are_left_out() -> None:
    facts, found = facts_of(powered([(50, 1.0), (260, 2.0), (270, None), (499, 3.0), (500, 4.0)], window=(200, 500)))
    [table] = join.describe(facts, found)
    assert table["n"] == 2
    assert table["given"]["prefill_only"] == {"n": 0, "mean": None, "p50": None, "p95": None}


def test_gaps_are_told_edges_included() -> None:
    facts, found = facts_of(powered([(-50, 1.0), (100, 1.0), (150, 1.0), (200, 1.0), (700, 1.0), (1100, 1.0)]))
    [table] = join.describe(facts, found)
    assert table["longest_gap_ms"] == 500
    assert table["period_ms"] == 50
    facts, found = facts_of(powered([(400, 1.0), (500, 1.0)]))
    assert join.describe(facts, found)[0]["longest_gap_ms"] == 500  # from the last sample to the end of the window


def test_counters_and_unknown_names_have_no_table_and_the_order_is_fixed() -> None:
    run = handmade(PAIR)
    for source, device, name in (
        ("server", "engine-0", "waiting"),
        ("nvml", "gpu-10", "power_w"),
        ("nvml", "gpu-2", "power_w"),
        ("nvml", "gpu-2", "energy_j"),
        ("server", "engine-0", "prompt_tokens"),
        ("server", "engine-0", "running"),
        ("host", "host", "cpu_busy_share"),
        ("client", "worker-0", "cpu_share"),
    ):
        sample(run, source, device, name, [(300, 1.0)])
    facts, found = facts_of(run)
    keys = [(t["device"], t["name"]) for t in join.describe(facts, found)]
    assert keys == [
        ("gpu-10", "power_w"),
        ("gpu-2", "power_w"),
        ("engine-0", "running"),
        ("engine-0", "waiting"),
        ("host", "cpu_busy_share"),
    ]


@given(st.lists(st.tuples(st.integers(0, 1200), st.floats(0, 1000)), max_size=40, unique_by=lambda p: p[0]))
def test_every_sample_of_the_window_is_joined_once(points: list[tuple[int, float]]) -> None:
    facts, found = facts_of(powered(list(points)))
    inside = [value for ms, value in points if ms < 1000]
    tables = join.describe(facts, found)
    assert len(tables) == bool(inside)
    for table in tables:
        levels = table["given"].values()
        assert sum(level["n"] for level in levels) == table["n"] == len(inside)
        total = sum(level["n"] * level["mean"] for level in levels if level["n"])
        assert total == pytest.approx(sum(inside), abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), max_size=30))
def test_levels_by_phase_are_those_of_the_phase_alone(points: list[tuple[int, float]]) -> None:
    values, codes = np.array([v for _, v in points]), np.array([c for c, _ in points], np.int8)
    found = given_phase(values, codes)
    assert list(found) == list(PHASES)
    for code, name in enumerate(PHASES):
        assert found[name] == Level.of(np.array([v for c, v in points if c == code]))


def test_a_value_between_samples_is_on_their_line_and_never_beyond_them() -> None:
    series = Series(np.array([at(0), at(10), at(30)], np.int64), np.array([5.0, 7.0, 3.0]))
    assert sampling.value_at(series, at(5)) == 6
    assert sampling.value_at(series, at(20)) == 5
    assert sampling.value_at(series, at(30)) == 3
    assert sampling.value_at(series, at(30) + 1) is None
    assert sampling.value_at(series, at(0) - 1) is None


def test_telemetry_tells_what_was_sampled_and_what_was_not() -> None:
    run = powered([(ms, 1.0) for ms in range(0, 1001, 50)])
    run.manifest["telemetry"] = {
        "cpu_share": 0.0041,
        "sources": {
            "nvml": {"state": "sampled", "reason": None, "samples": 21, "asked_hz": 20.0},
            "server": {"state": "absent", "reason": "the server has no /metrics"},
        },
    }
    facts, _ = facts_of(run)
    section = sampling.describe(facts)
    assert (section["reason"], section["cpu_share"]) == (None, 0.0041)
    nvml, server = section["sources"]["nvml"], section["sources"]["server"]
    assert (nvml["series"], nvml["rows"], nvml["longest_gap_ms"], nvml["asked_hz"]) == (1, 21, 50, 20.0)
    assert (server["state"], server["reason"], server["rows"]) == ("absent", "the server has no /metrics", 0)
    assert server["longest_gap_ms"] is None
    assert "client" not in section["sources"]


@pytest.mark.parametrize("told", [None, {"sources": {}, "reason": "switched off"}])
def test_no_telemetry_has_a_reason(told: dict[str, object] | None) -> None:
    facts, _ = facts_of(handmade(PAIR, telemetry=told))
    assert sampling.describe(facts)["reason"] == ("switched off" if told else "no telemetry was asked for")
