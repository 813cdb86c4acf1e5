"""GPU performance monitoring (Hopper and later): what the multiprocessors really do, as means between two samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from servebench.telemetry.nvml_fields import LOSSES, REFUSALS

SHORTEST_S = 0.1  # NVML: pairs that are closer together are unreliable

Refuse = Callable[[str, str], None]
Fail = Callable[[str, str], None]
Value = tuple[str, float | None]


class Metric(NamedTuple):
    """NVML_GPM_METRIC_... and the factor from its unit to ours."""

    number: int
    scale: float


METRICS: dict[str, Metric] = {
    "gpm_sm": Metric(pynvml.NVML_GPM_METRIC_SM_UTIL, 0.01),
    "gpm_tensor": Metric(pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
    "gpm_dram": Metric(pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
    "pcie_rx_kbps": Metric(pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, 1048.576),  # MiB/s
    "pcie_tx_kbps": Metric(pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, 1048.576),
}


def why_no_gpm(handle: Any) -> str | None:
    """Why the device gives no such metrics; None where it does."""
    try:
        supported = bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except pynvml.NVMLError as error:
        return f"no GPM: {error}"
    return None if supported else "no GPM (before Hopper)"


class GpmReader:
    """Keeps two samples and gives the means between them.

    A read that comes less than `SHORTEST_S` after the one before gives nothing.

    Args:
        handle: of the device.
        refuse: told (name, reason) of a metric that the device will never give.
        fail: told (name, reason) of one that it did not give this time.
        clock: seconds.

    Raises:
        NVMLError: there is no memory for the samples.
    """

    def __init__(self, handle: Any, refuse: Refuse, fail: Fail, clock: Callable[[], float]) -> None:
        self.names = list(METRICS)
        self._handle = handle
        self._refuse = refuse
        self._fail = fail
        self._clock = clock
        self._older = pynvml.nvmlGpmSampleAlloc()
        self._newer = pynvml.nvmlGpmSampleAlloc()
        self._taken: float | None = None
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._answers = [self._request.metrics[place] for place in range(len(METRICS))]

    def read(self) -> list[Value]:
        """Take a sample and give the means since the last one; raises NVMLError where the device is lost."""
        before = self._taken
        if not self.names or (before is not None and self._clock() - before < SHORTEST_S):
            return []
        try:
            self._take()
            return self._metrics() if before is not None else []
        except pynvml.NVMLError as error:
            self._taken = None  # the next sample starts a new pair
            if error.value in LOSSES:
                raise
            return self._without(error)

    def _take(self) -> None:
        self._older, self._newer = self._newer, self._older
        pynvml.nvmlGpmSampleGet(self._handle, self._newer)
        self._taken = self._clock()  # afterwards, so that samples are never closer than it says

    def _metrics(self) -> list[Value]:
        request, names = self._request, tuple(self.names)
        request.sample1, request.sample2, request.numMetrics = self._older, self._newer, len(names)
        asked = list(zip(names, self._answers, strict=False))
        for name, answer in asked:
            answer.metricId = METRICS[name].number
        pynvml.nvmlGpmMetricsGet(request)
        return [value for name, answer in asked for value in self._value(name, answer)]

    def _value(self, name: str, answer: Any) -> list[Value]:
        code = answer.nvmlReturn
        if not code:
            return [(name, answer.value * METRICS[name].scale)]
        reason = str(pynvml.NVMLError(code))
        if code in REFUSALS:
            self._give_up(name, reason)
            return []
        self._fail(name, reason)
        return [(name, None)]

    def _without(self, error: Any) -> list[Value]:
        names = tuple(self.names)
        if error.value in REFUSALS:
            for name in names:
                self._give_up(name, str(error))
            return []
        for name in names:
            self._fail(name, str(error))
        return [(name, None) for name in names]

    def _give_up(self, name: str, reason: str) -> None:
        self.names.remove(name)
        self._refuse(name, reason)

    def close(self) -> None:
        """Free the samples."""
        for sample in (self._older, self._newer):
            try:
                pynvml.nvmlGpmSampleFree(sample)
            except pynvml.NVMLError:
                pass  # with a lost device there is nothing to free
