"""What Nsight Compute measured of kernels, as rows of a roofline: how near to which peak, and what that means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from servebench.profile.readers.ncu_table import OTHER, PERCENT, KernelLaunch, read_launches
from servebench.profile.tool import ProfileError

NEAR = 80.0  # per cent of a peak from which the kernel is near that roof
STALLS = 3

DURATION = ("gpu__time_duration.sum", "Duration")
COMPUTE = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput", "SM [%]", "SOL SM")
MEMORY = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput",
    "Memory [%]",
    "SOL Memory",
)
DRAM = (
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput",
    "SOL DRAM",
)
BANDWIDTH = ("dram__bytes.sum.per_second", "Memory Throughput")
READ, WRITTEN = "dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"
OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
POSSIBLE = ("sm__maximum_warps_per_active_cycle_pct", "Theoretical Occupancy")
REGISTERS = ("launch__registers_per_thread", "Registers Per Thread")
CYCLES = "smsp__cycles_elapsed.avg.per_second"
EXECUTED = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
OPERATIONS = {"add": 1.0, "mul": 1.0, "fma": 2.0}  # floating-point operations of an instruction

_STALL = re.compile(
    r"smsp__average_warps?_(?:latency_)?issue_stalled_(?!.*_not_issued)(\w+?)(?:_per_issue_active)?\.(?:ratio|pct)"
)
WAITS = {
    "long_scoreboard": "waits for data from L2 or device memory",
    "short_scoreboard": "waits for shared memory or special functions",
    "lg_throttle": "too many loads and stores in flight",
    "mio_throttle": "too many shared-memory instructions in flight",
    "tex_throttle": "too many texture instructions in flight",
    "math_pipe_throttle": "the arithmetic units are busy",
    "barrier": "waits at a barrier for the other warps",
    "membar": "waits for a memory barrier",
    "wait": "fixed latency between dependent instructions",
    "not_selected": "ready, but another warp was chosen",
    "no_instruction": "waits for instructions to be fetched",
    "branch_resolving": "waits for a branch",
    "drain": "waits for stores at its end",
    "dispatch_stall": "the dispatcher is busy",
    "imc_miss": "waits for constants",
    "sleeping": "sleeps, as it was told",
    "gmma": "waits for the tensor cores",
}
MISSING = {
    "duration_ms": "section SpeedOfLight is missing",
    "compute_percent": "section SpeedOfLight is missing",
    "memory_percent": "section SpeedOfLight is missing",
    "dram_percent": "section SpeedOfLight is missing",
    "gb_per_s": "section MemoryWorkloadAnalysis is missing",
    "peak_gb_per_s": "needs the bandwidth and its share of the peak",
    "flop_per_byte": "needs section SpeedOfLight_RooflineChart, and floating-point instructions in it (those of tensor "
    "cores are not counted)",
    "occupancy_percent": "section Occupancy is missing",
    "possible_occupancy_percent": "section Occupancy is missing",
    "registers": "section LaunchStats is missing",
    "stalls": "section WarpStateStats is missing, or this is the details page, which does not show stalls",
}


def read_ncu(path: Path) -> list[dict[str, Any]]:
    """Read what `ncu --csv` printed, with `--page raw` or `--page details`.

    Returns:
        a row a kernel, the longest first: "kernel", "launches", "duration_ms" (mean), "compute_percent",
        "memory_percent" (of the busiest part of the memory system), "dram_percent", "gb_per_s", "peak_gb_per_s",
        "flop_per_byte", "occupancy_percent", "possible_occupancy_percent", "registers" (a thread), "stalls" (the
        largest: "reason", "share" of a warp's time, "text"), "roof" ("bandwidth", "cache", "compute", "latency" or
        None), "reading" (what that means), "missing" (why a value is None). Rates are means over the launches' time.

    Raises:
        ProfileError: it cannot be read, or holds no kernel.
    """
    try:
        launches = read_launches(path)
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path} cannot be read as a table of Nsight Compute: {error}") from None
    groups: dict[str, list[KernelLaunch]] = defaultdict(list)
    for launch in launches:
        groups[launch.kernel].append(launch)
    rows = [_row(kernel, group) for kernel, group in groups.items()]
    return sorted(rows, key=lambda row: -(row["duration_ms"] or 0.0) * row["launches"])


def _row(kernel: str, launches: Sequence[KernelLaunch]) -> dict[str, Any]:
    def mean(of: Callable[[KernelLaunch], float | None]) -> float | None:
        return _mean(launches, of)

    seconds = [value for each in launches if (value := each.get(OTHER, *DURATION)) is not None]
    dram, bandwidth = mean(lambda each: each.get(PERCENT, *DRAM)), mean(_bandwidth)
    row: dict[str, Any] = {
        "kernel": kernel,
        "launches": len(launches),
        "duration_ms": sum(seconds) / len(seconds) * 1e3 if seconds else None,
        "compute_percent": mean(lambda each: each.get(PERCENT, *COMPUTE)),
        "memory_percent": mean(lambda each: each.get(PERCENT, *MEMORY)),
        "dram_percent": dram,
        "gb_per_s": None if bandwidth is None else bandwidth / 1e9,
        "peak_gb_per_s": bandwidth / 1e9 / (dram / 100) if bandwidth is not None and dram else None,
        "flop_per_byte": mean(_intensity),
        "occupancy_percent": mean(lambda each: each.get(PERCENT, *OCCUPANCY)),
        "possible_occupancy_percent": mean(lambda each: each.get(PERCENT, *POSSIBLE)),
        "registers": _largest(launches, REGISTERS),
        "stalls": _stalls(launches),
    }
    row["roof"], row["reading"] = _reading(row)
    row["missing"] = {key: reason for key, reason in MISSING.items() if row[key] is None}
    return row


def _mean(launches: Sequence[KernelLaunch], of: Callable[[KernelLaunch], float | None]) -> float | None:
    """Mean over the time of the launches that have a value; over their number where no duration is known."""
    found = [(value, each.get(OTHER, *DURATION) or 0.0) for each in launches if (value := of(each)) is not None]
    if not found:
        return None
    total = sum(seconds for _, seconds in found)
    if not total:
        return sum(value for value, _ in found) / len(found)
    return sum(value * seconds for value, seconds in found) / total


def _largest(launches: Sequence[KernelLaunch], names: Sequence[str]) -> int | None:
    found = [value for each in launches if (value := each.get(OTHER, *names)) is not None]
    return int(max(found)) if found else None


def _bandwidth(launch: KernelLaunch) -> float | None:
    """Bytes a second to and from device memory."""
    whole = launch.get(OTHER, *BANDWIDTH)
    read, written = launch.get(OTHER, READ), launch.get(OTHER, WRITTEN)
    return read + written if whole is None and read is not None and written is not None else whole


def _intensity(launch: KernelLaunch) -> float | None:
    """Floating-point operations outside of tensor cores, a byte of device memory; as ncu's roofline chart has it."""
    cycles, bandwidth = launch.get(OTHER, CYCLES), _bandwidth(launch)
    a_cycle = sum(
        (launch.get(OTHER, EXECUTED.format(precision + operation)) or 0.0) * weight
        for precision in "hfd"
        for operation, weight in OPERATIONS.items()
    )
    return a_cycle * cycles / bandwidth if a_cycle and cycles and bandwidth else None


