"""A server that plays any stream, byte by byte, on a timetable, and remembers when it sent what.

It runs in threads of its own on blocking sockets, so that a client's event loop and the server never share a thread.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from servebench.testing.script import Close, HalfClose, Hang, ReadRequest, Reset, Script, Send, Step, Wait


@dataclass(frozen=True, slots=True)
class RequestSeen:
    """A request as it came.

    Attributes:
        method, path: of the request line.
        headers: names in lower case.
        body: decoded from its framing.
        raw: head and body as received.
        connection: number of the connection, from 0.
        received_ns: CLOCK_REALTIME when its last byte had been read.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    raw: bytes
    connection: int
    received_ns: int

    def json(self) -> Any:
        """The body, decoded as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Sent:
    """One `Send` as it happened; CLOCK_REALTIME ns just before and just after the bytes went to the kernel."""

    connection: int
    label: str | None
    realtime_ns: int
    done_ns: int
    data: bytes


class ScriptedServer:
    """Plays a script on every connection, on a free port of 127.0.0.1. A context manager.

    A script is played when a request has been read (see `ReadRequest` for the exception); at its end the next request
    on the connection is read and the script played again.

    Args:
        script: the steps, or a function from the request to the steps.
        tls: a server-side context to speak https.
        stretch: factor on every `Wait`, for machines too busy to tell sends apart that lie milliseconds apart.

    Attributes:
        requests: what clients sent, in order.
        sent: every `Send` that was played, in order.
        connections: how many were accepted.
        errors: what went wrong with a connection other than the client leaving; worth asserting empty.
    """

    def __init__(
        self, script: Script | Callable[[RequestSeen], Script], tls: ssl.SSLContext | None = None, stretch: float = 1.0
    ) -> None:
        self._stretch = stretch
        self._script = script
        self._tls = tls
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.requests: list[RequestSeen] = []
        self.sent: list[Sent] = []
        self.errors: list[BaseException] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        """`http://127.0.0.1:port`, or https."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def at(self, label: str) -> Sent:
        """The last `Send` with this label; KeyError when none was played."""
        for sent in reversed(self.sent):
            if sent.label == label:
                return sent
        raise KeyError(label)

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=10)

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            number = self.connections
            self.connections += 1  # before it is served: whoever has its answer may ask for the number
            self._spawn(self._serve, sock, number)

    def _serve(self, sock: socket.socket, number: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with self._kept(self._secured(sock)) as kept:
                _Connection(self, kept, number, self._stop, self._stretch).run(self._script)
        except (ConnectionError, ssl.SSLError, TimeoutError):
            pass  # the client left, which clients may
        except Exception as exc:  # noqa: BLE001 - kept for the test to look at
            self.errors.append(exc)
        finally:
            sock.close()

    def _secured(self, sock: socket.socket) -> socket.socket:
        if not self._tls:
            return sock
        sock.settimeout(10)
        secured = self._tls.wrap_socket(sock, server_side=True)
        secured.settimeout(None)
        return secured

    @contextmanager
    def _kept(self, sock: socket.socket) -> Iterator[socket.socket]:
        """Keep `sock` where `__exit__` finds it, so that no thread outlives the server in a blocking call."""
        with self._lock:
            self._open.add(sock)
        try:
            yield sock
        finally:
            with self._lock:
                self._open.discard(sock)


class _EndedError(Exception):
    """The script closed the connection."""


class _Connection:
    """One connection being played."""

    def __init__(
        self, server: ScriptedServer, sock: socket.socket, number: int, stop: threading.Event, stretch: float
    ) -> None:
        self._server, self._sock, self._number, self._stop, self._stretch = server, sock, number, stop, stretch
        self._received = bytearray()
        self._due = time.monotonic()

    def run(self, script: Script | Callable[[RequestSeen], Script]) -> None:
        try:
            if not callable(script) and any(isinstance(step, ReadRequest) for step in script):
                self._play(script)
            else:
                while (seen := self._read_request()) and not self._stop.is_set():
                    self._play(script(seen) if callable(script) else script)
        except _EndedError:
            return
        finally:
            self._sock.close()

    def _play(self, script: Script) -> None:
        self._due = time.monotonic()
        for step in script:
            self._do(step)

    def _do(self, step: Step) -> None:
        match step:
            case Send():
                self._send(step)
            case Wait():
                self._due += step.seconds * self._stretch
                self._stop.wait(max(0.0, self._due - time.monotonic()))
            case Hang():
                self._hang(step.seconds)
            case ReadRequest():
                self._read_request()
                self._due = time.monotonic()
            case HalfClose():
                self._sock.shutdown(socket.SHUT_WR)
            case Close():
                self._close()
            case Reset():
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise _EndedError

    def _send(self, step: Send) -> None:
        before = time.time_ns()
        self._sock.sendall(step.data)
        self._server.sent.append(Sent(self._number, step.label, before, time.time_ns(), step.data))

    def _hang(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stop.is_set() and (left := end - time.monotonic()) > 0:
            if select.select([self._sock], [], [], min(left, 0.2))[0] and not self._read_more():
                raise _EndedError

    def _close(self) -> None:
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock.settimeout(1)
            with suppress(OSError):
                self._sock = self._sock.unwrap()
        self._sock.shutdown(socket.SHUT_WR)
        raise _EndedError

    def _read_more(self) -> bool:
        data = self._sock.recv(1 << 16)
        self._received += data
        return bool(data)

    def _read_request(self) -> RequestSeen | None:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if not self._read_more():
                return None
        line, *fields = bytes(self._received[:end]).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
        size = end + 4 + int(headers.get("content-length", "0"))
        while len(self._received) < size:
            if not self._read_more():
                return None
        raw = bytes(self._received[:size])
        del self._received[:size]
        method, path, _ = line.split(" ", 2)
        seen = RequestSeen(method, path, headers, raw[end + 4 :], raw, self._number, time.time_ns())
        self._server.requests.append(seen)
        return seen


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port of 127.0.0.1 where every connection is refused, and that nobody else can take meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextmanager
def unanswering_port() -> Iterator[int]:
    """A port of 127.0.0.1 where connections are neither accepted nor refused: its queue of waiting ones is full."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        address = sock.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(address)
            yield address[1]
        finally:
            for one in waiting:
                one.close()
