"""Energy over the measured window: counter, integral, idle baseline, and the gate before any J per token."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handmade import Sent, at, facts_of, handmade, sample
from servebench.analysis import energy, gpus
from servebench.analysis.data import Series
from servebench.testing.synthetic import SyntheticRun

# idle 0-1000, prefill only to 2000, decode only to 4000, idle from there on; 5 tokens, 1 request
ONE = [Sent(1000, [2000, 2500, 3000, 3500, 4000])]
STEP = 50


def watts(ms: float) -> float:
    """100 W while idle, then a ramp from 100 to 500 W, then 300 W."""
    return 100 + 400 * (ms - 1000) / 1000 if 1000 <= ms < 2000 else 300 if 2000 <= ms < 4000 else 100


MILLIJOULES = 5000e3 + np.concatenate([[0], np.cumsum([watts(ms + 0.5) for ms in range(-1000, 6000)])])


def joules(ms: int) -> float:
    """What the counter shows: the integral of `watts` since −1 s, plus what was there before."""
    return float(MILLIJOULES[ms + 1000]) / 1e3


def powered(
    window: tuple[float, float] = (500, 4500), gpu: str = "gpu-0", skip: tuple[float, float] = (0, 0), **manifest: Any
) -> SyntheticRun:
    run = handmade(ONE, window=window, end=5000, **manifest)
    add_gpu(run, gpu, skip)
    return run


def add_gpu(run: SyntheticRun, gpu: str, skip: tuple[float, float] = (0, 0), source: str = "nvml") -> None:
    times = [ms for ms in range(-1000, 6001, STEP) if not skip[0] < ms < skip[1]]
    sample(run, source, gpu, "power_w", [(ms, watts(ms)) for ms in times])
    sample(run, source, gpu, "energy_j", [(ms, joules(ms)) for ms in times])
    sample(run, source, gpu, "util_gpu", [(ms, 90.0 if 1000 <= ms < 4000 else 0.0) for ms in times])


def told(*devices: dict[str, Any], source: str = "nvml", **more: Any) -> dict[str, Any]:
    return {"sources": {source: {"state": "sampled", "reason": None, "devices": list(devices), **more}}}


USED = {
    "index": 0,
    "uuid": "GPU-a",
    "name": "NVIDIA H200",
    "server_uses": True,
    "server_uses_reason": "a process of it",
}
SPARE = {"index": 1, "uuid": "GPU-b", "name": "NVIDIA H200", "server_uses": False, "server_uses_reason": "none on it"}


def section(run: SyntheticRun) -> dict[str, Any]:
    return energy.describe(*facts_of(run))


def test_a_scripted_ramp_by_hand() -> None:
    found = section(powered(telemetry=told(USED)))
    # 0.5 s of 100 W, a ramp of 1 s from 100 to 500 W, 2 s of 300 W, 0.5 s of 100 W
    expected = 50 + 300 + 600 + 50
    assert found["energy_j"] == pytest.approx(expected, rel=1e-3)
    assert found["gpus"][0]["integral_j"] == pytest.approx(expected, rel=0.02)  # power jumps within a sample's time
    assert found["mean_w"] == pytest.approx(expected / 4, rel=1e-3)
    assert (found["valid"], found["reason"], found["basis"]) == (True, None, "counter")
    assert (found["output_tokens"], found["requests"]) == (5, 1)
    assert found["j_per_output_token"] == pytest.approx(expected / 5, rel=1e-3)
    assert found["j_per_request"] == pytest.approx(expected, rel=1e-3)
    assert found["idle_w"] == 100
    assert found["above_idle_j"] == pytest.approx(expected - 400, rel=3e-3)
    assert found["j_per_output_token_above_idle"] == pytest.approx((expected - 400) / 5, rel=3e-3)


def test_the_edges_are_interpolated() -> None:
    """A window that begins and ends between two samples of a linear counter is exact."""
    run = handmade(ONE, window=(510, 4490), telemetry=told(USED))
    sample(run, "nvml", "gpu-0", "energy_j", [(ms, 0.2 * ms) for ms in range(0, 5001, 100)])
    sample(run, "nvml", "gpu-0", "power_w", [(ms, 200.0) for ms in range(0, 5001, 100)])
    found = section(run)
    assert found["energy_j"] == pytest.approx(0.2 * 3980)
    assert found["gpus"][0]["integral_j"] == pytest.approx(0.2 * 3980)
    assert found["gpus"][0]["difference_share"] == pytest.approx(0, abs=1e-6)


@given(st.floats(0, 500), st.floats(-0.1, 0.5), st.integers(0, 2000), st.integers(1, 3000), st.integers(20, 400))
def test_the_integral_of_a_line_is_exact(base: float, slope: float, start: int, length: int, step: int) -> None:
    times = np.arange(-step, 5000 + 2 * step, step)
    power = Series(np.array([at(float(ms)) for ms in times]), base + slope * times)
    joules, reason = energy.power_integral(power, at(start), at(start + length))
    exact = (base * length + slope * (start * length + length * length / 2)) / 1e3
    assert reason is None
    assert joules == pytest.approx(exact, rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(0, 50), min_size=12, max_size=12), st.integers(0, 900), st.integers(1, 100))
def test_differences_of_neighbouring_windows_add_up(steps: list[float], start: int, length: int) -> None:
    counter = Series(np.array([at(100.0 * k) for k in range(12)]), np.cumsum(steps))
    cuts = [at(start), at(start + length), at(start + 2 * length)]
    parts = [energy.counter_difference(counter, a, b)[0] for a, b in pairwise(cuts)]
    whole = energy.counter_difference(counter, cuts[0], cuts[-1])[0]
    assert sum(part for part in parts if part is not None) == pytest.approx(whole, abs=1e-6)


def test_without_any_gpu_the_sampler_says_why() -> None:
    run = handmade(ONE, telemetry={"sources": {"nvml": {"state": "absent", "reason": "no NVIDIA driver"}}})
    found = section(run)
    assert (found["valid"], found["gpus"], found["energy_j"]) == (False, [], None)
    assert found["reason"] == "no GPU was sampled: no NVIDIA driver"
    assert section(handmade(ONE))["reason"] == "no GPU was sampled: not sampled in this run"


def test_a_long_gap_closes_the_gate_but_leaves_the_counter() -> None:
    found = section(powered(skip=(2000, 4000), telemetry=told(USED)))
    assert not found["valid"]
    assert found["reason"] == "gpu-0: 2000 ms without a sample in the window, of 1000 ms allowed"
    assert found["energy_j"] == pytest.approx(1000, rel=1e-3)
    assert (found["j_per_output_token"], found["j_per_request"]) == (None, None)
    assert found["gpus"][0]["longest_gap_ms"] == 2000


def test_a_slow_sampler_may_have_longer_gaps() -> None:
    run = handmade(ONE, window=(500, 4500), telemetry=told(USED))
    sample(run, "nvml", "gpu-0", "energy_j", [(ms, 0.1 * ms) for ms in range(0, 6001, 1000)])
    found = section(run)
    assert found["valid"]
    assert (found["gpus"][0]["limit_gap_ms"], found["gpus"][0]["longest_gap_ms"]) == (3000, 1000)


@pytest.mark.parametrize(("first", "last"), [(600, 6000), (0, 4400)])
def test_a_window_that_is_not_bracketed_has_no_energy(first: int, last: int) -> None:
    run = handmade(ONE, window=(500, 4500), telemetry=told(USED))
    for name in ("energy_j", "power_w"):
        sample(run, "nvml", "gpu-0", name, [(ms, 1.0 * ms) for ms in range(first, last + 1, 50)])
    found = section(run)
    assert (found["valid"], found["energy_j"], found["basis"]) == (False, None, None)
    assert "do not bracket the window" in found["reason"]


def test_a_counter_that_went_back_is_not_believed_and_the_integral_stands_in() -> None:
    run = powered(telemetry=told(USED))
    run.samples = [(s, d, n, t, 0.0 if n == "energy_j" and t > at(3000) else v) for s, d, n, t, v in run.samples]
    found = section(run)
    assert (found["basis"], found["valid"]) == ("integral", True)
    assert "went back" in found["gpus"][0]["counter_reason"]
    assert found["energy_j"] == pytest.approx(1000, rel=0.02)


def test_averaged_power_is_named_where_there_is_no_instant_one() -> None:
    run = handmade(ONE, window=(500, 4500), telemetry=told(USED))
    sample(run, "nvml", "gpu-0", "power_avg_w", [(ms, 250.0) for ms in range(0, 6001, 50)])
    found = section(run)
    assert (found["basis"], found["gpus"][0]["power_name"]) == ("integral", "power_avg_w")
    assert found["energy_j"] == pytest.approx(1000)


def test_only_the_gpus_that_the_server_used_count() -> None:
    run = powered(telemetry=told(USED, SPARE))
    add_gpu(run, "gpu-1")
    found = section(run)
    assert [(g["device"], g["used"], g["how"]) for g in found["gpus"]] == [
        ("gpu-0", True, "processes"),
        ("gpu-1", False, "processes"),
    ]
    assert found["energy_j"] == pytest.approx(1000, rel=1e-3)


def test_two_used_gpus_are_added() -> None:
    run = powered(telemetry=told(USED, SPARE | {"server_uses": True}))
    add_gpu(run, "gpu-1")
    found = section(run)
    assert found["energy_j"] == pytest.approx(2000, rel=1e-3)
    assert found["idle_w"] == 200


def test_one_used_gpu_without_samples_leaves_no_sum() -> None:
    run = powered(telemetry=told(USED, SPARE | {"server_uses": True}))
    sample(run, "nvml", "gpu-1", "util_gpu", [(ms, 90.0) for ms in range(0, 5001, 50)])
    found = section(run)
    assert (found["valid"], found["energy_j"]) == (False, None)
    assert found["reason"].startswith("gpu-1: the driver has no energy counter, no power was sampled")


@pytest.mark.parametrize("named", [[0], ["GPU-a"], ["gpu-0"]])
def test_the_manifest_may_name_the_gpus(named: list[object]) -> None:
    run = powered(telemetry=told(USED | {"server_uses": False}, SPARE), server_identity={"gpus": named})
    add_gpu(run, "gpu-1")
    found = section(run)
    assert [(g["used"], g["how"]) for g in found["gpus"]] == [(True, "manifest"), (False, "manifest")]
    assert found["valid"]


def test_unknown_and_unused_gpus_close_the_gate() -> None:
    run = powered(telemetry=told(USED | {"server_uses": None}, SPARE | {"server_uses": None}))
    add_gpu(run, "gpu-1")
    assert section(run)["reason"] == "it is not known which GPUs the server used"
    assert section(powered(telemetry=told(SPARE | {"index": 0})))["reason"] == (
        "the server used none of the sampled GPUs"
    )


def test_the_only_gpu_is_taken_for_the_servers_when_it_worked_beside_it() -> None:
    found = section(powered())
    assert (found["gpus"][0]["used"], found["gpus"][0]["how"]) == (True, "assumed")
    assert found["gpus"][0]["why"] == gpus.ASSUMED


@pytest.mark.parametrize(
    "manifest",
    [{"simulated": True}, {"endpoint": {"url": "http://10.0.0.1:8000"}}],
    ids=["simulated", "another machine"],
)
def test_the_only_gpu_is_nobodys_elsewhere(manifest: dict[str, Any]) -> None:
    assert section(powered(**manifest))["gpus"][0]["used"] is None


def test_an_idle_gpu_is_not_assumed_to_be_the_servers() -> None:
    run = handmade(ONE, window=(500, 4500))
    sample(run, "nvml", "gpu-0", "util_gpu", [(ms, 1.0) for ms in range(0, 5001, 50)])
    assert section(run)["gpus"][0]["used"] is None


def test_a_gpu_of_another_machine_is_known_by_the_name_of_its_rows() -> None:
    device = {"index": 0, "device": "far/gpu-0", "name": "NVIDIA L4", "server_uses": True}
    run = handmade(ONE, window=(500, 4500), telemetry=told(device, source="remote"))
    run.manifest["endpoint"]["url"] = "http://far:8000"
    add_gpu(run, "far/gpu-0", source="remote")
    found = section(run)
    assert [(g["source"], g["device"], g["name"]) for g in found["gpus"]] == [("remote", "far/gpu-0", "NVIDIA L4")]
    assert found["energy_j"] == pytest.approx(1000, rel=1e-3)


def test_no_tokens_no_division() -> None:
    found = section(powered(window=(0, 900), telemetry=told(USED)))
    assert found["valid"]
    assert (found["output_tokens"], found["j_per_output_token"]) == (0, None)
    assert found["energy_j"] == pytest.approx(90)
