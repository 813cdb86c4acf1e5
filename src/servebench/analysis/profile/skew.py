"""How far apart the devices come to the same collective: those that come first wait for the last."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.profile.figures import P50, P99, at_rank, microseconds, share
from servebench.profile.intervals import Ints
from servebench.profile.timeline import Kind, Timeline

Grid = NDArray[np.int64]  # (devices, collectives)


class Joint(NamedTuple):
    """Collectives of one name and one group of devices.

    Attributes:
        devices: int64, in ascending order.
        starts: of each device's part in each collective, (devices, collectives).
    """

    devices: Ints
    starts: Grid


def rank_skew(timeline: Timeline, start: int, end: int) -> dict[str, Any] | None:
    """The `skew` section; None where no collective ran on more than one device within [start, end).

    The k-th collective of a name on one device is taken for the k-th of that name on the others, counted from where all
    of them were captured. Devices whose parts mostly share no instant are no group (they serve other replicas, or other
    stages of a pipeline), for nobody leaves a collective before all have come to it. `last.share` is the part of the
    collectives to which that device came last, and alone so.
    """
    joints = [_within(joint, start, end) for joint in _joints(timeline)]
    joints = [joint for joint in joints if joint.starts.shape[1]]
    if not joints:
        return None
    spread = np.concatenate([np.ptp(joint.starts, axis=0) for joint in joints])
    return {
        "collectives": int(spread.size),
        "p50_us": microseconds(at_rank(spread, P50)),
        "p99_us": microseconds(at_rank(spread, P99)),
        "max_us": microseconds(int(spread.max())),
        "last": _last(np.concatenate([_last_devices(joint) for joint in joints])),
    }


def _joints(timeline: Timeline) -> list[Joint]:
    """The collectives of each name and group of devices."""
    rows = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
    rows = rows[timeline.end[rows] > timeline.start[rows]]
    name = timeline.name[rows]
    return [joint for each in np.unique(name) for joint in _joints_of(timeline, rows[name == each])]


def _joints_of(timeline: Timeline, rows: Ints) -> list[Joint]:
    """The collectives of one name: devices are grouped by whom they share instants with."""
    groups: list[list[Ints]] = []
    for device in np.unique(timeline.device[rows]):
        part = rows[timeline.device[rows] == device]
        group = next((group for group in groups if _are_together(timeline, [group[0], part])), None)
        groups.append([part]) if group is None else group.append(part)
    return [_joint(timeline, group) for group in groups if len(group) > 1]


def _joint(timeline: Timeline, parts: list[Ints]) -> Joint:
    devices = np.array([timeline.device[part[0]] for part in parts], np.int64)
    return Joint(devices, timeline.start[_matched(timeline, parts)])


def _are_together(timeline: Timeline, parts: list[Ints]) -> bool:
    rows = _matched(timeline, parts)
    shared = timeline.start[rows].max(axis=0) < timeline.end[rows].min(axis=0)
    return 2 * int(np.count_nonzero(shared)) > int(shared.size)


def _matched(timeline: Timeline, parts: list[Ints]) -> Grid:
    """Rows of the same collectives: as counted, or counted from where all devices were captured if that fits better."""
    # what had ended when the last device came to its first collective was one that the capture of that device lacks
    joined = max(int(timeline.start[part[0]]) for part in parts)
    counted, trimmed = _grid(parts), _grid([part[timeline.end[part] > joined] for part in parts])
    better = trimmed.size > 0 and _typical_spread(timeline, trimmed) < _typical_spread(timeline, counted)
    return trimmed if better else counted


def _grid(parts: list[Ints]) -> Grid:
    common = min(part.size for part in parts)
    return np.stack([part[:common] for part in parts])


def _typical_spread(timeline: Timeline, rows: Grid) -> int:
    return at_rank(np.ptp(timeline.start[rows], axis=0), P50)


def _within(joint: Joint, start: int, end: int) -> Joint:
    inside = ((joint.starts >= start) & (joint.starts < end)).all(axis=0)
    return joint._replace(starts=joint.starts[:, inside])


def _last_devices(joint: Joint) -> Ints:
    """The device that came last to each collective; −1 where several did."""
    latest = joint.starts.max(axis=0)
    alone = (joint.starts == latest).sum(axis=0) == 1
    return np.where(alone, joint.devices[joint.starts.argmax(axis=0)], -1)


def _last(devices: Ints) -> dict[str, Any] | None:
    known = devices[devices >= 0]
    if not known.size:
        return None
    number = np.bincount(known)
    return {"device": int(number.argmax()), "share": share(int(number.max()), devices.size)}
