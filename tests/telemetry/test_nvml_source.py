import json
import time
from contextlib import contextmanager

import pynvml
import pytest

from servebench.telemetry import nvml_library
from servebench.telemetry.nvml import NvmlSource
from servebench.telemetry.source import SourceAbsent
from servebench.testing.nvml_stub import GIB, StubClock, StubGpu, StubMachine, install

NAMES = {
    "util_gpu",
    "util_mem",
    "mem_used_bytes",
    "mem_total_bytes",
    "power_w",
    "power_avg_w",
    "energy_j",
    "power_limit_w",
    "power_limit_default_w",
    "clock_sm_mhz",
    "clock_mem_mhz",
    "clock_sm_app_mhz",
    "clock_sm_max_mhz",
    "temp_gpu_c",
    "temp_mem_c",
    "clock_reasons",
    "pcie_rx_kbps",
    "pcie_tx_kbps",
    "pcie_gen",
    "pcie_width",
    "nvlink_rx",
    "nvlink_tx",
    "ecc_corrected",
    "ecc_uncorrected",
    "remapped_rows",
    "xid",
    "gpm_sm",
    "gpm_tensor",
    "gpm_dram",
    "processes",
    "foreign_processes",
}


@contextmanager
def sampled(tmp_path, *gpus, server_pids=(1,), **machine):
    """An open source with its clock stopped at 0 s."""
    library = install(StubMachine(gpus=gpus or (StubGpu(),), **machine), tmp_path)
    clock = StubClock(library)
    source = NvmlSource(20, library, server_pids, clock=clock)
    source.open()
    clock.set(0)
    try:
        yield source, clock
    finally:
        source.close()


def values(readings, device="gpu-0"):
    return {name: value for where, name, value, *_ in readings if where == device}


def test_every_name_of_the_contract_is_sampled(tmp_path):
    with sampled(tmp_path) as (source, clock):
        seen = values(source.sample())
        clock.set(1.5)
        seen |= values(source.sample())
        assert set(seen) == NAMES
        assert None not in seen.values()
        assert source.facts()["not_supported"] == []


def test_units(tmp_path):
    scripted = {
        "util_gpu": 37,
        "util_mem": 12,
        "mem_used": 3 * GIB,
        "mem_total": 80 * GIB,
        "power_instant": 312_345,
        "power_average": 300_500,
        "energy": 7_000_123,
        "power_limit": 650_000,
        "power_limit_default": 700_000,
        "clock_sm": 1755,
        "clock_mem": 2600,
        "clock_sm_app": 1900,
        "clock_sm_max": 1980,
        "temp_gpu": 61,
        "temp_mem": 72,
        "clock_reasons": 0x4,
        "pcie_gen": 4,
        "pcie_width": 8,
        "nvlink_rx": 100,
        "nvlink_tx": 200,
        "ecc_corrected": 3,
        "ecc_uncorrected": 1,
        "remapped_corrected": 2,
        "remapped_uncorrected": 1,
        "gpm_sm": 55.5,
        "gpm_tensor": 20,
        "gpm_dram": 40,
        "gpm_pcie_rx": 3,
        "gpm_pcie_tx": 4,
    }
    expected = {
        "util_gpu": 37,
        "util_mem": 12,
        "mem_used_bytes": 3 * GIB,
        "mem_total_bytes": 80 * GIB,
        "power_w": 312.345,
        "power_avg_w": 300.5,
        "energy_j": 7000.123,
        "power_limit_w": 650,
        "power_limit_default_w": 700,
        "clock_sm_mhz": 1755,
        "clock_mem_mhz": 2600,
        "clock_sm_app_mhz": 1900,
        "clock_sm_max_mhz": 1980,
        "temp_gpu_c": 61,
        "temp_mem_c": 72,
        "clock_reasons": 4,
        "pcie_gen": 4,
        "pcie_width": 8,
        "nvlink_rx": 100 * 1024,
        "nvlink_tx": 200 * 1024,
        "ecc_corrected": 3,
        "ecc_uncorrected": 1,
        "remapped_rows": 3,
        "gpm_sm": 0.555,
        "gpm_tensor": 0.2,
        "gpm_dram": 0.4,
        "pcie_rx_kbps": 3 * 1048.576,
        "pcie_tx_kbps": 4 * 1048.576,
    }
    with sampled(tmp_path, StubGpu(values=scripted)) as (source, clock):
        seen = values(source.sample())
        clock.set(1)
        seen |= values(source.sample())
    assert {name: seen[name] for name in expected} == pytest.approx(expected)


