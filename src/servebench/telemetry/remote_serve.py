"""The telemetry of a GPU host, served to a client on another machine: samples, facts and the clock."""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from servebench import __version__
from servebench.errors import UsageError
from servebench.telemetry.remote_messages import SERVICE, ClockReading
from servebench.telemetry.remote_ring import CAPACITY, Ring
from servebench.telemetry.source import Reading, Source, SourceLoop

MAX_CONNECTIONS = 64
IDLE_LIMIT_S = 60.0
END_LIMIT_S = 2.0
HOST_HZ = 2.0
FACTS_EVERY_S = 5.0


def local_sources(
    nvml_hz: float, nvml_library: str | None = None, server_pids: tuple[int, ...] = ()
) -> dict[str, Callable[[], Source]]:
    """How the sources of this machine are made, by name; each imports what it needs when it is called."""

    def nvml() -> Source:
        from servebench.telemetry.nvml import NvmlSource

        return NvmlSource(nvml_hz, nvml_library, list(server_pids))

    def host() -> Source:
        from servebench.telemetry.host_source import HostSource

        return HostSource(HOST_HZ)

    return {"nvml": nvml, "host": host}


class Refreshed:
    """A source whose facts are looked at again every few seconds, in its own thread, for clients that come and go."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.hz = source.hz
        self.open = source.open
        self.close = source.close
        self.facts = source.facts
        self.latest: dict[str, Any] = {}
        self._source = source
        self._due = 0.0

    def sample(self) -> Sequence[Reading]:
        """The source's sample."""
        readings = self._source.sample()
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + FACTS_EVERY_S
            try:
                self.latest = self._source.facts()
            except Exception:  # noqa: BLE001  facts are an extra: the sample counts, and the last ones stay
                pass
        return readings


