"""Reads the page of a DCGM exporter: its fields under our names, in our units.

DCGM renamed many fields in 4.6 (`POWER_USAGE` became `BOARD_POWER_WATTS`) and kept their numbers and units; exporters
show whichever name their configuration has. `DCGM_FI_DEV_GPU_UTIL_RATIO` is left out: it was a percentage in 4.6 and is
a ratio since 4.7, which a value of 1 does not tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servebench.telemetry.source import Reading

MIB = 1024.0**2

# Field, without DCGM_FI_: our name, and what to multiply with.
FIELDS: dict[str, tuple[str, float]] = {
    "DEV_GPU_UTIL": ("util_gpu", 1),
    "DEV_MEM_COPY_UTIL": ("util_mem", 1),
    "DEV_FB_USED": ("mem_used_bytes", MIB),
    "DEV_FB_USED_BYTES": ("mem_used_bytes", 1),
    "DEV_FB_TOTAL": ("mem_total_bytes", MIB),
    "DEV_FB_CAPACITY_BYTES": ("mem_total_bytes", 1),
    "DEV_POWER_USAGE_INSTANT": ("power_w", 1),
    "DEV_BOARD_POWER_RAW_WATTS": ("power_w", 1),
    "DEV_POWER_USAGE": ("power_avg_w", 1),
    "DEV_BOARD_POWER_WATTS": ("power_avg_w", 1),
    "DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DEV_GPU_ENERGY_JOULES_TOTAL": ("energy_j", 1),
    "DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", 1),
    "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": ("power_limit_w", 1),
    "DEV_POWER_MGMT_LIMIT_DEF": ("power_limit_default_w", 1),
    "DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS": ("power_limit_default_w", 1),
    "DEV_SM_CLOCK": ("clock_sm_mhz", 1),
    "DEV_SM_CLOCK_HERTZ": ("clock_sm_mhz", 1e-6),
    "DEV_MEM_CLOCK": ("clock_mem_mhz", 1),
    "DEV_MEMORY_CLOCK_HERTZ": ("clock_mem_mhz", 1e-6),
    "DEV_APP_SM_CLOCK": ("clock_sm_app_mhz", 1),
    "DEV_MAX_SM_CLOCK": ("clock_sm_max_mhz", 1),
    "DEV_GPU_TEMP": ("temp_gpu_c", 1),
    "DEV_GPU_TEMP_CELSIUS": ("temp_gpu_c", 1),
    "DEV_MEMORY_TEMP": ("temp_mem_c", 1),
    "DEV_MEMORY_TEMP_CELSIUS": ("temp_mem_c", 1),
    "DEV_CLOCK_THROTTLE_REASONS": ("clock_reasons", 1),
    "DEV_CLOCKS_EVENT_REASONS": ("clock_reasons", 1),
    "PROF_PCIE_RX_BYTES": ("pcie_rx_kbps", 1e-3),
    "PROF_PCIE_TX_BYTES": ("pcie_tx_kbps", 1e-3),
    "DEV_PCIE_LINK_GEN": ("pcie_gen", 1),
    "DEV_PCIE_LINK_WIDTH": ("pcie_width", 1),
    "DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected", 1),
    "DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1),
    "DEV_XID_ERRORS": ("xid", 1),
    "DEV_XID_ERROR": ("xid", 1),
    "PROF_SM_ACTIVE": ("gpm_sm", 1),
    "PROF_SM_UTIL_RATIO": ("gpm_sm", 1),
    "PROF_PIPE_TENSOR_ACTIVE": ("gpm_tensor", 1),
    "PROF_TENSOR_UTIL_RATIO": ("gpm_tensor", 1),
    "PROF_DRAM_ACTIVE": ("gpm_dram", 1),
    "PROF_DRAM_UTIL_RATIO": ("gpm_dram", 1),
}

# What is a sum of fields, each under any of its names; only if all of them are there, and none of ours already is.
SUMS: dict[str, tuple[tuple[tuple[str, ...], ...], float]] = {
    "remapped_rows": (
        (
            ("DEV_CORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_CORRECTABLE_TOTAL"),
            ("DEV_UNCORRECTABLE_REMAPPED_ROWS", "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
        ),
        1,
    ),
    "mem_total_bytes": ((("DEV_FB_USED",), ("DEV_FB_FREE",), ("DEV_FB_RESERVED",)), MIB),
}

_LINE = re.compile(r'^DCGM_FI_(\w+)\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\}\s+(\S+)(?:\s+-?\d+)?\s*$')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_BLANKS = {  # dcgm_structs.h: "blank", and why; one series for 64-bit integers, one for doubles
    0: "no value yet",
    1: "not found",
    2: "not supported",
    3: "no permission",
}
_INT64_BLANK = 0x7FFFFFFFFFFFFFF0
_FP64_BLANK = 1 << 47


@dataclass
class DcgmPage:
    """What one page says.

    Attributes:
        readings: device, our name, value in our unit; None where DCGM has none.
        devices: per device what labels say: index, uuid, name, driver, host, mig.
        refused: our name, and why DCGM has no value for it.
        unmapped: fields that we have no name for.
        malformed: lines that begin like a DCGM field and are none.
    """

    readings: list[Reading] = field(default_factory=list)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    unmapped: set[str] = field(default_factory=set)
    malformed: int = 0


def is_dcgm(page: str) -> bool:
    """Whether a page is a DCGM exporter's: at least one line is one of DCGM's fields."""
    return any(_LINE.match(line) for line in page.splitlines())


def read_page(page: str) -> DcgmPage:
    """Read a page in Prometheus's text format; a line that is broken costs that line only."""
    result = DcgmPage()
    fields: dict[str, dict[str, float | None]] = {}
    for line in page.splitlines():
        if not line.startswith("DCGM_FI_"):
            continue
        matched = _LINE.match(line)
        value, why = _value(matched[3]) if matched else (None, "malformed")
        if matched is None or why == "malformed":
            result.malformed += 1
            continue
        device = _device(dict(_LABEL.findall(matched[2])), result.devices)
        fields.setdefault(device, {}).setdefault(matched[1], value)
        if why is not None and matched[1] in FIELDS:
            result.refused[FIELDS[matched[1]][0]] = why
    for device, values in fields.items():
        result.readings += [(device, name, value) for name, value in _ours(values, result).items()]
    return result