def test_values_move_with_the_script(tmp_path):
    gpu = StubGpu(values={"util_gpu": ((0, 0), (10, 100)), "clock_reasons": ((0, 1), (5, 0x24))})
    with sampled(tmp_path, gpu) as (source, clock):
        seen = []
        for second in (0, 2.5, 5, 20):
            clock.set(second)
            now = values(source.sample())
            seen.append((now["util_gpu"], now["clock_reasons"]))
    assert seen == [(0, 1), (25, 1), (50, 0x24), (100, 0x24)]


def test_slow_values_come_once_a_second_and_fast_ones_always(tmp_path):
    with sampled(tmp_path) as (source, clock):
        source.sample()
        counts = dict.fromkeys(NAMES, 0)
        for beat in range(1, 101):
            clock.set(beat / 20)
            for name in values(source.sample()):
                counts[name] += 1
    assert counts["power_w"] == counts["energy_j"] == counts["clock_reasons"] == counts["util_gpu"] == 100
    assert {counts[name] for name in ("temp_gpu_c", "power_limit_w", "nvlink_rx", "processes", "xid")} == {5}
    assert 40 <= counts["gpm_sm"] <= 50


def test_slow_values_are_spread_over_the_second(tmp_path):
    with sampled(tmp_path) as (source, clock):
        source.sample()
        sizes = []
        for beat in range(1, 41):
            clock.set(beat / 20)
            sizes.append(len([name for name in values(source.sample()) if not name.startswith(("gpm", "pcie_rx"))]))
    assert max(sizes) <= 9 + 6  # nine fast ones, and at most a few of the others


def test_readings_carry_their_own_instants(tmp_path):
    with sampled(tmp_path, StubGpu(), StubGpu()) as (source, _):
        readings = source.sample()
    stamps = {device: reading[0] for device in ("gpu-0", "gpu-1") if (reading := at(readings, device, "power_w"))}
    assert stamps["gpu-0"] < stamps["gpu-1"]


def at(readings, device, name):
    return [stamp for where, what, _, stamp in (r for r in readings if len(r) == 4) if (where, what) == (device, name)]


def test_the_final_sample_has_everything(tmp_path):
    with sampled(tmp_path) as (source, clock):
        source.sample()
        clock.set(0.3)
        assert set(values(source.final_sample())) == NAMES


def test_facts_are_json_and_name_the_device(tmp_path):
    with sampled(tmp_path, driver="580.1") as (source, _):
        source.sample()
        facts = json.loads(json.dumps(source.facts()))
    device = facts["devices"][0]
    assert (facts["driver"], facts["cuda"], facts["nvml"]) == ("580.1", "13.0", "13.580.00")
    assert (
        device
        | {
            "index": 0,
            "uuid": "GPU-00000000-5e4b-be4c-0000-000000000000",
            "name": "Stub H100",
            "architecture": "hopper",
            "compute_capability": "9.0",
            "vbios": "96.00.00.00.01",
            "pci_bus": "00000000:01:00.0",
            "persistence_mode": True,
            "compute_mode": "default",
            "ecc": True,
            "memory_total_bytes": 80 * GIB,
            "memory_bus_bits": 5120,
            "pcie_gen_max": 5,
            "pcie_width_max": 16,
            "clock_sm_max_mhz": 1980,
            "clock_mem_max_mhz": 2619,
            "power_limit_w": 700.0,
            "power_limit_min_w": 200.0,
            "mig": {"enabled": False, "pending": False, "devices": []},
            "lost": None,
            "not_supported": {},
            "stand_ins": {},
        }
        == device
    )


