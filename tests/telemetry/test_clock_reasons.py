import pynvml
import pytest

from servebench.telemetry.clock_reasons import REASONS, Kind, decode, names, throttles

NVML_NAMES = {
    bit: name.removeprefix("nvmlClocksThrottleReason").removeprefix("nvmlClocksEventReason")
    for name, bit in vars(pynvml).items()
    if name.startswith(("nvmlClocksThrottleReason", "nvmlClocksEventReason"))
    and not name.endswith(("All", "None", "UserDefinedClocks"))
}


def test_the_table_has_every_bit_that_nvml_names():
    assert {reason.bit: reason.name for reason in REASONS} == NVML_NAMES


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.name)
def test_each_bit_is_decoded_alone(reason):
    assert decode(float(reason.bit)) == (reason,)
    assert throttles(reason.bit) == reason.throttles


def test_bits_are_decoded_together_lowest_first():
    assert names(0x4 | 0x40 | 0x1) == ("GpuIdle", "SwPowerCap", "HwThermalSlowdown")


def test_no_bit_is_no_reason():
    assert decode(0) == ()
    assert not throttles(0)


def test_idle_and_settings_are_no_throttling():
    assert not throttles(0x1 | 0x2 | 0x10 | 0x100)


@pytest.mark.parametrize("bit", [0x4, 0x8, 0x20, 0x40, 0x80, 0x200, 0x400])
def test_limits_are_throttling(bit):
    assert throttles(bit | 0x1)


def test_unknown_bits_keep_their_numbers_and_judge_nothing():
    mask = 0x800 | 0x4 | 1 << 40
    assert names(mask) == ("SwPowerCap", "0x800", hex(1 << 40))
    assert [reason.kind for reason in decode(mask)] == [Kind.POWER_CAP, Kind.UNKNOWN, Kind.UNKNOWN]
    assert not throttles(0x800)