def _stalls(launches: Sequence[KernelLaunch]) -> list[dict[str, Any]] | None:
    """What warps wait for, as shares of the time between two instructions of a warp; issuing one is a part of it."""
    cycles: dict[str, float] = defaultdict(float)
    for launch in launches:
        for name, values in launch.metrics.items():
            if found := _STALL.fullmatch(name):
                cycles[found[1]] += sum(values.values())
    total = sum(cycles.values())
    waits = sorted(((value, name) for name, value in cycles.items() if name != "selected"), reverse=True)
    if not total:
        return None
    return [
        {"reason": name, "share": value / total, "text": WAITS.get(name, name.replace("_", " "))}
        for value, name in waits[:STALLS]
        if value
    ]


def _reading(row: dict[str, Any]) -> tuple[str | None, str]:
    """The roof that the kernel is near, and what to do about it."""
    dram, memory, compute = (row[key] or 0.0 for key in ("dram_percent", "memory_percent", "compute_percent"))
    if row["compute_percent"] is None or (row["memory_percent"] is None and row["dram_percent"] is None):
        return None, "not known: the capture lacks the throughput of compute or of memory"
    busiest = max(dram, memory)
    if max(busiest, compute) < NEAR:
        return "latency", _latency(row, busiest, compute)
    if compute > busiest:
        return (
            "compute",
            f"near the compute roof ({compute:.0f} %): faster math (tensor cores, lower precision, less of it)",
        )
    if dram >= NEAR:
        return "bandwidth", f"near the bandwidth roof ({dram:.0f} %): move fewer bytes (smaller types, fusion, reuse)"
    return (
        "cache",
        f"near the roof of a cache ({memory:.0f} %, device memory {dram:.0f} %): fewer accesses, better ordered",
    )


def _latency(row: dict[str, Any], memory: float, compute: float) -> str:
    text = f"near no roof (memory {memory:.0f} %, compute {compute:.0f} %), so latency: more parallelism"
    if row["occupancy_percent"] is not None:
        text += f" (occupancy is {row['occupancy_percent']:.0f} %)"
    if row["stalls"]:
        first = row["stalls"][0]
        text += f"; a warp mostly {first['text']}" if first["text"].startswith("wait") else f"; mostly {first['text']}"
        text += f" ({100 * first['share']:.0f} % of its time)"
    return text