def _ours(values: Mapping[str, float | None], result: DcgmPage) -> dict[str, float | None]:
    """One device's fields under our names."""
    ours: dict[str, float | None] = {}
    parts = {name for fields, _ in SUMS.values() for names in fields for name in names}
    for name, value in values.items():
        if name in FIELDS:
            our, factor = FIELDS[name]
            if ours.get(our) is None:
                ours[our] = None if value is None else value * factor
        elif name not in parts:
            result.unmapped.add(name)
    for our, (fields, factor) in SUMS.items():
        found = [next((values[name] for name in names if values.get(name) is not None), None) for names in fields]
        if ours.get(our) is None and None not in found:
            ours[our] = math.fsum(value for value in found if value is not None) * factor
    return ours


def _device(labels: Mapping[str, str], devices: dict[str, dict[str, Any]]) -> str:
    """The name of the device that the labels tell of, `host/gpu-0` or `host/gpu-0/mig-1`; its facts are noted."""
    host = _lowest(labels.get("Hostname") or labels.get("hostname") or "dcgm")
    index = labels.get("gpu", "?")
    mig = labels.get("GPU_I_ID") or None
    name = f"{host}/gpu-{index}" + (f"/mig-{mig}" if mig else "")
    if name not in devices:
        devices[name] = {
            "device": name,
            "index": int(index) if index.isdecimal() else None,
            "uuid": labels.get("UUID") or labels.get("uuid"),
            "name": labels.get("modelName"),
            "driver": labels.get("DCGM_FI_DRIVER_VERSION") or labels.get("DCGM_FI_SYSTEM_DRIVER_VERSION"),
            "host": host,
            "mig": labels.get("GPU_I_PROFILE") or mig,
        }
    return name


def _lowest(host: str) -> str:
    """A host's name without its domain and anything that would break a device's name."""
    return re.sub(r"[^\w.-]", "_", host.split(".", 1)[0] if not host[:1].isdigit() else host)[:64]


def _value(text: str) -> tuple[float | None, str | None]:
    """A value and, if there is none, why."""
    try:
        number = float(text)
        whole = int(text) if re.fullmatch(r"-?\d+", text) else int(number)
    except (ValueError, OverflowError):
        missing = text.lower().lstrip("+-") in ("nan", "inf")
        return None, "no value" if missing else "malformed"
    for blank in (_INT64_BLANK, _FP64_BLANK):
        if whole - blank in range(16):
            return None, _BLANKS.get(whole - blank, "no value")
    return number, None
