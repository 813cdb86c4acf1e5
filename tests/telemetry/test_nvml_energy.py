import itertools

import numpy as np
import pytest

from servebench.telemetry.nvml import NvmlSource
from servebench.testing.nvml_stub import StubClock, StubGpu, StubMachine, install, integral

RAMPS = {
    "constant": ((0.0, 250_000.0),),
    "one ramp": ((0.0, 100_000.0), (10.0, 300_000.0)),
    "saw": ((0.0, 80_000.0), (2.0, 700_000.0), (2.5, 120_000.0), (6.0, 650_000.0), (9.0, 90_000.0)),
    "late start": ((3.0, 500_000.0), (7.0, 100_000.0)),
}


def at_20_hz(tmp_path, seconds, **gpu):
    """Rows (second, energy in J, power in W) of a stub whose clock is set by hand."""
    library = install(StubMachine(gpus=(StubGpu(**gpu),)), tmp_path)
    clock = StubClock(library)
    source = NvmlSource(20, library, clock=clock)
    source.open()
    rows = []
    for beat in range(int(seconds * 20) + 1):
        clock.set(beat / 20)
        now = {reading[1]: reading[2] for reading in source.sample()}
        rows.append((beat / 20, now["energy_j"], now["power_w"]))
    source.close()
    return np.array(rows)


@pytest.mark.parametrize("ramp", RAMPS.values(), ids=RAMPS)
def test_the_counter_is_the_integral_of_the_power(tmp_path, ramp):
    rows = at_20_hz(tmp_path, 10, values={"power_instant": ramp})
    for start, end in itertools.combinations((0, 37, 90, 151, 200), 2):
        expected = (integral(ramp, rows[end, 0]) - integral(ramp, rows[start, 0])) / 1000
        assert rows[end, 1] - rows[start, 1] == pytest.approx(expected, rel=1e-3)


def test_the_analytic_value_by_hand(tmp_path):
    rows = at_20_hz(tmp_path, 10, values={"power_instant": RAMPS["one ramp"]})
    assert rows[-1, 1] - rows[0, 1] == pytest.approx(2000.0, rel=1e-6)  # 200 W on average for 10 s


def test_power_integrated_by_trapezoids_agrees(tmp_path):
    rows = at_20_hz(tmp_path, 10, values={"power_instant": RAMPS["saw"]})
    assert np.trapezoid(rows[:, 2], rows[:, 0]) == pytest.approx(rows[-1, 1] - rows[0, 1], rel=1e-3)


def test_a_counter_that_is_renewed_ten_times_a_second_moves_in_steps(tmp_path):
    rows = at_20_hz(tmp_path, 10, values={"power_instant": 200_000.0}, holds={"energy_base": 0.1})
    steps = np.diff(rows[:, 1])
    assert set(np.round(steps, 6)) == {0.0, 20.0}
    assert rows[-1, 1] - rows[0, 1] == pytest.approx(2000.0, abs=20.0)


def test_the_average_field_lags_the_instant_one(tmp_path):
    library = install(StubMachine(gpus=(StubGpu(values={"power_instant": RAMPS["one ramp"]}),)), tmp_path)
    clock = StubClock(library)
    source = NvmlSource(20, library, clock=clock)
    source.open()
    clock.set(5)
    now = {reading[1]: reading[2] for reading in source.sample()}
    source.close()
    assert (now["power_w"], now["power_avg_w"]) == (200.0, 190.0)


def test_energy_without_the_field_comes_from_the_function(tmp_path):
    library = install(StubMachine(gpus=(StubGpu(),)), tmp_path)
    script = library.with_name(f"{library.name}.script")
    script.write_text(script.read_text() + "0 error fields 13 0 inf\n")
    clock = StubClock(library)
    source = NvmlSource(20, library, clock=clock)
    source.open()
    clock.set(2)
    now = {reading[1]: reading[2] for reading in source.sample()}
    device = source.facts()["devices"][0]
    source.close()
    assert (now["energy_j"], now["power_w"]) == (5_000_200.0, 100.0)
    assert device["stand_ins"]["power_w"].startswith("nvmlDeviceGetPowerUsage")
    assert set(device["not_supported"]) == {"power_avg_w", "temp_mem_c", "nvlink_rx", "nvlink_tx"}
