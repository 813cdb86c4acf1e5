"""The pool: connections are reused, never when they are gone, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import ssl
import time
from collections.abc import Callable

import httpx
import pytest
import trustme
from wire_client import MS, ask, body_of, mishaps, payload, pool_to, raw_server, run, start, until

from servebench.testing import (
    Close,
    Hang,
    ReadRequest,
    Reset,
    Script,
    ScriptedServer,
    Send,
    Wait,
    chunk,
    head,
    refusing_port,
    response,
    sse_response,
    unanswering_port,
)
from servebench.wire.exchange import Exchange
from servebench.wire.pool import Origin, Pool

OK = response(200, b"ok")
CHUNKED = head(200, {"transfer-encoding": "chunked"})


def with_pool(
    script: Script | Callable[..., Script], main: Callable[[Pool, ScriptedServer], object], **options: object
):  # type: ignore[no-untyped-def]
    """The result of `main(pool, server)`."""
    with ScriptedServer(script) as server:

        async def within() -> object:
            async with pool_to(server.port, **options) as pool:  # type: ignore[arg-type]
                return await main(pool, server)  # type: ignore[misc]

        result = run(within)
    assert mishaps(server) == []
    return result


# Connections.


def test_a_connection_is_kept_and_used_again() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchanges = [await ask(pool) for _ in range(3)]
        assert [exchange.connection for exchange in exchanges] == [1, 1, 1]
        assert [exchange.connected_ns is None for exchange in exchanges] == [False, True, True]
        assert (pool.opened, pool.active) == (1, {})

    with_pool(OK, main)


def test_exchanges_at_once_have_connections_of_their_own() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        for _ in range(2):
            exchanges = [start(pool) for _ in range(5)]
            assert list(pool.active) == exchanges
            for exchange in exchanges:
                await exchange.wait()
            assert sorted(exchange.connection or 0 for exchange in exchanges) == [1, 2, 3, 4, 5]
        assert (pool.opened, pool.active) == (5, {})

    with_pool([Wait(0.02), *OK], main)


def test_the_connection_used_last_is_used_first() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        for exchange in [start(pool) for _ in range(4)]:
            await exchange.wait()
        last = [(await ask(pool)).connection for _ in range(3)]
        assert len(set(last)) == 1

    with_pool([Wait(0.01), *OK], main)


def test_an_idle_connection_that_the_server_closes_is_dropped() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        assert (await ask(pool)).error is None
        await until(lambda: not pool._idle)
        again = await ask(pool)
        assert (again.error, again.connection, pool.opened) == (None, 2, 2)

    with_pool([*OK, Wait(0.01), Close()], main)


@pytest.mark.parametrize("end", [Close(), Reset()])
def test_a_connection_that_was_closed_unseen_is_not_used(end: Close | Reset) -> None:
    """Between two requests, while the client was too busy to notice."""

    async def main(pool: Pool, server: ScriptedServer) -> None:
        assert (await ask(pool)).error is None
        time.sleep(0.1)
        again = await ask(pool)
        assert (again.error, again.connection, pool.opened) == (None, 2, 2)

    with_pool([*OK, Wait(0.01), end], main)


@pytest.mark.parametrize("busy", [False, True])
def test_a_late_good_bye_on_an_idle_connection_is_no_answer(busy: bool) -> None:
    goodbye = Send(head(408, {"content-length": "0", "connection": "close"}))

    async def main(pool: Pool, server: ScriptedServer) -> None:
        assert (await ask(pool)).status == 200
        if busy:
            time.sleep(0.1)
        else:
            await asyncio.sleep(0.1)
        again = await ask(pool)
        assert (again.status, again.connection) == (200, 2)

    with_pool([*OK, Wait(0.02), goodbye], main)


def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servebench.wire.pool.KEEP_ALIVE_S", 0.05)

    async def main(pool: Pool, server: ScriptedServer) -> None:
        assert (await ask(pool)).connection == 1
        assert (await ask(pool)).connection == 1
        await asyncio.sleep(0.06)
        again = await ask(pool)
        assert (again.error, again.connection) == (None, 2)

    with_pool(OK, main)


def test_an_answer_may_start_the_next_request() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        done: list[Exchange] = []

        def begin() -> None:
            exchange = Exchange()
            exchange.on_end = ended
            pool.start(payload(), exchange)

        def ended(exchange: Exchange) -> None:
            pool.finished(exchange)
            done.append(exchange)
            if len(done) < 6:
                begin()

        begin()
        await until(lambda: len(done) == 6)
        assert [(exchange.status, exchange.error) for exchange in done] == [(200, None)] * 6
        assert pool.active == {}
        assert pool.opened <= 2  # the first is busy until its answer has been handed over

    with_pool(OK, main)


# Names and addresses.


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://a.example", Origin("http", "a.example", 80)),
        ("https://a.example/v1", Origin("https", "a.example", 443)),
        ("http://a.example:8000/v1", Origin("http", "a.example", 8000)),
        ("http://[::1]:8000", Origin("http", "::1", 8000)),
    ],
)
def test_the_origin_of_a_url(url: str, origin: Origin) -> None:
    assert Origin.of(httpx.URL(url)) == origin


def test_the_next_address_is_tried_when_one_refuses() -> None:
    with ScriptedServer(OK) as server, refusing_port() as dead:

        async def main() -> None:
            async with pool_to(server.port) as pool:
                pool._addresses = [
                    (socket.AF_INET, ("127.0.0.1", dead)),
                    (socket.AF_INET, ("127.0.0.1", server.port)),
                ]
                exchange = await ask(pool)
                assert (exchange.error, exchange.connection, pool.opened) == (None, 1, 1)

        run(main)


def test_localhost_is_found() -> None:
    with ScriptedServer(OK) as server:

        async def main() -> None:
            async with pool_to(server.port, host="localhost") as pool:
                assert (await ask(pool)).error is None

        run(main)


@pytest.mark.parametrize("host", ["servebench.invalid", "a" * 64 + ".invalid", "a..invalid", ".invalid"])
def test_a_name_without_an_address_fails_at_once(host: str) -> None:
    async def main() -> None:
        async with pool_to(80, host=host) as pool:
            exchange = await ask(pool)
            assert isinstance(exchange.error, httpx.ConnectError)
            assert host in str(exchange.error)
            assert "\n" not in str(exchange.error)
            assert pool.active == {}

    run(main, 10)


def test_a_refused_port_says_so() -> None:
    async def main() -> None:
        with refusing_port() as port:
            async with pool_to(port) as pool:
                exchange = await ask(pool)
                assert isinstance(exchange.error, httpx.ConnectError)
                assert str(exchange.error) == f"cannot connect to 127.0.0.1:{port}: connection refused"
                assert (exchange.sent_ns, exchange.connected_ns, pool.opened) == (None, None, 0)
                unwatched = Exchange()
                pool.start(payload(), unwatched)
                await unwatched.wait()
                assert pool.active == {}

    run(main)


def test_too_many_open_files_fail_the_request_and_not_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(family: int) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main(pool: Pool, server: ScriptedServer) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("servebench.wire.pool.open_socket", full)
            exchange = await asyncio.wait_for(ask(pool), 3)
            assert isinstance(exchange.error, httpx.ConnectError)
            assert "too many open files" in str(exchange.error)
        assert (await ask(pool)).error is None

    with_pool(OK, main)


# Limits.


def test_the_limit_on_connecting() -> None:
    async def main() -> None:
        with unanswering_port() as port:
            async with pool_to(port, connect=0.2) as pool:
                exchange = await ask(pool)
                assert isinstance(exchange.error, httpx.ConnectTimeout)
                assert "0.2 s" in str(exchange.error)
                assert 195 * MS <= (exchange.end_ns or 0) - exchange.started_ns < 2000 * MS
                assert (exchange.sent_ns, pool.active) == (None, {})

    run(main)


@pytest.mark.parametrize("before", [[], [Send(CHUNKED)], [Send(CHUNKED + chunk(b"a"))]], ids=["head", "body", "more"])
def test_the_limit_on_silence(before: Script) -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchange = await ask(pool)
        assert isinstance(exchange.error, httpx.ReadTimeout)
        assert "no byte for 0.3 s" in str(exchange.error)
        heard = max([exchange.sent_ns or 0, exchange.headers_ns or 0, *exchange.stamps])
        assert 300 * MS <= (exchange.end_ns or 0) - heard < 2000 * MS
        assert body_of(exchange) == (b"a" if before and before[0].data.endswith(b"a\r\n") else b"")  # type: ignore[union-attr]
        await until(lambda: not pool.active)

    with_pool([*before, Hang()], main, idle=0.3)


def test_any_byte_ends_the_silence() -> None:
    pings = [step for _ in range(6) for step in (Wait(0.15), Send(b": ping\n\n"))]

    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchange = await ask(pool)
        assert exchange.error is None

    with_pool(sse_response(pings), main, idle=0.4)


def test_an_idle_connection_knows_no_silence() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        assert (await ask(pool)).error is None
        await asyncio.sleep(0.5)
        again = await ask(pool)  # the silence counts from this request, not from the last byte before it
        assert (again.error, again.connection) == (None, 1)

    with_pool([Wait(0.15), *OK], main, idle=0.3)


def test_a_long_request_is_no_silence() -> None:
    """The server reads, slowly, for much longer than the limit."""
    request = bytes(12 << 20)

    def serve(sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        left = len(payload(request))
        while left:
            left -= len(sock.recv(1 << 17))
            time.sleep(0.008)
        sock.sendall(head(200, {"content-length": "0"}))

    async def main() -> None:
        with raw_server(serve) as port:
            async with pool_to(port, idle=0.4) as pool:
                exchange = await ask(pool, request)
                assert (exchange.error, exchange.status) == (None, 200)
                assert (exchange.sent_ns or 0) - exchange.started_ns > 400 * MS

    run(main)


def test_a_server_that_reads_nothing_is_silent() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchange = await ask(pool, bytes(20 << 20))
        assert isinstance(exchange.error, httpx.ReadTimeout)
        assert "no byte for 0.3 s" in str(exchange.error)
        assert exchange.sent_ns is None

    with_pool([Wait(5), ReadRequest()], main, idle=0.3, total=2.0)


def test_the_limit_on_the_whole() -> None:
    drip = [step for _ in range(100) for step in (Wait(0.05), Send(b"."))]

    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchange = await ask(pool)
        assert isinstance(exchange.error, httpx.ReadTimeout)
        assert "not finished within 0.4 s" in str(exchange.error)
        assert 400 * MS <= (exchange.end_ns or 0) - exchange.started_ns < 2000 * MS
        assert body_of(exchange).startswith(b"...")

    with_pool(sse_response(drip), main, total=0.4)


def test_the_limit_on_the_whole_holds_while_connecting() -> None:
    async def main() -> None:
        with unanswering_port() as port:
            async with pool_to(port, connect=5.0, total=0.2) as pool:
                exchange = await ask(pool)
                assert isinstance(exchange.error, httpx.ReadTimeout)

    run(main)


# Cancelling and closing.


def test_cancelling_in_mid_stream_closes_the_connection() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchange = start(pool)
        await until(lambda: exchange.parts)
        error = httpx.ReadError("given up")
        pool.cancel(exchange, error)
        assert (exchange.finished, exchange.error, body_of(exchange), pool.active) == (True, error, b"a", {})
        pool.cancel(exchange, httpx.ReadError("again"))
        assert exchange.error is error
        again = start(pool)
        await until(lambda: again.parts)
        assert again.connection == 2
        assert body_of(exchange) == b"a"

    with_pool([Send(CHUNKED + chunk(b"a")), Hang()], main)


def test_cancelling_what_has_ended_does_not_touch_the_connections_next_exchange() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        first = Exchange()  # it is not told to the pool that this one ends
        pool.start(payload(), first)
        await first.wait()
        second = start(pool)
        pool.cancel(first, httpx.ReadError("late"))
        await second.wait()
        assert (first.error, second.error, second.connection) == (None, None, first.connection)

    with_pool([Wait(0.02), *OK], main)


def test_cancelling_while_connecting() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchange = start(pool)
        error = httpx.ReadError("given up")
        pool.cancel(exchange, error)
        assert (exchange.finished, exchange.error, pool.active) == (True, error, {})
        await until(lambda: pool._idle)  # the connection is of use to the next
        again = await ask(pool)
        assert (again.error, again.connection) == (None, 1)
        assert len(server.requests) == 1

    with_pool(OK, main)


@pytest.mark.parametrize("when", ["connecting", "waiting", "streaming"])
def test_closing_ends_what_runs(when: str) -> None:
    script = [Hang()] if when == "waiting" else [Send(CHUNKED + chunk(b"a")), Hang()]
    with ScriptedServer(script) as server:

        async def main() -> None:
            async with pool_to(server.port) as pool:
                exchanges = [start(pool) for _ in range(3)]
                if when == "waiting":
                    await until(lambda: len(server.requests) == 3)
                if when == "streaming":
                    await until(lambda: all(exchange.parts for exchange in exchanges))
            for exchange in exchanges:
                assert isinstance(exchange.error, httpx.ReadError)
                assert exchange.finished
            assert pool.active == {}

        run(main)
        gc.collect()  # a socket that was not closed would warn


def test_waiting_for_what_has_ended_returns_at_once() -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchange = await ask(pool)
        await exchange.wait()
        both = start(pool)
        await asyncio.gather(both.wait(), both.wait())
        assert both.finished

    with_pool(OK, main)


# TLS.


@pytest.fixture(scope="module")
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of the server and of the client."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


def over_tls(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], script: Script, main: Callable[[Pool, ScriptedServer], object]
) -> None:
    """Run `main(pool, server)`. What goes wrong in the server when the client closes first is not looked at."""
    with ScriptedServer(script, tls=tls[0]) as server:

        async def within() -> None:
            async with pool_to(server.port, tls=tls[1]) as pool:
                await main(pool, server)  # type: ignore[misc]

        run(within)


def test_tls_keeps_connections_and_stamps(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def main(pool: Pool, server: ScriptedServer) -> None:
        for _ in range(3):
            exchange = start(pool)
            await until(lambda exchange=exchange: exchange.headers_ns)
            time.sleep(0.06)
            await exchange.wait()
            assert (exchange.error, exchange.connection, exchange.user_stamped_reads) == (None, 1, 0)
            sent = server.at("event")
            assert sent.realtime_ns <= exchange.stamps[0] <= sent.done_ns + 5 * MS
            await asyncio.sleep(0.01)
        assert pool.opened == 1

    over_tls(tls, sse_response([Wait(0.02), Send(b"x", "event"), Wait(0.06)]), main)


def test_session_tickets_do_not_close_an_idle_connection(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """Under TLS 1.3 they come after the handshake, here on a connection whose request was cancelled meanwhile."""

    async def main(pool: Pool, server: ScriptedServer) -> None:
        cancelled = start(pool)
        pool.cancel(cancelled, httpx.ReadError("cancelled"))
        await until(lambda: pool.opened == 1)
        await asyncio.sleep(0.05)
        exchange = await ask(pool)
        assert (exchange.error, exchange.connection) == (None, 1)

    over_tls(tls, OK, main)


def test_tls_carries_long_bodies_both_ways(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    body = os.urandom(5 << 20)

    async def main(pool: Pool, server: ScriptedServer) -> None:
        exchange = await ask(pool, body)
        assert (exchange.error, body_of(exchange) == body) == (None, True)
        assert server.requests[0].body == body

    over_tls(tls, response(200, body), main)


@pytest.mark.parametrize("end", [Close(), Reset()])
def test_tls_notices_a_close(tls: tuple[ssl.SSLContext, ssl.SSLContext], end: Close | Reset) -> None:
    async def idle(pool: Pool, server: ScriptedServer) -> None:
        assert (await ask(pool)).error is None
        await until(lambda: not pool._idle)
        assert (await ask(pool)).connection == 2

    async def busy(pool: Pool, server: ScriptedServer) -> None:
        exchange = await ask(pool)
        assert isinstance(exchange.error, httpx.RemoteProtocolError | httpx.ReadError)
        assert body_of(exchange) == b"a"

    over_tls(tls, [*OK, Wait(0.02), end], idle)
    over_tls(tls, [Send(CHUNKED + chunk(b"a")), Wait(0.02), end], busy)


def test_tls_that_breaks_is_a_read_error(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """Bytes that are no TLS record, in mid-stream."""

    def serve(sock: socket.socket) -> None:
        secured = tls[0].wrap_socket(sock, server_side=True, do_handshake_on_connect=True)
        secured.recv(1000)
        secured.sendall(CHUNKED + chunk(b"a"))
        os.write(secured.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        time.sleep(0.2)
        secured.close()

    async def main() -> None:
        with raw_server(serve) as port:
            async with pool_to(port, tls=tls[1]) as pool:
                exchange = await ask(pool)
                assert isinstance(exchange.error, httpx.ReadError)
                assert "TLS" in str(exchange.error)
                assert body_of(exchange) == b"a"

    run(main)
