"""What each device did within a window: the `devices` of the answers, and what they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.profile import communication, copies, idle, kernels, launches
from servebench.analysis.profile.figures import share
from servebench.analysis.profile.occupancy import COMPUTE, Occupancy, numbers
from servebench.analysis.rounding import milliseconds
from servebench.profile.intervals import Spans
from servebench.profile.timeline import COPY_KINDS, Kind, Timeline

if TYPE_CHECKING:
    from servebench.analysis.phases import Phases


def describe_devices(timeline: Timeline, start_ns: int, end_ns: int, phases: Phases | None) -> list[dict[str, Any]]:
    """Describe each device that did anything in the capture, within the window; see `survey`."""
    return survey(timeline, start_ns, end_ns, phases)[0]


def survey(
    timeline: Timeline, start_ns: int, end_ns: int, phases: Phases | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Describe each device that did anything in the capture, within the window [start_ns, end_ns).

    Args:
        start_ns, end_ns: on the timeline's clock.
        phases: of the client, on the same clock; without them no gap is put down to a lack of requests.

    Returns:
        the `devices` of the answers, and what a reader must know of them, in sentences.
    """
    described, notes = [], []
    for number in numbers(timeline):
        device = Occupancy.of(timeline, number, start_ns, end_ns)
        described.append(_describe(device, phases))
        notes += [note] if (note := launches.describe_doubt(device)) else []
    return described, notes


def busy_spans(timeline: Timeline, device: int, start: int, end: int) -> Spans:
    """Time of [start, end) in which any row of the device runs, of whatever stream."""
    return Occupancy.of(timeline, device, start, end).busy


def exposed(timeline: Timeline, device: int, start: int, end: int) -> tuple[Spans, NDArray[np.int32]]:
    """Time of [start, end) in which only rows of one name run on the device.

    Returns:
        disjoint pieces in order of time, and the name of each, as index into the timeline's names.
    """
    occupancy = Occupancy.of(timeline, device, start, end)
    pieces, owners = occupancy.exposed()
    return pieces, occupancy.name_ids[owners]


def gaps_with_causes(timeline: Timeline, device: int, start: int, end: int, phases: Phases | None = None) -> idle.Gaps:
    """The gaps of the device within [start, end) and why there was one; see `idle`."""
    return idle.find_gaps(Occupancy.of(timeline, device, start, end), phases)


def _describe(device: Occupancy, phases: Phases | None) -> dict[str, Any]:
    alone = device.exposed_by_name()
    return {
        "device": device.device,
        "name": device.timeline.devices.get(device.device),
        "busy": _busy(device),
        "idle": idle.describe(device, idle.find_gaps(device, phases), phases),
        "kernels": kernels.describe(device, alone),
        "kernels_n": kernels.count_names(device),
        "tiny": kernels.describe_tiny(device),
        "launches": launches.describe(device),
        "copies": copies.describe(device),
        "communication": communication.describe(device, alone),
        "graphs": kernels.describe_graphs(device),
    }


def _busy(device: Occupancy) -> dict[str, Any]:
    """Unions over all streams; only `summed_ms` counts what overlaps more than once, and may exceed the window."""
    total = device.busy.total
    return {
        "ms": milliseconds(total),
        "share": share(total, device.length),
        "compute_ms": milliseconds(device.time_of(*COMPUTE).total),
        "communication_ms": milliseconds(device.time_of(Kind.COMMUNICATION).total),
        "copy_ms": milliseconds(device.time_of(*COPY_KINDS).total),
        "fill_ms": milliseconds(device.time_of(Kind.FILL).total),
        "summed_ms": milliseconds(int((device.ends - device.starts).sum())),
    }
