import itertools
from contextlib import contextmanager

import pytest

from servebench.telemetry.nvml import NvmlSource
from servebench.telemetry.source import SourceAbsent, SourceLoop
from servebench.testing.nvml_stub import StubClock, StubError, StubGpu, StubMachine, install

UNKNOWN, NO_PERMISSION, GPU_IS_LOST = 999, 4, 15


@contextmanager
def sampled(tmp_path, *gpus):
    """An open source with its clock stopped at 0 s."""
    library = install(StubMachine(gpus=gpus), tmp_path)
    clock = StubClock(library)
    source = NvmlSource(20, library, clock=clock)
    source.open()
    clock.set(0)
    try:
        yield source, clock
    finally:
        source.close()


def values(readings, device="gpu-0"):
    return {name: value for where, name, value, *_ in readings if where == device}


def beats(source, clock, start, end):
    """Samples at 20 Hz."""
    for beat in range(round(start * 20), round(end * 20)):
        clock.set(beat / 20)
        yield source.sample()


REFUSALS = {
    "util_gpu": {"util_gpu", "util_mem"},
    "clock_mem": {"clock_mem_mhz"},
    "power_average": {"power_avg_w"},
    "temp_mem": {"temp_mem_c"},
    "nvlink_rx": {"nvlink_rx"},
    "clock_sm_app": {"clock_sm_app_mhz"},
    "ecc_corrected": {"ecc_corrected"},
    "remapped_corrected": {"remapped_rows"},
    "processes": {"processes", "foreign_processes"},
    "events": {"xid"},
    "gpm_tensor": {"gpm_tensor"},
}


@pytest.mark.parametrize("key", REFUSALS)
def test_a_refused_value_is_listed_and_never_asked_for_again(tmp_path, key):
    with sampled(tmp_path, StubGpu(refused=(key,))) as (source, clock):
        seen = {}
        for readings in beats(source, clock, 0, 1.5):
            seen |= values(readings)
        asked = clock.asked(0, key)
        for readings in beats(source, clock, 1.5, 4):
            seen |= values(readings)
        facts = source.facts()
        assert clock.asked(0, key) == asked
    assert not REFUSALS[key] & set(seen)
    assert "power_w" in seen
    assert set(facts["not_supported"]) == set(facts["devices"][0]["not_supported"]) == REFUSALS[key]
    assert set(facts["devices"][0]["not_supported"].values()) == {"Not Supported"}


def test_no_permission_is_a_refusal_with_its_own_reason(tmp_path):
    with sampled(tmp_path, StubGpu(errors=(StubError("ecc_corrected", NO_PERMISSION),))) as (source, _):
        source.sample()
        assert source.facts()["devices"][0]["not_supported"] == {"ecc_corrected": "Insufficient Permissions"}


@pytest.mark.parametrize(
    ("refused", "name", "value", "note"),
    [
        ("power_instant", "power_w", 90.0, "nvmlDeviceGetPowerUsage; a mean of one second"),
        ("mem_reserved", "mem_used_bytes", 7.0, "with what the driver reserves"),
        ("clock_reasons", "clock_reasons", 64.0, "nvmlDeviceGetCurrentClocksThrottleReasons"),
    ],
)
def test_what_stands_in_for_a_refused_value_is_named(tmp_path, refused, name, value, note):
    scripted = {"power_usage": 90_000, "mem_used": 7, "throttle_reasons": 64}
    with sampled(tmp_path, StubGpu(values=scripted, refused=(refused,))) as (source, clock):
        first = values(source.sample())
        clock.set(0.05)
        second = values(source.sample())
        device = source.facts()["devices"][0]
    assert first[name] == second[name] == value
    assert note in device["stand_ins"][name]
    assert name not in device["not_supported"]


def test_a_value_with_neither_is_not_supported(tmp_path):
    with sampled(tmp_path, StubGpu(refused=("power_instant", "power_usage"))) as (source, _):
        assert "power_w" not in values(source.sample())
        device = source.facts()["devices"][0]
    assert device["not_supported"] == {"power_w": "Not Supported"}
    assert device["stand_ins"] == {}


def test_a_device_that_refuses_says_so_for_itself(tmp_path):
    with sampled(tmp_path, StubGpu(refused=("temp_mem", "clock_sm")), StubGpu(refused=("temp_mem",))) as (source, _):
        readings = source.sample()
        facts = source.facts()
    assert "clock_sm_mhz" not in values(readings, "gpu-0")
    assert values(readings, "gpu-1")["clock_sm_mhz"] == 1980
    assert facts["not_supported"] == ["temp_mem_c"]
    assert set(facts["devices"][0]["not_supported"]) == {"clock_sm_mhz", "temp_mem_c"}