class TelemetryServer:
    """Samples sources and answers `GET /clock`, `/samples?since=N&after=NS` and `/facts`.

    Args:
        sources: how each source is made, by its name; called in the source's own thread.
        host: address to listen on; beyond loopback only with a token.
        port: 0 takes a free one.
        token: what a client must send as its bearer token; None lets all of this machine in.
        name: of this machine, in front of the device names.
        tls: certificate and key, for https.
        clock: CLOCK_REALTIME in ns; another one moves every stamp that leaves this server.
        capacity: values that are kept for clients.

    Raises:
        UsageError: the address is unknown, or not loopback and there is no token, or the token cannot be sent.
        OSError: the address cannot be bound.
    """

    def __init__(
        self,
        sources: Mapping[str, Callable[[], Source]],
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        name: str | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], int] = time.time_ns,
        capacity: int = CAPACITY,
    ) -> None:
        self._clock = clock
        self.name = name or socket.gethostname().split(".", 1)[0] or "host"
        self._boot = secrets.token_hex(8)
        self._ring = Ring(self._boot, capacity)
        self._refreshed: dict[str, Refreshed] = {}
        self._loops = [SourceLoop(each, self._made(each, make), self._take) for each, make in sources.items()]
        address = _address(host, port, token)
        self._listener = _Listener(address, self._answer, _checked(token), tls, clock)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.1,), name="telemetry server")
        self._tls = tls is not None

    @property
    def url(self) -> str:
        """The base URL, without a trailing slash."""
        host, port = self._listener.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http{'s' if self._tls else ''}://{shown}:{port}"

    def start(self) -> Self:
        """Begin to sample and to answer; returns once each source has its first sample or is known to be absent."""
        for loop in self._loops:
            loop.start()
        for loop in self._loops:
            loop.baselined.wait(END_LIMIT_S)
        self._thread.start()
        return self

    def sources(self) -> dict[str, dict[str, Any]]:
        """What each source reports: see `SourceLoop.report`; its own facts are a few seconds old at most."""
        return {loop.name: {**loop.report(), **self._latest(loop.name)} for loop in self._loops}

    def _latest(self, name: str) -> dict[str, Any]:
        return self._refreshed[name].latest if name in self._refreshed else {}

    def _made(self, name: str, make: Callable[[], Source]) -> Callable[[], Source]:
        def made() -> Source:
            self._refreshed[name] = Refreshed(make())
            return self._refreshed[name]

        return made

    def close(self) -> None:
        """Stop sampling, drop all connections and let go of the port."""
        for loop in self._loops:
            loop.stop()
        if self._thread.is_alive():
            self._listener.shutdown()
        self._listener.drop_connections()
        self._listener.server_close()
        for loop in self._loops:
            loop.join(END_LIMIT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _take(self, source: str, t_ns: int, readings: Sequence[Reading]) -> None:
        shift = 0 if self._clock is time.time_ns else self._clock() - time.time_ns()
        self._ring.add(source, t_ns, readings, shift)

    def _answer(self, path: str, query: Mapping[str, int], received_ns: int) -> bytes | None:
        """The body for one path; None for one that is not served."""
        if path == "/clock":
            return msgspec.json.encode(ClockReading(received_ns, max(received_ns, self._clock())))
        if path == "/samples":
            return msgspec.json.encode(self._ring.since(query.get("since", 0), query.get("after", 0)))
        if path == "/facts":
            return msgspec.json.encode(self._facts())  # NaN becomes null
        return None

    def _facts(self) -> dict[str, Any]:
        return {
            "service": SERVICE,
            "schema": 1,
            "version": __version__,
            "host": self.name,
            "boot": self._boot,
            "sources": self.sources(),
        }


def _checked(token: str | None) -> bytes | None:
    if token is None:
        return None
    if not re.fullmatch(r"[\x21-\x7e]{8,}", token):
        raise UsageError("the token has fewer than 8 characters, or some that an HTTP header cannot carry")
    return token.encode("ascii")


def _address(host: str, port: int, token: str | None) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Resolve where to listen; beyond loopback only with a token."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise UsageError(f'--host "{host}": no such address on this machine') from None
    if token is None and not ipaddress.ip_address(str(address[0]).split("%", 1)[0]).is_loopback:
        raise UsageError(
            f"--host {host} can be reached from other machines: set a token and name its variable with --token-env"
        )
    return family, address


class _Listener(ThreadingHTTPServer):
    """A thread a connection, no more than `MAX_CONNECTIONS`; one that fails says nothing."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[socket.AddressFamily, tuple[Any, ...]],
        answer: Callable[[str, Mapping[str, int], int], bytes | None],
        token: bytes | None,
        tls: ssl.SSLContext | None,
        clock: Callable[[], int],
    ) -> None:
        self.answer = answer
        self.token = token
        self.clock = clock
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._guard = threading.Condition()
        self.address_family = address[0]
        super().__init__(address[1][:2], _Handler)

    def server_bind(self) -> None:
        """Bind, without asking the name service for our own name."""
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; the TLS handshake is left to the connection's own thread."""
        connection, client = super().get_request()
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, client

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse a connection too many."""
        with self._guard:
            if len(self._open) >= MAX_CONNECTIONS:
                return False
            self._open.add(request)
            return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and forget it."""
        super().shutdown_request(request)
        with self._guard:
            self._open.discard(request)
            self._guard.notify_all()

    def drop_connections(self) -> None:
        """End every connection and wait until their threads have seen it."""
        with self._guard:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self._guard.wait_for(lambda: not self._open, END_LIMIT_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves, or speaks no TLS, is no news."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: _Listener
    protocol_version = "HTTP/1.1"
    server_version = SERVICE
    sys_version = ""
    timeout = IDLE_LIMIT_S
    wbufsize = -1  # head and body in one write
    disable_nagle_algorithm = True
    received_ns = 0

    def parse_request(self) -> bool:
        """Stamp the request when its first line is here."""
        self.received_ns = self.server.clock()
        return super().parse_request()

    def do_GET(self) -> None:
        """Answer."""
        if self.headers.get("Content-Length") or self.headers.get("Transfer-Encoding"):
            self.close_connection = True  # nobody reads that body
        if not self._authorised():
            self._send(HTTPStatus.UNAUTHORIZED, _error("a bearer token is required"))
            return
        target = urlsplit(self.path)
        query = _numbers(target.query)
        body = None if query is None else self.server.answer(target.path.rstrip("/"), query, self.received_ns)
        if query is None:
            self._send(HTTPStatus.BAD_REQUEST, _error("since and after are whole numbers from 0"))
        elif body is None:
            self._send(HTTPStatus.NOT_FOUND, _error("served here: /clock, /samples?since=N, /facts"))
        else:
            self._send(HTTPStatus.OK, body)

    def _authorised(self) -> bool:
        if self.server.token is None:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self.server.token)
        return same and scheme.lower() == "bearer"

    def _send(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        """Nothing is logged: a request line or a header may hold what is secret."""


def _error(text: str) -> bytes:
    return json.dumps({"error": text}).encode()


def _numbers(query: str) -> dict[str, int] | None:
    """The query's numbers; None if one is none."""
    values = {name: given[-1] for name, given in parse_qs(query, keep_blank_values=True).items()}
    if not all(re.fullmatch(r"[0-9]{1,19}", value) for value in values.values()):
        return None
    return {name: int(value) for name, value in values.items()}
