from contextlib import contextmanager

import pytest

from servebench.telemetry.nvml import NvmlSource
from servebench.testing.nvml_stub import StubClock, StubError, StubGpu, StubMachine, install

UNKNOWN = 999
GPM = {"gpm_sm", "gpm_tensor", "gpm_dram"}
PCIE = {"pcie_rx_kbps", "pcie_tx_kbps"}


@contextmanager
def sampled(tmp_path, *gpus):
    library = install(StubMachine(gpus=gpus), tmp_path)
    clock = StubClock(library)
    source = NvmlSource(20, library, clock=clock)
    source.open()
    clock.set(0)
    try:
        yield source, clock
    finally:
        source.close()


def beat(source, clock, second, device="gpu-0"):
    clock.set(second)
    return {name: value for where, name, value, *_ in source.sample() if where == device}


def test_the_first_sample_has_no_mean_yet(tmp_path):
    with sampled(tmp_path, StubGpu()) as (source, clock):
        assert not GPM & set(beat(source, clock, 0))
        assert set(beat(source, clock, 0.1)) >= GPM | PCIE


def test_means_are_over_the_time_between_the_samples(tmp_path):
    gpu = StubGpu(values={"gpm_sm": ((0, 0), (1, 100)), "gpm_dram": ((0, 0), (0.5, 0), (0.501, 80))})
    with sampled(tmp_path, gpu) as (source, clock):
        beat(source, clock, 0)
        half, whole = beat(source, clock, 0.5), beat(source, clock, 1.0)
    assert (half["gpm_sm"], whole["gpm_sm"]) == pytest.approx((0.25, 0.75))
    assert (half["gpm_dram"], whole["gpm_dram"]) == pytest.approx((0.0, 0.8), abs=0.001)


def test_samples_are_never_closer_than_a_tenth_of_a_second(tmp_path):
    # The stub fails a pair that is, which would make nulls.
    with sampled(tmp_path, StubGpu()) as (source, clock):
        rows = [beat(source, clock, second / 30) for second in range(60)]
    means = [row["gpm_sm"] for row in rows if "gpm_sm" in row]
    assert 14 <= len(means) <= 20
    assert None not in means


def test_a_failure_is_null_once_and_starts_a_new_pair(tmp_path):
    with sampled(tmp_path, StubGpu(errors=(StubError("gpm", UNKNOWN, 0.3, 0.5),))) as (source, clock):
        rows = [beat(source, clock, beats / 5).get("gpm_sm", "nothing") for beats in range(6)]
        failures = source.facts()["devices"][0]["failures"]
    assert rows == ["nothing", 0.0, None, "nothing", 0.0, 0.0]
    assert failures["gpm_sm: Unknown Error"] == 1


def test_one_metric_that_fails_leaves_the_others(tmp_path):
    with sampled(tmp_path, StubGpu(errors=(StubError("gpm_dram", UNKNOWN, 0.3, 0.5),))) as (source, clock):
        rows = [beat(source, clock, beats / 5) for beats in range(4)]
        failures = source.facts()["devices"][0]["failures"]
    assert [row.get("gpm_dram", "nothing") for row in rows] == ["nothing", 0.0, None, 0.0]
    assert rows[2]["gpm_sm"] == 0.0
    assert failures == {"gpm_dram: Unknown Error": 1}


def test_a_device_before_hopper_has_none_and_its_pcie_is_asked_for_directly(tmp_path):
    gpu = StubGpu(refused=("gpm",), values={"pcie_rx": 123, "pcie_tx": 456})
    with sampled(tmp_path, gpu) as (source, clock):
        first = beat(source, clock, 0)
        device = source.facts()["devices"][0]
    assert (first["pcie_rx_kbps"], first["pcie_tx_kbps"]) == (123, 456)
    assert device["not_supported"] == dict.fromkeys(GPM, "no GPM: Not Supported")
    assert set(device["stand_ins"]) == PCIE
    assert device["stand_ins"]["pcie_rx_kbps"] == "nvmlDeviceGetPcieThroughput; over 20 ms"


def test_at_most_one_call_of_20_ms_falls_on_a_sample(tmp_path):
    gpus = [StubGpu(refused=("gpm",))] * 3
    with sampled(tmp_path, *gpus) as (source, clock):
        source.sample()
        seen = []
        for tick in range(1, 61):
            clock.set(tick / 20)
            seen.append([reading[:2] for reading in source.sample() if reading[1] in PCIE])
    assert max(map(len, seen)) == 1
    assert {place for places in seen for place in places} == {(f"gpu-{i}", name) for i in range(3) for name in PCIE}


def test_gpm_that_is_refused_after_all_leaves_pcie_to_the_direct_way(tmp_path):
    gpu = StubGpu(errors=(StubError("gpm", 4, 0.05),))
    with sampled(tmp_path, gpu) as (source, clock):
        beat(source, clock, 0)
        later = beat(source, clock, 0.2) | beat(source, clock, 0.4)
        device = source.facts()["devices"][0]
    assert set(later) >= PCIE
    assert device["not_supported"] == dict.fromkeys(GPM, "Insufficient Permissions")


def test_a_device_that_says_it_has_none(tmp_path):
    # The stub's answer is no where the metrics are not in its script.
    library = install(StubMachine(), tmp_path)
    script = library.with_name(f"{library.name}.script")
    script.write_text("".join(line for line in script.read_text().splitlines(True) if " gpm_" not in line))
    source = NvmlSource(20, library)
    source.open()
    not_supported = source.facts()["devices"][0]["not_supported"]
    source.close()
    assert not_supported == dict.fromkeys(GPM, "no GPM (before Hopper)")
