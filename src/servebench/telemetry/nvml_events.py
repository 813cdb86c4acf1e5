"""XID errors: what the driver logs when a GPU or a program on it goes wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pynvml

MOST_AT_ONCE = 32


class XidWatch:
    """Listens for XID errors on all GPUs, without ever waiting for one.

    Args:
        handles: of the devices, by index.
    """

    def __init__(self, handles: Mapping[int, Any]) -> None:
        self.seen: dict[int, list[dict[str, int]]] = {}
        self.refused: dict[int, str] = {}
        self.failure: str | None = None
        self._set: Any = None
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self.refused = {index: str(error) for index in handles}
            return
        for index, handle in handles.items():
            self._listen(index, handle)

    def _listen(self, index: int, handle: Any) -> None:
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            self.seen[index] = []
        except pynvml.NVMLError as error:
            self.refused[index] = str(error)

    def last(self) -> dict[int, float | None]:
        """The last XID of each GPU that can tell; 0 where none has come since sampling began, None where unreadable."""
        if self.seen:
            self._collect()
        return {index: float(xids[-1]["xid"]) if xids else self._none() for index, xids in self.seen.items()}

    def _none(self) -> float | None:
        return None if self.failure else 0.0

    def _collect(self) -> None:
        self.failure = None
        for _ in range(MOST_AT_ONCE):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
                index = pynvml.nvmlDeviceGetIndex(event.device)
            except pynvml.NVMLError as error:
                if error.value not in (pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_GPU_IS_LOST):
                    self.failure = str(error)
                return
            if index in self.seen:
                self.seen[index].append({"t_ns": time.time_ns(), "xid": int(event.eventData)})

    def close(self) -> None:
        """Stop listening."""
        if self._set is not None:
            try:
                pynvml.nvmlEventSetFree(self._set)
            except pynvml.NVMLError:
                pass  # nothing is left of it
