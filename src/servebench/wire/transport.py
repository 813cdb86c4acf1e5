"""An httpx transport whose responses know when the kernel received them.

httpx keeps what it is good at (URLs, headers, auth, errors); the socket is ours. The load itself speaks to the `Pool`
below it directly, since it has its requests as bytes already.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import httpx

from servebench.wire.arrivals import Arrivals
from servebench.wire.exchange import Exchange
from servebench.wire.pool import Limits, Origin, Pool
from servebench.wire.reactor import Reactor, make_reactor


class KernelStampTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 over sockets that ask the kernel to stamp what they receive.

    The response is returned once its head has arrived. When its body has been read, ``extensions["arrivals"]`` holds
    the `Arrivals`. Time limits are those of `limits`, not of the client.

    Args:
        limits: time limits of each exchange.
        verify: a context for https; the system's trusted certificates by default.
        hold_ns: see `Reactor`.
    """

    def __init__(self, limits: Limits | None = None, verify: ssl.SSLContext | None = None, hold_ns: int = 0) -> None:
        self._limits = limits or Limits()
        self._tls = verify
        self._hold_ns = hold_ns
        self._reactor: Reactor | None = None
        self._pools: dict[Origin, Pool] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request`; raises httpx's own errors."""
        exchange = Exchange()
        body = _Body(exchange)
        payload = encode(request, await request.aread())
        pool = self._pool(Origin.of(request.url))

        def ended(_: Exchange) -> None:
            pool.finished(exchange)
            body.wake()

        exchange.on_headers = pool.end_at_head if request.method == "HEAD" else lambda _: body.wake()
        exchange.on_portion = lambda _: body.wake()
        exchange.on_end = ended
        exchange.portion = 1
        pool.start(payload, exchange)
        body.pool = pool
        try:
            await body.headers()
        except asyncio.CancelledError:
            await body.aclose()
            raise
        if exchange.status is None:
            assert exchange.error is not None
            raise exchange.error
        response = httpx.Response(exchange.status, headers=exchange.headers, stream=body, request=request)
        body.response = response
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        while self._pools:
            await self._pools.popitem()[1].close()
        if self._reactor is not None:
            self._reactor.close()
            self._reactor = None

    def _pool(self, origin: Origin) -> Pool:
        if self._reactor is None:
            self._reactor = make_reactor(asyncio.get_running_loop(), self._hold_ns)
        if origin not in self._pools:
            tls = (self._tls or ssl.create_default_context()) if origin.scheme == "https" else None
            self._pools[origin] = Pool(origin, self._reactor, self._limits, tls)
        return self._pools[origin]


def encode(request: httpx.Request, body: bytes) -> bytes:
    """A request as the bytes of HTTP/1.1, its body framed by content-length."""
    fields = [(n, v) for n, v in request.headers.raw if n.lower() not in (b"content-length", b"transfer-encoding")]
    if body or request.method in ("POST", "PUT", "PATCH"):
        fields.append((b"content-length", str(len(body)).encode()))
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path), *(b"%b: %b" % f for f in fields)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class _Body(httpx.AsyncByteStream):
    """Hands pieces of the body to httpx as they come, and keeps them with their stamps."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._more = asyncio.Event()
        self._parts: list[bytes] = []
        self._stamps: list[int] = []
        self.pool: Pool | None = None
        self.response: httpx.Response | None = None

    def wake(self) -> None:
        """Something has arrived, or ended."""
        self._more.set()

    async def headers(self) -> None:
        """Return when the head is there, or nothing will come."""
        while self._exchange.status is None and not self._exchange.finished:
            await self._more.wait()
            self._more.clear()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange = self._exchange
        while True:
            parts, stamps = exchange.parts, exchange.stamps
            exchange.parts, exchange.stamps = [], []
            self._parts += parts
            self._stamps += stamps
            for part in parts:
                yield part
            if exchange.finished and not exchange.parts:
                break
            if not exchange.parts:
                await self._more.wait()
                self._more.clear()
        self._leave_arrivals()
        if exchange.error is not None:
            raise exchange.error

    def _leave_arrivals(self) -> None:
        self._exchange.parts, self._exchange.stamps = self._parts, self._stamps
        if self.response is not None:
            self.response.extensions["arrivals"] = Arrivals.of(self._exchange)

    async def aclose(self) -> None:
        """The response was closed, perhaps before its end."""
        if not self._exchange.finished and self.pool is not None:
            self.pool.cancel(self._exchange, httpx.ReadError("closed by the client"))
