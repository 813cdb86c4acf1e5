"""The kernels of a device by the time that nothing else hides."""

from __future__ import annotations

from typing import Any

import numpy as np

from servebench.analysis.profile.figures import P50, P99, at_rank, microseconds, share
from servebench.analysis.profile.occupancy import KERNELS, Bools, Occupancy
from servebench.analysis.rounding import milliseconds
from servebench.profile.intervals import Ints
from servebench.profile.timeline import NONE, Kind

TOP = 20
TINY_NS = 10_000  # about what a launch costs: such kernels are worth fusing, or replaying from a graph


def describe(device: Occupancy, exposed: Ints, *kinds: Kind, top: int = TOP) -> list[dict[str, Any]]:
    """The `top` names of `kinds` (all kernels by default) with the most exposed time.

    Times count within the window. `n` counts whole kernels, also those that its edges cut, and `mean_us`, `p50_us` and
    `p99_us` are of their whole durations. `exposed_share` is the part of a name's own time in which it is exposed.

    Args:
        exposed: of each of the device's names, ns; see `Occupancy.exposed_by_name`.
    """
    rows = device.is_a(*(kinds or KERNELS))
    name = device.name[rows]
    number = np.bincount(name, minlength=exposed.size)
    total = np.bincount(name, weights=(device.ends - device.starts)[rows], minlength=exposed.size)
    ranked = np.lexsort((np.arange(exposed.size), -total, -exposed * (number > 0), number == 0))
    duration = device.durations(rows)
    return [_row(device.names[at], duration[name == at], total[at], exposed[at]) for at in ranked[:top] if number[at]]


def count_names(device: Occupancy) -> int:
    """How many names the device's kernels have."""
    return int(np.count_nonzero(np.bincount(device.name[device.is_a(*KERNELS)])))


def describe_tiny(device: Occupancy) -> dict[str, Any]:
    """The `tiny` section: kernels shorter than `TINY_NS`; `share` is of their number."""
    kernel = device.is_a(Kind.COMPUTE, Kind.COMMUNICATION)
    tiny = kernel.copy()
    tiny[kernel] = device.durations(kernel) < TINY_NS
    number = int(np.count_nonzero(tiny))
    return {
        "below_us": microseconds(TINY_NS),
        "n": number,
        "share": share(number, int(np.count_nonzero(kernel))),
        "ms": milliseconds(int((device.ends[tiny] - device.starts[tiny]).sum())),
    }


def describe_graphs(device: Occupancy) -> dict[str, Any]:
    """The `graphs` section: replays, and the kernels that the tool resolved them into.

    The kernels of one replay share the correlation of its launch; without correlations the number of replays is null.
    """
    nodes = device.is_a(Kind.COMPUTE, Kind.COMMUNICATION) & (device.column("graph") != NONE)
    whole = int(np.count_nonzero(device.is_a(Kind.GRAPH)))
    resolved = _replays(device, nodes)
    return {
        "replays": None if resolved is None else whole + resolved,
        "kernels_in_graphs": int(np.count_nonzero(nodes)),
    }


def _replays(device: Occupancy, nodes: Bools) -> int | None:
    rows = device.rows[nodes]
    correlation, process = device.timeline.correlation[rows], device.timeline.process[rows]
    if bool((correlation == NONE).any()):
        return None
    return sum(np.unique(correlation[process == each]).size for each in np.unique(process))


def _row(name: str, duration: Ints, total: float, exposed: np.int64) -> dict[str, Any]:
    return {
        "name": name,
        "n": int(duration.size),
        "total_ms": milliseconds(total),
        "exposed_ms": milliseconds(int(exposed)),
        "exposed_share": share(int(exposed), total),
        "mean_us": microseconds(duration.sum() / duration.size),
        "p50_us": microseconds(at_rank(duration, P50)),
        "p99_us": microseconds(at_rank(duration, P99)),
    }
