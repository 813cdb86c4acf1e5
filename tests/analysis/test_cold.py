"""The cold start: its stages, and the second from which the server was what it was in the measured window."""

from typing import Any

import numpy as np
import pytest

from handmade import Sent, at, facts_of, handmade
from servebench.analysis import cold
from servebench.testing.synthetic import SyntheticRun, open_run

LAUNCH = {
    "launch_ns": at(-20_000),
    "listening_ns": at(-5_000),
    "ready_ns": at(-4_000),
    "first_request_ns": at(-3_900),
    "first_token_ns": at(-2_000),
    "ready_s": 16.0,
    "first_token_s": 18.0,
    "first_request_s": 1.9,
}


def section(run: SyntheticRun) -> dict[str, Any]:
    return cold.describe(facts_of(run)[0])


def slow_start(seconds: float, warmup: float = 10) -> SyntheticRun:
    """TTFT of 200 ms for so many seconds, then 50 ms; 30 s in all."""

    def ttft(due: Any, rng: np.random.Generator) -> Any:
        return np.where(due < seconds, 0.200, 0.050) * rng.uniform(0.95, 1.05, due.size)

    return open_run(requests=600, rate=20, warmup=warmup, cooldown=0, tokens=2, ttft=ttft)


def test_stages_count_from_the_launch_and_from_each_other() -> None:
    found = section(handmade([Sent(0, [10])], cold_start=LAUNCH))
    assert [(s["name"], s["at_ms"], s["took_ms"]) for s in found["stages"]] == [
        ("listening", 15_000, 15_000),
        ("ready", 16_000, 1_000),
        ("first_request", 16_100, 100),
        ("first_token", 18_000, 1_900),
        ("load", 20_000, 2_000),
    ]
    assert found["reason"] is None
    assert found["ready_s"] == 16.0  # what the manifest says stays readable


def test_stages_that_were_not_told_are_left_out() -> None:
    told = {"launch_ns": LAUNCH["launch_ns"], "ready_ns": LAUNCH["ready_ns"]}
    found = section(handmade([Sent(0, [10])], cold_start=told))
    assert [(s["name"], s["took_ms"]) for s in found["stages"]] == [("ready", 16_000), ("load", 4_000)]


def test_the_engines_log_is_carried() -> None:
    found = section(handmade([Sent(0, [10])], cold_start=LAUNCH | {"log": {"weights_s": 3.2}}))
    assert found["log"] == {"weights_s": 3.2}


def test_a_server_that_was_there_has_no_stages_but_a_stable_second() -> None:
    found = section(slow_start(0))
    assert (found["reason"], found["stages"], found["log"]) == ("the server was not started by this run", [], None)
    assert found["stable"]["after_load_start_ms"] == 0
    assert found["stable"]["after_launch_ms"] is None


@pytest.mark.parametrize("seconds", [1, 3, 7])
def test_the_stable_second_is_when_the_slow_start_ends(seconds: int) -> None:
    run = slow_start(seconds)
    run.manifest["cold_start"] = LAUNCH
    stable = section(run)["stable"]
    assert stable["after_load_start_ms"] == 1000 * seconds
    assert stable["after_launch_ms"] == 20_000 + 1000 * seconds
    assert stable["resolution_ms"] == 1000
    assert stable["window_median_ms"] == pytest.approx(50, rel=0.05)
    assert stable["reason"] is None


def test_a_noisy_ttft_takes_longer_stretches() -> None:
    noisy = open_run(
        requests=900,
        rate=30,
        tokens=2,
        warmup=5,
        cooldown=0,
        ttft=lambda due, rng: 0.05 * rng.lognormal(0, 0.6, due.size),
    )
    stable = section(noisy)["stable"]
    assert stable["resolution_ms"] > 1000
    assert stable["after_load_start_ms"] is not None


def test_a_ttft_that_never_settles_has_a_reason() -> None:
    growing = open_run(requests=600, rate=20, tokens=2, warmup=5, cooldown=0, ttft=lambda due, rng: 0.01 + 0.1 * due)
    stable = section(growing)["stable"]
    assert (stable["after_load_start_ms"], stable["resolution_ms"]) == (None, None)
    assert "moves by more than 20 %" in stable["reason"]


def test_classes_are_compared_with_their_own_kind() -> None:
    run = slow_start(3)
    long = {r.index for r in run.records if r.index % 2}
    for record in run.records:
        if record.index in long:
            late = 900_000_000 if record.scheduled_ns < at(3000) else 400_000_000
            assert record.first_token_ns is not None and record.last_token_ns is not None
            record.class_id, record.first_token_ns = 1, record.first_token_ns + late
            record.last_token_ns += late
            arrival, tokens = run.chunks[record.index]
            run.chunks[record.index] = arrival + late, tokens
    assert section(run)["stable"]["after_load_start_ms"] == 3000


def test_without_any_first_token_there_is_no_stable_second() -> None:
    stable = section(handmade([Sent(100)]))["stable"]
    assert stable["after_load_start_ms"] is None
    assert stable["reason"] == "no request of the measured window has a first token"
