"""What a GPU is asked, and how: one entry a question, each with the names of the values that it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

ALL_LINKS = 0xFFFFFFFF

REFUSALS = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
"""Answers that will not change: the question is not asked again."""

LOSSES = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND, pynvml.NVML_ERROR_RESET_REQUIRED})
"""Answers after which the device says nothing more."""

Ask = Callable[[Any], Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Query:
    """One call of NVML.

    Attributes:
        names: of the values, in the order in which `ask` returns them.
        ask: takes the device's handle; None where NVML answers and the value is still unknown; raises NVMLError.
        note: what a reader must know when this call stands in for a better one.
    """

    names: tuple[str, ...]
    ask: Ask
    note: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """One field value; several are read by one call.

    Attributes:
        name: of the value.
        number: NVML_FI_DEV_...
        scope: of the field: a link, or ALL_LINKS; 0 where it has none.
        scale: NVML's unit in ours.
    """

    name: str
    number: int
    scope: int = 0
    scale: float = 1.0


def _one(function: str, *arguments: int, scale: float = 1.0) -> Ask:
    call = getattr(pynvml, function)
    return lambda handle: (call(handle, *arguments) * scale,)


def _utilization(handle: Any) -> tuple[float, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


def _memory(handle: Any) -> tuple[float]:
    return (pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used,)


def _memory_with_reserve(handle: Any) -> tuple[float]:
    return (pynvml.nvmlDeviceGetMemoryInfo(handle).used,)


def _memory_total(handle: Any) -> tuple[float]:
    return (pynvml.nvmlDeviceGetMemoryInfo(handle).total,)


def _remapped(handle: Any) -> tuple[float]:
    corrected, uncorrected, _, _ = pynvml.nvmlDeviceGetRemappedRows(handle)
    return (corrected + uncorrected,)


def _temperature(handle: Any) -> tuple[float]:
    return (pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),)


_SM, _MEMORY = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM

FAST: tuple[Query, ...] = (
    Query(("util_gpu", "util_mem"), _utilization),
    Query(("mem_used_bytes",), _memory),
    Query(("clock_sm_mhz",), _one("nvmlDeviceGetClockInfo", _SM)),
    Query(("clock_mem_mhz",), _one("nvmlDeviceGetClockInfo", _MEMORY)),
    Query(("clock_reasons",), _one("nvmlDeviceGetCurrentClocksEventReasons")),
)
"""Asked with every sample: a few microseconds each."""

FAST_FIELDS: tuple[Field, ...] = (
    Field("energy_j", pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, scale=1e-3),
    Field("power_w", pynvml.NVML_FI_DEV_POWER_INSTANT, scale=1e-3),
    Field("power_avg_w", pynvml.NVML_FI_DEV_POWER_AVERAGE, scale=1e-3),
)

SLOW: tuple[Query, ...] = (
    Query(("mem_total_bytes",), _memory_total),
    Query(("temp_gpu_c",), _one("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)),
    Query(("power_limit_w",), _one("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)),
    Query(("power_limit_default_w",), _one("nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3)),
    Query(("clock_sm_app_mhz",), _one("nvmlDeviceGetApplicationsClock", _SM)),
    Query(("clock_sm_max_mhz",), _one("nvmlDeviceGetMaxClockInfo", _SM)),
    Query(("pcie_gen",), _one("nvmlDeviceGetCurrPcieLinkGeneration")),
    Query(("pcie_width",), _one("nvmlDeviceGetCurrPcieLinkWidth")),
    Query(
        ("ecc_corrected",),
        _one("nvmlDeviceGetTotalEccErrors", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
    ),
    Query(
        ("ecc_uncorrected",),
        _one("nvmlDeviceGetTotalEccErrors", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
    ),
    Query(("remapped_rows",), _remapped),
)
"""Asked once a second. ECC errors count since the driver was loaded; remapped rows since the GPU was made."""

SLOW_FIELDS: tuple[Field, ...] = (
    Field("temp_mem_c", pynvml.NVML_FI_DEV_MEMORY_TEMP),
    Field("nvlink_rx", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS, 1024.0),
    Field("nvlink_tx", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS, 1024.0),
)
"""NVLink values are counters of payload bytes over all links (NVML counts KiB)."""

FALLBACKS: dict[str, Query] = {
    query.names[0]: query
    for query in (
        Query(
            ("power_w",),
            _one("nvmlDeviceGetPowerUsage", scale=1e-3),
            "nvmlDeviceGetPowerUsage; a mean of one second on Ampere and later, except GA100",
        ),
        Query(
            ("energy_j",),
            _one("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3),
            "nvmlDeviceGetTotalEnergyConsumption",
        ),
        Query(("mem_used_bytes",), _memory_with_reserve, "nvmlDeviceGetMemoryInfo; with what the driver reserves"),
        Query(
            ("clock_reasons",),
            _one("nvmlDeviceGetCurrentClocksThrottleReasons"),
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ),
        Query(("temp_gpu_c",), _temperature, "nvmlDeviceGetTemperatureV"),
    )
}
"""What stands in for a value whose first question was refused."""

PCIE: dict[str, Query] = {
    name: Query((name,), _one("nvmlDeviceGetPcieThroughput", counter), "nvmlDeviceGetPcieThroughput; over 20 ms")
    for name, counter in (
        ("pcie_rx_kbps", pynvml.NVML_PCIE_UTIL_RX_BYTES),
        ("pcie_tx_kbps", pynvml.NVML_PCIE_UTIL_TX_BYTES),
    )
}
"""Each of these calls lasts 20 ms, so a device with GPM is asked through that instead."""
