"""GPU performance monitoring (Hopper and later): what the multiprocessors really do, as means between two samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pynvml

from servebench.telemetry.nvml_fields import REFUSALS

SHORTEST_S = 0.1  # NVML: pairs that are closer together are unreliable

Refuse = Callable[[str, str], None]
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


def has_gpm(handle: Any) -> bool:
    """Whether the device has GPM, and the driver lets us."""
    try:
        return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except pynvml.NVMLError:
        return False


class GpmReader:
    """Keeps two samples and gives the means between them.

    A read that comes less than `SHORTEST_S` after the one before gives nothing.

    Args:
        handle: of the device.
        refuse: told of a metric (name, reason) that the device will never give.
        clock: seconds.

    Raises:
        NVMLError: there is no memory for the samples.
    """

    def __init__(self, handle: Any, refuse: Refuse, clock: Callable[[], float]) -> None:
        self.names = list(METRICS)
        self._handle = handle
        self._refuse = refuse
        self._clock = clock
        self._older = pynvml.nvmlGpmSampleAlloc()
        self._newer = pynvml.nvmlGpmSampleAlloc()
        self._taken: float | None = None
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION

    def read(self) -> Iterator[Value]:
        """Take a sample and give the means since the last one; raises NVMLError."""
        before = self._taken
        if not self.names or (before is not None and self._clock() - before < SHORTEST_S):
            return
        self._take()
        self._taken = self._clock()  # afterwards, so that samples are never closer than it says
        if before is not None:
            yield from self._metrics()

    def _take(self) -> None:
        self._older, self._newer = self._newer, self._older
        try:
            pynvml.nvmlGpmSampleGet(self._handle, self._newer)
        except pynvml.NVMLError as error:
            self._taken = None  # the next one starts a new pair
            if error.value not in REFUSALS:
                raise
            for name in list(self.names):
                self._give_up(name, str(error))

    def _metrics(self) -> Iterator[Value]:
        names, request = tuple(self.names), self._request
        request.numMetrics = len(names)
        request.sample1, request.sample2 = self._older, self._newer
        for place, name in enumerate(names):
            request.metrics[place].metricId = METRICS[name].number
        if names:
            pynvml.nvmlGpmMetricsGet(request)
        for place, name in enumerate(names):
            yield from self._value(name, request.metrics[place])

    def _value(self, name: str, metric: Any) -> Iterator[Value]:
        if metric.nvmlReturn in REFUSALS:
            self._give_up(name, str(pynvml.NVMLError(metric.nvmlReturn)))
        elif metric.nvmlReturn:
            yield name, None
        else:
            yield name, metric.value * METRICS[name].scale

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
