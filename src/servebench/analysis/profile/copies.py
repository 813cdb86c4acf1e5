"""Copies by direction: how much, how fast, and how much of it the device did beside its kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.profile.figures import share
from servebench.analysis.profile.occupancy import KERNELS, Occupancy
from servebench.analysis.rounding import milliseconds, rounded
from servebench.profile import intervals
from servebench.profile.intervals import Spans
from servebench.profile.timeline import COPY_KINDS, Kind

DIRECTIONS = {
    Kind.COPY_HTOD: "host to device",
    Kind.COPY_DTOH: "device to host",
    Kind.COPY_DTOD: "within the device",
    Kind.COPY_PEER: "device to device",
    Kind.COPY_HTOH: "host to host",
    Kind.COPY_OTHER: "other",
}


def describe(device: Occupancy) -> list[dict[str, Any]]:
    """The `copies` section, one row a direction that occurs.

    `ms` is the time in which any copy of the direction runs, `exposed_ms` the part without a kernel beside it.
    `gb_per_s` is 10⁹ bytes over the summed durations of whole copies: what a copy gets, not the link; null where the
    tool tells no sizes.
    """
    kernels = device.time_of(*KERNELS)
    return [_row(device, kind, kernels) for kind in COPY_KINDS if bool((device.kind == kind).any())]


def _row(device: Occupancy, kind: Kind, kernels: Spans) -> dict[str, Any]:
    rows = device.kind == kind
    own = intervals.union(device.starts[rows], device.ends[rows])
    exposed = intervals.subtract(own, kernels).total
    size = device.timeline.bytes[device.rows[rows]]
    sized = size >= 0
    took = int(device.durations(rows)[sized].sum())
    return {
        "direction": DIRECTIONS[kind],
        "n": int(np.count_nonzero(rows)),
        "bytes": int(size[sized].sum()) if sized.any() else None,
        "ms": milliseconds(own.total),
        "exposed_ms": milliseconds(exposed),
        "overlapped_share": share(own.total - exposed, own.total),
        "gb_per_s": rounded(int(size[sized].sum()) / took) if took else None,
    }
