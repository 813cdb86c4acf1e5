"""What a scripted server does on one connection: a sequence of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `data` to the kernel in one call; `label` names it in the server's `sent` log."""

    data: bytes
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Let `seconds` pass since the previous step was due, so that the waits of a script add up without drift."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """Send nothing for at most `seconds`; ends early when the client closes."""

    seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Read one request. A script that has this step is played from the accept on; any other, from the first request."""


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Send FIN and keep reading."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection in order (FIN; under TLS a close_notify first)."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Close the connection with a TCP RST."""


Step = Send | Wait | Hang | ReadRequest | HalfClose | Close | Reset
Script = Sequence[Step]


def byte_by_byte(data: bytes, pause: float = 0.0, label: str | None = None) -> list[Step]:
    """`data` in sends of one byte each, `pause` seconds apart; the last of them carries `label`."""
    steps: list[Step] = []
    for at in range(len(data)):
        if at and pause:
            steps.append(Wait(pause))
        steps.append(Send(data[at : at + 1], label if at == len(data) - 1 else None))
    return steps


def split_at(data: bytes, at: int, pause: float = 0.0, label: str | None = None) -> list[Step]:
    """`data` in two sends, cut before byte `at`, `pause` seconds apart; the second carries `label`."""
    return [Send(data[:at]), Wait(pause), Send(data[at:], label)]
