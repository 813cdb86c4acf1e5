"""A gRPC server for tests, made by hand: it answers each call with one message or one status."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from servebench.profile.tools.hpack import decode_headers, encode_headers

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
Answer = bytes | tuple[int, str]
Handler = Callable[[str, bytes], Answer]


@contextmanager
def grpc_service(handler: Handler, *, ping: bool = False) -> Iterator[int]:
    """Serve on a port of 127.0.0.1, a thread for each connection; `ping` asks for a sign of life before it answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, handler, ping), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, handler: Handler, ping: bool) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, handler, ping), daemon=True).start()


def _serve(connection: socket.socket, handler: Handler, ping: bool) -> None:
    with connection:
        connection.sendall(SETTINGS)
        stream = connection.makefile("rb")
        stream.read(24)  # the preface
        path, answer = "", b""
        while len(head := stream.read(9)) == 9:
            kind, payload = head[3], stream.read(int.from_bytes(head[:3], "big"))
            if kind == 1:
                path = decode_headers(payload)[":path"]
            elif kind == 0:
                answer = _answer(handler(path, payload[5:]))
                connection.sendall(frame(6, 0, 0, b"12345678") if ping else answer)
            elif kind == 6 and head[4] and payload == b"12345678":
                connection.sendall(answer)


def _answer(answer: Answer) -> bytes:
    if isinstance(answer, tuple):
        trailers = [("grpc-status", str(answer[0])), ("grpc-message", answer[1])]
        return frame(1, 5, 1, b"\x20\x88" + encode_headers(trailers))
    message = b"\0" + len(answer).to_bytes(4, "big") + answer
    # several frames, the first of them padded
    first, rest = message[:3], message[3:]
    data = frame(0, 8, 1, b"\2" + first + b"\0\0")
    for at in range(0, len(rest), 16384):
        data += frame(0, 0, 1, rest[at : at + 16384])
    trailers = b"\x40" + encode_headers([("grpc-status", "0")])[1:]
    return frame(1, 4, 1, b"\x20\x88") + data + frame(1, 1, 1, trailers[:4]) + frame(9, 4, 1, trailers[4:])


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
