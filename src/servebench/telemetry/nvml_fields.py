"""What a GPU is asked, and how: one entry a question, each with the names of the values that it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref, c_uint, c_ulonglong
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


def _number(function: str, *arguments: int, kind: type = c_uint, scale: float = 1.0) -> Ask:
    """Ask a function that fills one number.

    As nvidia-ml-py's own functions do, but into a cell that is made once: after 50 ms of somebody else's work on this
    core nothing is left in its caches, and what a sample costs is the memory that it touches.
    """
    cell = kind()
    place = byref(cell)

    def ask(handle: Any) -> tuple[float]:
        code = pynvml._nvmlGetFunctionPointer(function)(handle, *arguments, place)
        if code:
            raise pynvml.NVMLError(code)
        return (cell.value * scale,)

    return ask


def _members(function: str, structure: Any, *members: str) -> Ask:
    """Ask a function that fills a structure, for some of its members."""
    place = byref(structure)

    def ask(handle: Any) -> list[float]:
        code = pynvml._nvmlGetFunctionPointer(function)(handle, place)
        if code:
            raise pynvml.NVMLError(code)
        return [float(getattr(structure, member)) for member in members]

    return ask


def _memory_v2() -> Any:
    memory = pynvml.c_nvmlMemory_v2_t()
    memory.version = pynvml.nvmlMemory_v2
    return memory


def _remapped(handle: Any) -> tuple[float]:
    corrected, uncorrected, _, _ = pynvml.nvmlDeviceGetRemappedRows(handle)
    return (float(corrected + uncorrected),)


def _temperature(handle: Any) -> tuple[float]:
    return (float(pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)),)


_SM, _MEMORY = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM


def fast_queries() -> tuple[Query, ...]:
    """What is asked with every sample: a few microseconds each."""
    utilization = _members("nvmlDeviceGetUtilizationRates", pynvml.c_nvmlUtilization_t(), "gpu", "memory")
    return (
        Query(("util_gpu", "util_mem"), utilization),
        Query(("mem_used_bytes",), _members("nvmlDeviceGetMemoryInfo_v2", _memory_v2(), "used")),
        Query(("clock_sm_mhz",), _number("nvmlDeviceGetClockInfo", _SM)),
        Query(("clock_mem_mhz",), _number("nvmlDeviceGetClockInfo", _MEMORY)),
        Query(("clock_reasons",), _number("nvmlDeviceGetCurrentClocksEventReasons", kind=c_ulonglong)),
    )


FAST_FIELDS: tuple[Field, ...] = (
    Field("energy_j", pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, scale=1e-3),
    Field("power_w", pynvml.NVML_FI_DEV_POWER_INSTANT, scale=1e-3),
    Field("power_avg_w", pynvml.NVML_FI_DEV_POWER_AVERAGE, scale=1e-3),
)


def slow_queries() -> tuple[Query, ...]:
    """What is asked once a second. ECC errors count since the driver was loaded; remapped rows since ever."""
    return (
        Query(("mem_total_bytes",), _members("nvmlDeviceGetMemoryInfo", pynvml.c_nvmlMemory_t(), "total")),
        Query(("temp_gpu_c",), _number("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)),
        Query(("power_limit_w",), _number("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)),
        Query(("power_limit_default_w",), _number("nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3)),
        Query(("clock_sm_app_mhz",), _number("nvmlDeviceGetApplicationsClock", _SM)),
        Query(("clock_sm_max_mhz",), _number("nvmlDeviceGetMaxClockInfo", _SM)),
        Query(("pcie_gen",), _number("nvmlDeviceGetCurrPcieLinkGeneration")),
        Query(("pcie_width",), _number("nvmlDeviceGetCurrPcieLinkWidth")),
        Query(("ecc_corrected",), _ecc_errors(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
        Query(("ecc_uncorrected",), _ecc_errors(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
        Query(("remapped_rows",), _remapped),
    )


def _ecc_errors(kind: int) -> Ask:
    return _number("nvmlDeviceGetTotalEccErrors", kind, pynvml.NVML_VOLATILE_ECC, kind=c_ulonglong)


SLOW_FIELDS: tuple[Field, ...] = (
    Field("temp_mem_c", pynvml.NVML_FI_DEV_MEMORY_TEMP),
    Field("nvlink_rx", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS, 1024.0),
    Field("nvlink_tx", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS, 1024.0),
)
"""NVLink values are counters of payload bytes over all links (NVML counts KiB)."""


def fallbacks() -> dict[str, Query]:
    """What stands in for a value whose first question is refused, by its name."""
    plain_memory = _members("nvmlDeviceGetMemoryInfo", pynvml.c_nvmlMemory_t(), "used")
    mean_power = "nvmlDeviceGetPowerUsage; a mean of one second on Ampere and later, except GA100"
    energy, reasons = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksThrottleReasons"
    return {
        query.names[0]: query
        for query in (
            Query(("power_w",), _number("nvmlDeviceGetPowerUsage", scale=1e-3), mean_power),
            Query(("energy_j",), _number(energy, kind=c_ulonglong, scale=1e-3), energy),
            Query(("mem_used_bytes",), plain_memory, "nvmlDeviceGetMemoryInfo; with what the driver reserves"),
            Query(("clock_reasons",), _number(reasons, kind=c_ulonglong), reasons),
            Query(("temp_gpu_c",), _temperature, "nvmlDeviceGetTemperatureV"),
            _pcie("pcie_rx_kbps", pynvml.NVML_PCIE_UTIL_RX_BYTES),
            _pcie("pcie_tx_kbps", pynvml.NVML_PCIE_UTIL_TX_BYTES),
        )
    }


def _pcie(name: str, counter: int) -> Query:
    return Query((name,), _number("nvmlDeviceGetPcieThroughput", counter), "nvmlDeviceGetPcieThroughput; over 20 ms")


LENGTHY = ("pcie_rx_kbps", "pcie_tx_kbps")
"""Each of these calls lasts 20 ms, so a device with GPM is asked through that instead."""
