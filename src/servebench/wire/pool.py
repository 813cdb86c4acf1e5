"""Connections to one origin: opened when needed, kept alive, watched for time limits."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from dataclasses import dataclass

import httpx

from servebench.wire.connection import Connection, open_socket
from servebench.wire.exchange import Exchange
from servebench.wire.reactor import READ, Reactor

KEEP_ALIVE_S = 4.0  # uvicorn, under most servers, closes after 5 s: never race with it
_SWEEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of an exchange, in seconds.

    Attributes:
        connect: for name look-up, connection and TLS together.
        idle: without a byte from the server, or to it while a long request is being sent.
        total: for the whole exchange.
    """

    connect: float = 10.0
    idle: float = 60.0
    total: float = 600.0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a pool connects to: scheme ("http" or "https"), host without brackets, port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: httpx.URL) -> Origin:
        """The origin of `url`, with the scheme's own port where it names none."""
        return cls(url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))


class Pool:
    """Keep-alive connections to one origin.

    Args:
        origin: the server.
        reactor: readiness of the sockets.
        limits: time limits of each exchange.
        tls: context for https; None for plain http.

    Attributes:
        opened: connections opened so far.
        active: exchanges under way.
    """

    def __init__(self, origin: Origin, reactor: Reactor, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        self.origin = origin
        self.limits = limits
        self.opened = 0
        self.active: dict[Exchange, Connection | None] = {}
        self._reactor = reactor
        self._tls = tls
        self._idle: list[Connection] = []
        self._addresses: list[tuple[int, tuple[str, int]]] = []
        # The kernel stamps packets only while some socket wants it, and starts a moment after the first one says so.
        self._stamping = open_socket(socket.AF_INET)
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        self._opening: set[asyncio.Task[None]] = set()

    def start(self, payload: bytes, exchange: Exchange) -> None:
        """Send `payload`, a whole HTTP/1.1 request, over an idle or a new connection; `exchange` records the rest."""
        exchange.started_ns = time.time_ns()
        while self._idle:
            connection = self._idle.pop()
            if exchange.started_ns - connection.idle_since_ns < KEEP_ALIVE_S * 1e9 and connection.still_open():
                self.active[exchange] = connection
                connection.start(exchange, payload)
                self._forget_if_finished(exchange)
                return
            connection.close()
        self.active[exchange] = None
        task = self._loop.create_task(self._open_and_start(payload, exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def cancel(self, exchange: Exchange, error: httpx.TransportError) -> None:
        """End a running exchange and close its connection."""
        connection = self.active.pop(exchange, None)
        if connection is not None and connection.exchange is exchange:
            connection.abort(error)
        else:
            exchange.end(time.time_ns(), error)

    def end_at_head(self, exchange: Exchange) -> None:
        """End an exchange whose answer has a head only, as an `on_headers`; the parser cannot know, and would wait."""
        connection = self.active[exchange]
        assert connection is not None
        assert exchange.headers_ns is not None
        exchange.end(exchange.headers_ns)
        connection.abort(httpx.ReadError("not kept"))

    async def resolve(self) -> None:
        """Look the host's addresses up, once; raises httpx.ConnectError when it has none."""
        if self._addresses:
            return
        try:
            found = await self._loop.getaddrinfo(self.origin.host, self.origin.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:  # the second for what cannot be a name
            reason = problem.strerror if isinstance(problem, OSError) else problem
            raise httpx.ConnectError(f"cannot resolve {self.origin.host}: {reason}") from None
        self._addresses = [(family, address[:2]) for family, _, _, _, address in found]  # type: ignore[misc]

    async def close(self) -> None:
        """Close all connections; running exchanges end as cancelled."""
        self._sweeper.cancel()
        for exchange in list(self.active):
            self.cancel(exchange, httpx.ReadError("cancelled"))
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        while self._idle:
            self._idle.pop().close()
        self._stamping.close()

    async def _open_and_start(self, payload: bytes, exchange: Exchange) -> None:
        try:
            connection = await self._connect_in_time()
        except httpx.TransportError as problem:
            self._fail(exchange, problem)
            return
        if exchange.finished:  # cancelled meanwhile
            self._became_idle(connection)
            return
        exchange.connected_ns = time.time_ns()
        self.active[exchange] = connection
        connection.start(exchange, payload)
        self._forget_if_finished(exchange)

    def _fail(self, exchange: Exchange, problem: httpx.TransportError) -> None:
        self.active.pop(exchange, None)
        exchange.end(time.time_ns(), problem)

    async def _connect_in_time(self) -> Connection:
        try:
            async with asyncio.timeout(self.limits.connect):
                return await self._connect()
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {self.limits.connect:g} s") from None

    async def _connect(self) -> Connection:
        await self.resolve()
        problem: OSError | None = None
        for family, address in self._addresses:
            try:
                return await self._connect_to(family, address)
            except OSError as caught:
                problem = caught
        assert problem is not None
        raise httpx.ConnectError(_connect_text(problem, self.origin)) from None

    async def _connect_to(self, family: int, address: tuple[str, int]) -> Connection:
        sock = open_socket(family)
        try:
            await self._loop.sock_connect(sock, address)
            return await self._secured(sock)
        except BaseException:
            sock.close()
            raise

    async def _secured(self, sock: socket.socket) -> Connection:
        tls = None
        if self._tls is not None:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            side = self._tls.wrap_bio(incoming, outgoing, server_hostname=self.origin.host)
            await self._handshake(sock, side, incoming, outgoing)
            tls = (side, incoming, outgoing)
        self.opened += 1
        connection = Connection(sock, self._reactor, self.opened, tls, self._became_idle, self._closed)
        connection.idle_since_ns = time.time_ns()
        self._reactor.register(sock.fileno(), READ, connection.ready)
        return connection

    async def _handshake(
        self, sock: socket.socket, side: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        while True:
            try:
                side.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError as problem:
                reason = getattr(problem, "verify_message", None) or problem.reason or str(problem)
                raise httpx.ConnectError(f"TLS with {self.origin.host} failed: {reason}") from None
            if outgoing.pending:
                await self._loop.sock_sendall(sock, outgoing.read())
            if done:
                return
            data = await self._loop.sock_recv(sock, 65_536)
            if not data:
                raise httpx.ConnectError(f"TLS with {self.origin.host} failed: the server closed the connection")
            incoming.write(data)

    def _became_idle(self, connection: Connection) -> None:
        connection.idle_since_ns = time.time_ns()
        self._idle.append(connection)

    def _closed(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def finished(self, exchange: Exchange) -> None:
        """Forget an exchange that has ended; whoever started it calls this from its `on_end`."""
        self.active.pop(exchange, None)

    def _forget_if_finished(self, exchange: Exchange) -> None:
        if exchange.finished:
            self.active.pop(exchange, None)

    def _sweep(self) -> None:
        """End what has outrun its limits; a tenth of a second is fine enough for limits of seconds."""
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        now = time.time_ns()
        idle_ns, total_ns = self.limits.idle * 1e9, self.limits.total * 1e9
        late: list[tuple[Exchange, str]] = []
        for exchange, connection in self.active.items():
            if now - exchange.started_ns > total_ns:
                late.append((exchange, f"not finished within {self.limits.total:g} s"))
            elif connection is not None:
                alive = max(connection.last_read_ns, connection.last_sent_ns, exchange.started_ns)
                if now - alive > idle_ns:
                    late.append((exchange, f"no byte for {self.limits.idle:g} s"))
        for exchange, text in late:
            self.cancel(exchange, httpx.ReadTimeout(text))


def _connect_text(problem: OSError, origin: Origin) -> str:
    # An event loop words the same errors in its own ways.
    reason = os.strerror(problem.errno) if problem.errno else str(problem)
    return f"cannot connect to {origin.host}:{origin.port}: {reason[:1].lower()}{reason[1:]}"