def test_a_fact_that_is_refused_is_none(tmp_path):
    gpu = StubGpu(refused=("vbios", "ecc_mode", "memory_bus_bits"))
    with sampled(tmp_path, gpu) as (source, _):
        device = source.facts()["devices"][0]
    assert device["vbios"] is device["ecc"] is device["memory_bus_bits"] is None
    assert device["name"] == "Stub H100"


def test_mig_devices_are_listed(tmp_path):
    gpu = StubGpu(values={"mig_mode": 1, "mig_mode_pending": 1}, mig=(10 * GIB, 20 * GIB))
    with sampled(tmp_path, gpu) as (source, _):
        mig = source.facts()["devices"][0]["mig"]
    assert mig["enabled"] and mig["pending"]
    assert [device["memory_total_bytes"] for device in mig["devices"]] == [10 * GIB, 20 * GIB]
    assert len({device["uuid"] for device in mig["devices"]}) == 2


def test_no_library_is_an_absent_source(monkeypatch):
    monkeypatch.setattr(nvml_library, "PLACES", ("libnvidia-ml-that-is-not.so.1",))
    with pytest.raises(SourceAbsent, match="no NVIDIA driver on this machine"):
        NvmlSource(20).open()


def test_a_library_that_was_named_and_is_not_there(tmp_path):
    with pytest.raises(SourceAbsent, match=r"^mine\.so, which was named") as absent:
        NvmlSource(20, tmp_path / "mine.so").open()
    assert str(tmp_path) not in str(absent.value)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(9, "driver is not loaded"), (18, "different versions"), (4, "this user may not"), (999, "Unknown Error")],
)
def test_a_library_without_a_driver_behind_it(tmp_path, code, reason):
    library = install(StubMachine(init=code), tmp_path)
    with pytest.raises(SourceAbsent, match=reason):
        NvmlSource(20, library).open()


def test_a_driver_without_a_gpu(tmp_path):
    library = install(StubMachine(gpus=()), tmp_path)
    with pytest.raises(SourceAbsent, match="the NVIDIA driver shows no GPU"):
        NvmlSource(20, library).open()


def test_a_second_source_may_open_another_library(tmp_path):
    for number in (0, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        with sampled(folder, StubGpu(name=f"Stub {number}")) as (source, _):
            assert source.facts()["devices"][0]["name"] == f"Stub {number}"


def test_a_source_that_could_not_open_leaves_nothing_behind(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(SourceAbsent):
        NvmlSource(20, install(StubMachine(gpus=()), tmp_path / "none")).open()
    with sampled(tmp_path) as (source, _):
        assert values(source.sample())["power_w"] == 100


def by_hand(handle):
    """What a sample asks in any case, with nvidia-ml-py's own functions."""
    pynvml.nvmlDeviceGetFieldValues(handle, [83, 186, 185])
    pynvml.nvmlDeviceGetUtilizationRates(handle)
    pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)


def cheapest(call, times=300):
    """CPU seconds of the quickest of several rounds of `call`, which other processes disturb least."""
    rounds = []
    for _ in range(10):
        start = time.thread_time()
        for _ in range(times // 10):
            call()
        rounds.append(time.thread_time() - start)
    return min(rounds)


def test_a_sample_costs_no_more_than_a_few_times_the_calls_in_it(tmp_path):
    with sampled(tmp_path, StubGpu()) as (source, clock):
        source.sample()
        clock.set(0.05)  # nothing slow is due
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert cheapest(source.sample) < 5 * cheapest(lambda: by_hand(handle))
