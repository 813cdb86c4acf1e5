"""XLA's profiler service, as `jax.profiler.start_server(port)` offers it: capture until told to stop.

The messages are those of OpenXLA's profiler_service.proto and profiler_options.proto; the numbers are field numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from servebench.profile.readers.wire_format import field, scan
from servebench.profile.tools.grpc_call import Call

SERVICE = "/tensorflow.ProfilerService"
ANSWER_S = 5.0
UNKNOWN_SESSION = "servebench-asks-who-is-there"


@dataclass(frozen=True, slots=True)
class Levels:
    """How much is traced: 0 nothing, 1 what a user annotates, 2 XLA's own activities too, 3 everything."""

    host: int = 2
    device: int = 1
    python: int = 0  # each Python call of a server, at some microseconds a call


def request(session: str, host: str, root: str, duration: float, levels: Levels) -> bytes:
    """Encode a ProfileRequest.

    The service is asked to send the capture (`emit_xspace`); an old one does not know that, and stores it on its own
    machine, at `root`/`session`/`host`.xplane.pb.
    """
    milliseconds = int(duration * 1000)
    options = field(5, 1) + field(2, levels.host) + field(3, levels.device) + field(4, levels.python)
    options += field(7, 1) + field(9, milliseconds)
    return (
        field(1, milliseconds) + field(4, options) + field(5, root) + field(6, session) + field(7, host) + field(9, 1)
    )


def capture(address: tuple[str, int], message: bytes, timeout: float) -> Call:
    """Begin a capture; the call's answer is there when it has ended. Raises GrpcError."""
    return Call(address, f"{SERVICE}/Profile", message, timeout)


def terminate(address: tuple[str, int], session: str) -> None:
    """End a capture; nothing happens where there is none of that name. Raises GrpcError or TimeoutError."""
    with Call(address, f"{SERVICE}/Terminate", field(1, session), ANSWER_S) as call:
        call.answer(ANSWER_S)


def captured(answer: bytes) -> bytes | None:
    """The XSpace in a ProfileResponse; None when the service kept it. Raises ValueError."""
    return next((bytes(value) for number, value in scan(answer) if number == 8 and not isinstance(value, int)), None)
