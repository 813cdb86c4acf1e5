"""Collectives of a device: how long, and how much of it hides behind other work."""

from __future__ import annotations

from typing import Any

from servebench.analysis.profile import kernels
from servebench.analysis.profile.figures import share
from servebench.analysis.profile.occupancy import Occupancy
from servebench.analysis.rounding import milliseconds
from servebench.profile import intervals
from servebench.profile.intervals import Ints
from servebench.profile.timeline import DEVICE_KINDS, Kind


def describe(device: Occupancy, exposed: Ints) -> dict[str, Any] | None:
    """The `communication` section; None without a collective.

    `exposed_ms` is the time in which collectives run and nothing else does; the rest hides behind compute or copies.
    """
    own = device.time_of(Kind.COMMUNICATION)
    if not own.starts.size:
        return None
    others = device.time_of(*(kind for kind in DEVICE_KINDS if kind != Kind.COMMUNICATION))
    alone = intervals.subtract(own, others).total
    return {
        "ms": milliseconds(own.total),
        "exposed_ms": milliseconds(alone),
        "hidden_share": share(own.total - alone, own.total),
        "kernels": kernels.describe(device, exposed, Kind.COMMUNICATION),
    }
