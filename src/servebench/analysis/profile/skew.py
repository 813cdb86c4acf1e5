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
    """Collectives of one name on several devices.

    Attributes:
        devices: int64, in ascending order.
        starts: of each device's part in each collective, (devices, collectives).
    """

    devices: Ints
    starts: Grid


def rank_skew(timeline: Timeline, start: int, end: int) -> dict[str, Any] | None:
    """The `skew` section; None where no collective ran on more than one device within [start, end).

    The k-th collective of a name on one device is taken for the k-th of that name on the others, counted from where all
    of them were captured. `last.share` is the part of the collectives to which that device came last, and alone so.
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
    """The collectives of each name that more than one device has."""
    rows = np.flatnonzero(timeline.kind == Kind.COMMUNICATION)
    rows = rows[timeline.end[rows] > timeline.start[rows]]
    name = timeline.name[rows]
    found = [_joint(timeline, rows[name == each]) for each in np.unique(name)]
    return [joint for joint in found if joint is not None]


def _joint(timeline: Timeline, rows: Ints) -> Joint | None:
    """The collectives of one name: matched as counted, or from where all devices were captured, if that fits better."""
    devices = np.unique(timeline.device[rows]).astype(np.int64)
    if devices.size < 2:
        return None
    parts = [rows[timeline.device[rows] == device] for device in devices]
    # A collective ends nowhere before all have come to it: what had ended when the last device came to its first was
    # another one, which the capture of that device does not have.
    joined = max(int(timeline.start[part[0]]) for part in parts)
    late = [part[timeline.end[part] > joined] for part in parts]
    counted, trimmed = _grid(timeline, parts), _grid(timeline, late)
    better = trimmed.shape[1] > 0 and _typical_spread(trimmed) < _typical_spread(counted)
    return Joint(devices, trimmed if better else counted)


def _grid(timeline: Timeline, parts: list[Ints]) -> Grid:
    common = min(part.size for part in parts)
    return np.stack([timeline.start[part[:common]] for part in parts])


def _typical_spread(starts: Grid) -> int:
    return at_rank(np.ptp(starts, axis=0), P50)


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
