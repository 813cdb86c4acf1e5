"""The GPUs of this machine as a source of telemetry, through NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml

from servebench.telemetry.nvml_device import SLOW_S, Gpu
from servebench.telemetry.nvml_events import XidWatch
from servebench.telemetry.nvml_facts import system_facts
from servebench.telemetry.nvml_library import close_library, open_library
from servebench.telemetry.nvml_processes import Owners, Residents
from servebench.telemetry.source import Reading, SourceAbsent


class NvmlSource:
    """Samples every GPU that NVML shows; device "gpu-0" is NVML's index 0.

    Units are in the names. `clock_reasons` is a bit mask (see `clock_reasons.decode`), `util_gpu` the share of NVML's
    own last period with any kernel running, `nvlink_*` counters of bytes, `gpm_*` shares of 0 to 1 since the sample
    before, `xid` the last XID error since sampling began (0: none).

    Args:
        hz: samples a second.
        library: path of a libnvidia-ml.so.1; None takes the system's.
        server_pids: processes of the server under test.
        clock: seconds; decides what is due.
    """

    name = "nvml"

    def __init__(
        self,
        hz: float,
        library: str | Path | None = None,
        server_pids: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.hz = hz
        self._library = library
        self._server_pids = server_pids
        self._clock = clock
        self._gpus: list[Gpu] = []
        self._unusable: list[dict[str, Any]] = []
        self._system: dict[str, Any] = {}
        self._xids: XidWatch | None = None
        self._xids_due = 0.0
        self._new = True

    def open(self) -> None:
        """Start NVML and look at every GPU; raises SourceAbsent where there is none."""
        open_library(self._library)
        try:
            self._system = system_facts()
            self._gpus = self._found()
            if not self._gpus:
                raise SourceAbsent(self._why_none())
        except BaseException:
            close_library()
            raise

    def _found(self) -> list[Gpu]:
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise SourceAbsent(f"NVML does not count its GPUs: {error}") from None
        handles: dict[int, Any] = {}
        for index in range(count):
            try:
                handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError as error:
                self._unusable.append({"index": index, "lost": {"t_ns": time.time_ns(), "reason": str(error)}})
        self._xids = XidWatch(handles)
        owners = Owners(self._server_pids)
        return [Gpu(index, handle, Residents(owners, count > 1), self._clock) for index, handle in handles.items()]

    def _why_none(self) -> str:
        if not self._unusable:
            return "the NVIDIA driver shows no GPU"
        return f"none of {len(self._unusable)} GPUs can be used: {self._unusable[0]['lost']['reason']}"

    def sample(self) -> list[Reading]:
        """Read what is due of every GPU; the first time, everything."""
        if self._new:
            self._new = False
            return self.final_sample()
        readings = [reading for gpu in self._gpus for reading in gpu.due()]
        if self._clock() >= self._xids_due:
            readings += self._last_xids()
        for gpu in self._gpus:
            if (lengthy := gpu.lengthy()) is not None:
                return readings + lengthy  # one of them a sample
        return readings

    def final_sample(self) -> list[Reading]:
        """Read everything."""
        return [reading for gpu in self._gpus for reading in gpu.everything()] + self._last_xids()

    def _last_xids(self) -> list[Reading]:
        assert self._xids is not None
        self._xids_due = self._clock() + SLOW_S
        lost = {gpu.index for gpu in self._gpus if gpu.lost}
        return [
            (f"gpu-{index}", "xid", value or (None if index in lost else value))  # a lost GPU's silence says nothing
            for index, value in self._xids.last().items()
        ]

    def facts(self) -> dict[str, Any]:
        """Versions, the devices with all that is known of them, and what none of the devices supports."""
        assert self._xids is not None
        devices = [self._device(gpu, self._xids) for gpu in self._gpus]
        refused = [set(device["not_supported"]) for device in devices]
        return {
            **self._system,
            "not_supported": sorted(set.intersection(*refused)),
            "devices": sorted(devices + self._unusable, key=lambda device: device["index"]),
        }

    def _device(self, gpu: Gpu, xids: XidWatch) -> dict[str, Any]:
        facts = gpu.facts()
        if gpu.index in xids.refused:
            facts["not_supported"]["xid"] = xids.refused[gpu.index]
        return {**facts, "xids": list(xids.seen.get(gpu.index, ()))}

    def close(self) -> None:
        """Let NVML go."""
        for gpu in self._gpus:
            gpu.close()
        if self._xids is not None:
            self._xids.close()
        close_library()
