"""What the tests of sockets share: a pool to a server, one request over it, and servers of raw bytes."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

import uvloop

from servebench.testing import ScriptedServer
from servebench.wire.exchange import Exchange
from servebench.wire.pool import Limits, Origin, Pool
from servebench.wire.reactor import HOLD_NS, EpollReactor

MS = 1_000_000
_T = TypeVar("_T")


def run(main: Callable[[], Awaitable[_T]], seconds: float = 20.0) -> _T:
    """The result of `main` on an event loop like the workers'; it has `seconds` at most. No handler may have failed."""
    problems: list[object] = []

    async def within() -> _T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        return await asyncio.wait_for(main(), seconds)

    result = uvloop.run(within())
    assert problems == []
    return result


@asynccontextmanager
async def pool_to(
    port: int,
    *,
    host: str = "127.0.0.1",
    connect: float = 5.0,
    idle: float = 10.0,
    total: float = 20.0,
    hold_ns: int = HOLD_NS,
    tls: object = None,
) -> AsyncIterator[Pool]:
    """A pool of connections to `host`:`port` with these limits, closed in the end."""
    reactor = EpollReactor(asyncio.get_running_loop(), hold_ns)
    origin = Origin("https" if tls else "http", host, port)
    pool = Pool(origin, reactor, Limits(connect, idle, total), tls)  # type: ignore[arg-type]
    try:
        yield pool
    finally:
        await pool.close()
        reactor.close()


def payload(body: bytes = b"", path: str = "/") -> bytes:
    """A whole request."""
    return b"POST %s HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def start(pool: Pool, body: bytes = b"", path: str = "/") -> Exchange:
    """Send a request; the exchange is under way."""
    exchange = Exchange()
    exchange.on_end = pool.finished
    pool.start(payload(body, path), exchange)
    return exchange


async def ask(pool: Pool, body: bytes = b"", path: str = "/") -> Exchange:
    """Send a request and return its exchange when that has ended."""
    exchange = start(pool, body, path)
    await exchange.wait()
    return exchange


def body_of(exchange: Exchange) -> bytes:
    return b"".join(exchange.parts)


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Return once `condition` holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.002)


def mishaps(server: ScriptedServer) -> list[BaseException]:
    """What went wrong in the server, but for closing what had been closed when the test ended."""
    return [problem for problem in server.errors if getattr(problem, "errno", None) != errno.ENOTCONN]


@contextmanager
def raw_server(serve: Callable[[socket.socket], None], connections: int = 1) -> Iterator[int]:
    """A port whose first connections are handed to `serve`, each in a thread, and closed after it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(sock: socket.socket) -> None:
        with sock, suppress(OSError):
            serve(sock)

    def accept() -> None:
        threads = []
        with suppress(OSError):
            for _ in range(connections):
                sock = listener.accept()[0]
                sock.settimeout(10)
                threads.append(threading.Thread(target=one, args=(sock,), daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(10)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
