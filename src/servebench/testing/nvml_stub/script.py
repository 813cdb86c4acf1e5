"""The script of the NVML stub: what its GPUs answer over time, as lines of text.

One statement a line; times are seconds since nvmlInit:

    driver TEXT | nvml TEXT | cuda NUMBER | init CODE        the machine; CODE is what nvmlInit returns
    GPU line KEY T:VALUE ...                                 a value that moves in straight lines between the points
    GPU step KEY T:VALUE ...                                 one that holds until the next point
    GPU hold KEY SECONDS                                     readings are renewed only so often, as a real sensor's are
    GPU error KEY CODE FROM TO                               NVML's error code instead of a value ("*": of every one)
    GPU stall FROM TO                                        calls in between return when it is over
    GPU lost T                                               NVML_ERROR_GPU_IS_LOST from then on
    GPU process PID BYTES FROM TO                            a process with memory; -1 bytes: not available
    GPU xid T NUMBER                                         an XID error
    GPU mig UUID BYTES                                       a MIG device
    GPU name|uuid|vbios|pci TEXT

What is not mentioned is not supported. Power is in mW (`power_instant`); `energy` (mJ) is its exact integral and
`power_average` its mean over the last second, unless they are scripted themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Points = Sequence[tuple[float, float]]

GIB = 1 << 30
FOREVER = math.inf
NOT_SUPPORTED = 3
STEPPED = frozenset({"clock_reasons", "throttle_reasons", "pcie_gen", "pcie_width", "mig_mode", "ecc_uncorrected"})

DEFAULTS: Mapping[str, float] = {
    "persistence_mode": 1,
    "compute_mode": 0,
    "architecture": 9,
    "compute_major": 9,
    "compute_minor": 0,
    "cores": 16896,
    "memory_bus_bits": 5120,
    "mig_mode": 0,
    "mig_mode_pending": 0,
    "mig_devices_max": 7,
    "ecc_mode": 1,
    "ecc_mode_pending": 1,
    "util_gpu": 0,
    "util_mem": 0,
    "mem_total": 80 * GIB,
    "mem_used": 0,
    "mem_reserved": GIB // 2,
    "power_instant": 100_000,
    "power_usage": 100_000,
    "energy_base": 5_000_000_000,
    "power_limit": 700_000,
    "power_limit_default": 700_000,
    "power_limit_min": 200_000,
    "power_limit_max": 700_000,
    "clock_sm": 1980,
    "clock_mem": 2619,
    "clock_sm_app": 1980,
    "clock_sm_max": 1980,
    "clock_mem_max": 2619,
    "clock_reasons": 0,
    "temp_gpu": 40,
    "temp_mem": 45,
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_rx": 1000,
    "pcie_tx": 2000,
    "nvlink_rx": 0,
    "nvlink_tx": 0,
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "remapped_corrected": 0,
    "remapped_uncorrected": 0,
    "remapped_pending": 0,
    "remapped_failed": 0,
    "gpm_sm": 0,
    "gpm_tensor": 0,
    "gpm_dram": 0,
    "gpm_pcie_rx": 1,
    "gpm_pcie_tx": 2,
}


@dataclass(frozen=True, slots=True)
class StubProcess:
    """A process that has memory on a GPU from one second to another; `memory_bytes` None: not available."""

    pid: int
    memory_bytes: int | None = GIB
    start: float = 0.0
    end: float = FOREVER


@dataclass(frozen=True, slots=True)
class StubError:
    """An NVML error code instead of the value of `key` ("*": every value) from one second to another."""

    key: str
    code: int
    start: float = 0.0
    end: float = FOREVER


@dataclass(frozen=True, slots=True)
class StubGpu:
    """One GPU, by default an idle one that answers everything.

    Attributes:
        values: by key (see `DEFAULTS`), a constant or (second, value) points; power in mW.
        holds: by key, seconds for which a reading is kept; of energy under "energy_base".
        refused: keys that are not supported.
        errors: what goes wrong and when.
        stalls: (from, to) seconds in which calls hang.
        lost: second from which the GPU is lost.
        processes: who has memory on it.
        xids: (second, number).
        mig: bytes of each MIG device.
        name, uuid, vbios, pci: texts.
    """

    values: Mapping[str, float | Points] = field(default_factory=dict)
    holds: Mapping[str, float] = field(default_factory=dict)
    refused: Sequence[str] = ()
    errors: Sequence[StubError] = ()
    stalls: Sequence[tuple[float, float]] = ()
    lost: float | None = None
    processes: Sequence[StubProcess] = ()
    xids: Sequence[tuple[float, int]] = ()
    mig: Sequence[int] = ()
    name: str = "Stub H100"
    uuid: str = ""
    vbios: str = "96.00.00.00.01"
    pci: str = ""

    def lines(self, index: int) -> Iterator[str]:
        """The statements about this GPU."""
        yield f"{index} name {self.name}"
        yield f"{index} uuid {self.uuid or f'GPU-{index:08d}-5e4b-be4c-0000-000000000000'}"
        yield f"{index} vbios {self.vbios}"
        yield f"{index} pci {self.pci or f'00000000:{index + 1:02X}:00.0'}"
        for line in (*self._values(), *self._faults(), *self._guests()):
            yield f"{index} {line}"

    def _values(self) -> Iterator[str]:
        for key, value in {**DEFAULTS, **self.values}.items():
            points = [(0.0, value)] if isinstance(value, int | float) else value
            written = " ".join(f"{t!r}:{v!r}" for t, v in points)
            yield f"{'step' if key in STEPPED else 'line'} {key} {written}"
        for key, seconds in self.holds.items():
            yield f"hold {key} {seconds!r}"

    def _faults(self) -> Iterator[str]:
        refusals = [StubError(key, NOT_SUPPORTED) for key in self.refused]
        for error in (*refusals, *self.errors):
            yield f"error {error.key} {error.code} {error.start!r} {error.end!r}"
        for start, end in self.stalls:
            yield f"stall {start!r} {end!r}"
        if self.lost is not None:
            yield f"lost {self.lost!r}"

    def _guests(self) -> Iterator[str]:
        for process in self.processes:
            size = -1 if process.memory_bytes is None else process.memory_bytes
            yield f"process {process.pid} {size} {process.start!r} {process.end!r}"
        for second, number in self.xids:
            yield f"xid {second!r} {number}"
        for place, size in enumerate(self.mig):
            yield f"mig MIG-{place:08d}-5e4b-be4c-0000-000000000000 {size}"


@dataclass(frozen=True, slots=True)
class StubMachine:
    """What the library finds; `init` is the code that nvmlInit returns."""

    gpus: Sequence[StubGpu] = (StubGpu(),)
    driver: str = "580.00.00"
    nvml: str = "13.580.00"
    cuda: int = 13000
    init: int = 0

    def text(self) -> str:
        """The script."""
        head = [f"driver {self.driver}", f"nvml {self.nvml}", f"cuda {self.cuda}", f"init {self.init}"]
        return "\n".join([*head, *(line for place, gpu in enumerate(self.gpus) for line in gpu.lines(place)), ""])


def integral(points: Points, until: float) -> float:
    """Exact integral from 0 to `until` of straight lines through `points`; the first and last values go on."""
    total, (t, value) = 0.0, (0.0, points[0][1])
    for end, height in points:
        stop = min(end, until)
        if stop > t:
            at_stop = value + (height - value) * (stop - t) / (end - t)
            total += (value + at_stop) / 2 * (stop - t)
        t, value = end, height
        if end >= until:
            return total
    return total + value * (until - t)