def test_a_value_that_fails_for_a_while_is_null_then_and_comes_back(tmp_path):
    errors = (StubError("clock_sm", UNKNOWN, 1, 2), StubError("power_instant", UNKNOWN, 1, 2))
    with sampled(tmp_path, StubGpu(errors=errors)) as (source, clock):
        rows = [values(readings) for readings in beats(source, clock, 0, 3)]
        device = source.facts()["devices"][0]
    for name, good in (("clock_sm_mhz", 1980), ("power_w", 100)):
        assert [row[name] for row in rows] == [good] * 20 + [None] * 20 + [good] * 20
        assert device["failures"][f"{name}: Unknown Error"] == 20
    assert all(row["energy_j"] is not None for row in rows)
    assert device["not_supported"] == {}


def test_all_fields_fail_when_their_call_does(tmp_path):
    with sampled(tmp_path, StubGpu(errors=(StubError("fields", UNKNOWN, 1, 2),))) as (source, clock):
        source.sample()
        clock.set(1.5)
        failed = values(source.sample())
        clock.set(2.5)
        good = values(source.sample())
    assert failed["power_w"] is failed["energy_j"] is failed["power_avg_w"] is None
    assert failed["util_gpu"] == 0
    assert None not in good.values()


def test_a_lost_gpu_gives_nulls_and_a_reason_while_the_other_goes_on(tmp_path):
    with sampled(tmp_path, StubGpu(), StubGpu(lost=2.0)) as (source, clock):
        rows = list(beats(source, clock, 0, 4))
        clock.set(4)
        last = source.final_sample()
        facts = source.facts()
    for readings in rows[:40]:
        assert None not in values(readings, "gpu-1").values()
    for readings in rows[40:]:
        assert set(values(readings, "gpu-1").values()) == {None}
        assert {"power_w", "energy_j", "gpm_sm"} <= set(values(readings, "gpu-1"))
    assert all(None not in values(readings, "gpu-0").values() for readings in rows)
    assert set(values(last, "gpu-1")) >= set(values(last, "gpu-0"))
    assert facts["devices"][1]["lost"]["reason"] == "GPU is lost"
    assert facts["devices"][1]["name"] == "Stub H100"  # as it was before
    assert facts["devices"][0]["lost"] is None


def test_a_lost_gpu_is_asked_nothing_more(tmp_path):
    with sampled(tmp_path, StubGpu(lost=1.0)) as (source, clock):
        list(beats(source, clock, 0, 2))
        asked = clock.asked(0, "clock_sm"), clock.asked(0, "util_gpu"), clock.asked(0, "temp_gpu")
        list(beats(source, clock, 2, 4))
        assert (clock.asked(0, "clock_sm"), clock.asked(0, "util_gpu"), clock.asked(0, "temp_gpu")) == asked


def test_a_gpu_that_was_lost_before_is_listed(tmp_path):
    with sampled(tmp_path, StubGpu(errors=(StubError("handle", GPU_IS_LOST),)), StubGpu()) as (source, _):
        assert {device for device, *_ in source.sample()} == {"gpu-1"}
        devices = source.facts()["devices"]
    assert [device["index"] for device in devices] == [0, 1]
    assert devices[0]["lost"]["reason"] == "GPU is lost"


def test_none_that_can_be_used_is_an_absent_source(tmp_path):
    library = install(StubMachine(gpus=(StubGpu(errors=(StubError("handle", NO_PERMISSION),)),)), tmp_path)
    with pytest.raises(SourceAbsent, match="none of 1 GPUs can be used: Insufficient Permissions"):
        NvmlSource(20, library).open()


def test_a_driver_that_hangs_for_two_seconds_leaves_a_gap_and_then_goes_on(tmp_path):
    library = install(StubMachine(gpus=(StubGpu(stalls=((0.4, 2.4),)),)), tmp_path)
    rows = []
    loop = SourceLoop("nvml", lambda: NvmlSource(20, library), lambda _, t_ns, readings: rows.extend(readings))
    loop.start()
    assert loop.baselined.wait(5)
    loop.join(3.0)  # it goes on until it is told to end
    loop.stop()
    assert loop.join(5)
    report = loop.report()
    stamps = sorted(reading[3] for reading in rows if reading[1] == "energy_j")
    assert max(b - a for a, b in itertools.pairwise(stamps)) / 1e9 == pytest.approx(2.0, abs=0.3)
    assert report["state"] == "sampled"
    assert report["longest_gap_s"] == pytest.approx(2.0, abs=0.3)
    assert report["missed_beats"] >= 35
