"""What a telemetry server and its client say to each other, in JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec

SERVICE = "servebench-telemetry"

Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Delay = Annotated[int, msgspec.Meta(ge=-(1 << 50), le=1 << 50)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Name = Annotated[str, msgspec.Meta(max_length=200)]


class ClockReading(msgspec.Struct, frozen=True):
    """The server's clock when the request arrived and when the answer was written, in ns of its CLOCK_REALTIME."""

    received_ns: Nanoseconds
    replied_ns: Nanoseconds


class Series(msgspec.Struct, frozen=True, array_like=True):
    """What a value is.

    Attributes:
        id: its number, for as long as the server lives.
        source: name of the source, such as "nvml".
        device, name: as the source has them.
    """

    id: Number
    source: Name
    device: Name
    name: Name


class Sweep(msgspec.Struct, frozen=True, array_like=True):
    """One reading of one source.

    Attributes:
        t_ns: when, by the server's clock.
        series: ids, one a value.
        values: None where the source had none.
        later_ns: by how much each value is later than `t_ns`; empty where all are of that time.
    """

    t_ns: Nanoseconds
    series: list[Number]
    values: list[float | None]
    later_ns: list[Delay] = []


class Batch(msgspec.Struct, frozen=True):
    """Answer to `GET /samples?since=N`.

    Attributes:
        boot: a word that is another one after each start of the server, whose numbers begin again then.
        next: what to ask for next.
        lost: sweeps from N on that are no longer kept.
        more: whether there are more right now than one answer holds.
        series: those of the values in this answer.
        sweeps: in the order in which they were read.
    """

    boot: str
    next: Number
    lost: Number
    more: bool
    series: list[Series]
    sweeps: list[Sweep]
