"""What a GPU is: facts that do not change while a run lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

COMPUTE_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "default",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive_thread",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
}

ARCHITECTURES = {
    number: name.removeprefix("NVML_DEVICE_ARCH_").lower()
    for name, number in vars(pynvml).items()
    if name.startswith("NVML_DEVICE_ARCH_") and isinstance(number, int)
}


def system_facts() -> dict[str, Any]:
    """Versions of the driver, of the CUDA that it carries and of NVML; None where they are not to be had."""
    cuda = _ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "driver": _ask(pynvml.nvmlSystemGetDriverVersion),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "nvml": _ask(pynvml.nvmlSystemGetNVMLVersion),
    }


def device_facts(handle: Any) -> dict[str, Any]:
    """Describe one GPU; None where a fact is not to be had."""
    known: dict[str, Callable[[], Any]] = {
        "uuid": lambda: pynvml.nvmlDeviceGetUUID(handle),
        "name": lambda: pynvml.nvmlDeviceGetName(handle),
        "architecture": lambda: ARCHITECTURES.get(pynvml.nvmlDeviceGetArchitecture(handle)),
        "compute_capability": lambda: "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "cores": lambda: pynvml.nvmlDeviceGetNumGpuCores(handle),
        "pci_bus": lambda: _decoded(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        "vbios": lambda: pynvml.nvmlDeviceGetVbiosVersion(handle),
        "persistence_mode": lambda: bool(pynvml.nvmlDeviceGetPersistenceMode(handle)),
        "compute_mode": lambda: COMPUTE_MODES.get(pynvml.nvmlDeviceGetComputeMode(handle)),
        "ecc": lambda: bool(pynvml.nvmlDeviceGetEccMode(handle)[0]),
        "memory_total_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        "memory_bus_bits": lambda: pynvml.nvmlDeviceGetMemoryBusWidth(handle),
        "pcie_gen_max": lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie_width_max": lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "clock_sm_max_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "clock_mem_max_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "power_limit_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "power_limit_default_w": lambda: pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000,
        "power_limit_min_w": lambda: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[0] / 1000,
        "power_limit_max_w": lambda: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1] / 1000,
        "remapped_rows": lambda: _remapped(handle),
        "mig": lambda: _mig(handle),
    }
    return {name: _ask(read) for name, read in known.items()}


def _ask(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except pynvml.NVMLError:
        return None


def _decoded(text: bytes | str) -> str:
    return text if isinstance(text, str) else text.decode("ascii", "replace")


def _remapped(handle: Any) -> dict[str, Any]:
    corrected, uncorrected, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "corrected": corrected,
        "uncorrected": uncorrected,
        "pending": bool(pending),
        "failed": bool(failed),
    }


def _mig(handle: Any) -> dict[str, Any]:
    current, pending = pynvml.nvmlDeviceGetMigMode(handle)
    return {"enabled": bool(current), "pending": bool(pending), "devices": _mig_devices(handle) if current else []}


def _mig_devices(handle: Any) -> list[dict[str, Any]]:
    devices = []
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError:
            continue  # a slot without an instance
        devices.append(_mig_device(device))
    return devices


def _mig_device(device: Any) -> dict[str, Any]:
    return {
        "uuid": _ask(lambda: pynvml.nvmlDeviceGetUUID(device)),
        "name": _ask(lambda: pynvml.nvmlDeviceGetName(device)),
        "memory_total_bytes": _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(device).total),
    }
