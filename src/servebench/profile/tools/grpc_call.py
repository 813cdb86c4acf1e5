"""One unary gRPC call over a plain TCP connection: as much of HTTP/2 (RFC 9113) as that needs.

A profiler's port is the only gRPC that servebench speaks, two calls a window: a library for it would be the largest of
the dependencies, for the least use.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Self
from urllib.parse import unquote

from servebench.profile.tools.hpack import decode_headers, encode_headers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE = 1, 2, 4
LARGEST_WINDOW = 2**31 - 1  # no flow control from us: the one answer is wanted whole
LARGEST_FRAME = 2**14  # what a peer may send unless we allow more
STREAM = 1
CONNECT_S = 10.0
UNIMPLEMENTED = "12"


class GrpcError(Exception):
    """The call failed: no connection, no HTTP/2 server, or the status that the server gave."""


class Call:
    """A call that was sent and may take its time; to be closed.

    Args:
        address: host and port.
        method: "/package.Service/Method".
        message: the encoded request, at most 16 KiB.
        timeout: seconds after which the server may give up.

    Raises:
        GrpcError: nothing listens there, or it speaks something else.
    """

    def __init__(self, address: tuple[str, int], method: str, message: bytes, timeout: float) -> None:
        self._place = f"{address[0]}:{address[1]}"
        self._stream = _Stream()
        self._received = bytearray()
        try:
            self._socket = socket.create_connection(address, timeout=CONNECT_S)
        except OSError as error:
            raise GrpcError(f"{self._place}: {error.strerror or error}") from None
        try:
            self._send(PREFACE + _greeting() + _request(self._place, method, message, timeout))
            # a server that gets no acknowledgement of its settings hangs up later
            self._until(lambda: self._stream.greeted, CONNECT_S)
        except TimeoutError:
            self.close()
            raise GrpcError(f"{self._place}: no answer in {CONNECT_S:g} s") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, seconds: float) -> bytes:
        """Return the server's message.

        Raises:
            GrpcError: the call failed.
            TimeoutError: the message is not there after `seconds`; it may be asked for again.
        """
        self._until(lambda: self._stream.ended, seconds)
        try:
            return self._stream.message()
        except GrpcError as error:
            raise GrpcError(f"{self._place}: {error}") from None

    def close(self) -> None:
        """Hang up; a server ends a call that still runs."""
        self._socket.close()

    def _until(self, reached: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            self._take(self._receive())

    def _receive(self) -> bytes:
        try:
            piece = self._socket.recv(1 << 18)
        except TimeoutError:
            raise
        except OSError as error:
            raise GrpcError(f"{self._place}: {error.strerror or error}") from None
        if not piece:
            raise GrpcError(f"{self._place} hung up without an answer")
        return piece

    def _take(self, piece: bytes) -> None:
        self._received += piece
        at = 0
        while len(self._received) >= at + 9:
            size = int.from_bytes(self._received[at : at + 3], "big")
            if size > LARGEST_FRAME:
                raise GrpcError(f"{self._place} speaks no HTTP/2: is this the profiler's port?")
            if len(self._received) < at + 9 + size:
                break
            kind, flags = self._received[at + 3], self._received[at + 4]
            self._send(self._stream.take(kind, flags, bytes(self._received[at + 9 : at + 9 + size])))
            at += 9 + size
        del self._received[:at]

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise GrpcError(f"{self._place}: {error.strerror or error}") from None


class _Stream:
    """What the server has sent so far on a connection with a single stream."""

    def __init__(self) -> None:
        self.greeted = self.ended = False
        self._data = bytearray()
        self._block = bytearray()
        self._headers: dict[str, str] = {}
        self._broken: str | None = None

    def take(self, kind: int, flags: int, payload: bytes) -> bytes:
        """Note a frame and return what must be sent in reply."""
        if kind == SETTINGS and not flags & ACK:
            self.greeted = True
            return _frame(SETTINGS, ACK, 0, b"")
        if kind == PING and not flags & ACK:
            return _frame(PING, ACK, 0, payload)
        if kind == DATA:
            self._data += _unpadded(flags, payload)
        elif kind in (HEADERS, CONTINUATION):
            self._add_headers(kind, flags, payload)
        elif kind in (RST_STREAM, GOAWAY):
            self._broken = f"the server {'ended the call' if kind == RST_STREAM else 'closes'} ({payload.hex()})"
        self.ended |= self._broken is not None or (kind in (DATA, HEADERS) and bool(flags & END_STREAM))
        return b""

    def message(self) -> bytes:
        """The one message of the answer. Raises GrpcError where there is none: only a call that went well has one."""
        if len(self._data) >= 5:
            size = int.from_bytes(self._data[1:5], "big")
            if not self._data[0] and len(self._data) == 5 + size:
                return bytes(self._data[5:])
            raise GrpcError("the answer is compressed or cut short")
        status = self._headers.get("grpc-status")
        said = unquote(self._headers.get("grpc-message", "")) or self._broken or "no reason given"
        if status == UNIMPLEMENTED:
            said = "another service listens there"
        raise GrpcError(said if status is None else f"{said} (status {status})")

    def _add_headers(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == HEADERS:
            payload = _unpadded(flags, payload)[5 if flags & PRIORITY else 0 :]
        self._block += payload
        if not flags & END_HEADERS:
            return
        try:
            self._headers |= decode_headers(bytes(self._block))
        except ValueError as error:
            self._broken = str(error)
        self._block.clear()


def _greeting() -> bytes:
    settings = {HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: LARGEST_WINDOW}
    payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings.items())
    widened = (LARGEST_WINDOW - 65535).to_bytes(4, "big")  # the connection's own window starts at 65535
    return _frame(SETTINGS, 0, 0, payload) + _frame(WINDOW_UPDATE, 0, 0, widened)


def _request(authority: str, method: str, message: bytes, timeout: float) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": authority,
        "te": "trailers",
        "grpc-timeout": f"{int(timeout * 1000)}m",
        "content-type": "application/grpc",
    }
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    block = encode_headers(headers.items())
    return _frame(HEADERS, END_HEADERS, STREAM, block) + _frame(DATA, END_STREAM, STREAM, body)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
