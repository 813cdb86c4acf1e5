"""NVML through the sampler's own process, as a run has it."""

import os
import time

import numpy as np
import pytest

from servebench.record.journal import read_journals
from servebench.telemetry.job import SamplerJob
from servebench.telemetry.samplers import start_sampler
from servebench.testing.nvml_stub import StubGpu, StubMachine, StubProcess, install, integral

RAMP = ((0.0, 200_000.0), (3.0, 700_000.0))


def sample(tmp_path, seconds, *gpus, hz=20.0):
    """The manifest's part and the rows (second since the first, value) by (device, name)."""
    library = install(StubMachine(gpus=gpus), tmp_path)
    job = SamplerJob(
        journal_dir=str(tmp_path), nvml_library=str(library), nvml_hz=hz, server_pids=[os.getpid()], host=False
    )
    with start_sampler(job) as sampler:
        assert sampler.ready()
        time.sleep(seconds)
        report = sampler.stop()
    _, _, table = read_journals(tmp_path)
    rows = {}
    for row in table.to_pylist():
        rows.setdefault((row["device"], row["name"]), []).append((row["t_ns"], row["value"]))
    return report["sources"]["nvml"], rows


def test_a_ramp_in_real_time_gives_its_energy(tmp_path):
    report, rows = sample(tmp_path, 2.0, StubGpu(values={"power_instant": RAMP}))
    power, energy = (np.array(rows["gpu-0", name]) for name in ("power_w", "energy_j"))
    seconds = (energy[:, 0] - energy[0, 0]) / 1e9
    # The first power says how far into the ramp the first reading was; the stub counts from its own start.
    start = (power[0, 1] * 1000 - RAMP[0][1]) / (RAMP[1][1] - RAMP[0][1]) * RAMP[1][0]
    expected = (integral(RAMP, start + seconds[-1]) - integral(RAMP, start)) / 1000
    assert energy[-1, 1] - energy[0, 1] == pytest.approx(expected, rel=1e-3)
    assert report["state"] == "sampled"
    assert report["achieved_hz"] == pytest.approx(20, rel=0.1)


def test_two_gpus_of_which_the_server_uses_one(tmp_path):
    gpus = StubGpu(), StubGpu(processes=(StubProcess(os.getpid()),), refused=("temp_mem",))
    report, rows = sample(tmp_path, 0.3, *gpus)
    assert [device["server_uses"] for device in report["devices"]] == [False, True]
    assert {value for _, value in rows["gpu-1", "foreign_processes"]} == {0}
    assert ("gpu-1", "temp_mem_c") not in rows
    assert report["not_supported"] == []
    assert report["devices"][1]["not_supported"] == {"temp_mem_c": "Not Supported"}


def test_a_gpu_lost_on_the_way_leaves_nulls(tmp_path):
    report, rows = sample(tmp_path, 1.0, StubGpu(lost=0.5), StubGpu())
    values = [value for _, value in rows["gpu-0", "energy_j"]]
    assert values[0] is not None and values[-1] is None
    assert report["devices"][0]["lost"]["reason"] == "GPU is lost"
    assert all(value is not None for _, value in rows["gpu-1", "energy_j"])


def test_every_beat_is_recorded_and_the_cost_is_stated(tmp_path):
    gpu = StubGpu(processes=(StubProcess(os.getpid()),))
    report, rows = sample(tmp_path, 1.0, gpu, gpu)
    assert report["samples"] == len(rows["gpu-0", "energy_j"]) == len(rows["gpu-1", "energy_j"])
    assert report["cpu_s"] > 0
