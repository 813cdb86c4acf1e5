"""One connection over real sockets: HTTP in every framing, the kernel's stamps, and how it can break."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable

import httpx
import pytest
from wire_client import MS, ask, body_of, mishaps, payload, pool_to, raw_server, run, start, until

from servebench.testing import (
    Close,
    HalfClose,
    Hang,
    ReadRequest,
    Reset,
    Script,
    ScriptedServer,
    Send,
    Wait,
    byte_by_byte,
    chunk,
    head,
    response,
    sse_response,
)
from servebench.wire.connection import open_socket
from servebench.wire.exchange import Exchange
from servebench.wire.reactor import WRITE

GIVE_UP = 5 * MS  # how much later than its send a stamp may be on a busy machine


def played(script: Script, requests: int = 1, **options: object) -> tuple[list[Exchange], ScriptedServer]:
    """The exchanges of `requests` requests, one after the other, with a server that plays `script`."""
    with ScriptedServer(script) as server:

        async def main() -> list[Exchange]:
            async with pool_to(server.port, **options) as pool:  # type: ignore[arg-type]
                return [await ask(pool) for _ in range(requests)]

        exchanges = run(main)
    assert mishaps(server) == []
    return exchanges, server


def one(script: Script, **options: object) -> Exchange:
    (exchange,), _ = played(script, **options)  # type: ignore[arg-type]
    return exchange


def fields(exchange: Exchange) -> dict[bytes, bytes]:
    return dict(exchange.headers)


# Stamps: the product's core claim.


def test_a_stamp_is_the_kernels_although_the_client_slept() -> None:
    with ScriptedServer(sse_response([Wait(0.1), Send(b"data: a\n\n", "event"), Wait(0.3)])) as server:

        async def main() -> tuple[Exchange, int]:
            async with pool_to(server.port) as pool:
                exchange = start(pool)
                await until(lambda: exchange.headers_ns)
                time.sleep(0.25)  # the event loop, and so the reader, is late
                slept = time.time_ns()
                await exchange.wait()
                return exchange, slept

        exchange, slept = run(main)
    sent = server.at("event")
    (stamp,) = exchange.stamps
    assert sent.realtime_ns <= stamp <= sent.done_ns + GIVE_UP
    assert slept - stamp > 100 * MS
    assert exchange.user_stamped_reads == 0


def test_each_streams_stamp_is_its_own_although_all_are_read_late_and_together() -> None:
    def script(seen: object) -> Script:
        place = int(seen.path[1:])  # type: ignore[attr-defined]
        event = [Wait(0.05 + 0.02 * place), Send(b"%d" % place, seen.path), Wait(0.4 - 0.02 * place)]  # type: ignore[attr-defined]
        return sse_response(event)

    with ScriptedServer(script) as server:

        async def main() -> list[Exchange]:
            async with pool_to(server.port) as pool:
                exchanges = [start(pool, path=f"/{place}") for place in range(8)]
                await until(lambda: all(exchange.headers_ns for exchange in exchanges))
                time.sleep(0.3)
                for exchange in exchanges:
                    await exchange.wait()
                return exchanges

        exchanges = run(main)
    for place, exchange in enumerate(exchanges):
        sent = server.at(f"/{place}")
        assert body_of(exchange) == b"%d" % place
        assert sent.realtime_ns <= exchange.stamps[0] <= sent.done_ns + GIVE_UP


def test_instants_are_in_order_and_those_of_the_server() -> None:
    steps = [step for n in range(5) for step in (Wait(0.04), Send(b"x", f"t{n}"))]
    (exchange, again), server = played(sse_response([*steps, Wait(0.04)]), requests=2)
    assert len(exchange.stamps) == len(exchange.parts) == 5
    instants = [exchange.started_ns, exchange.connected_ns, exchange.sent_ns, exchange.headers_ns, *exchange.stamps]
    assert instants == sorted(instants)  # type: ignore[type-var]
    assert len(set(exchange.stamps)) == 5
    assert exchange.end_ns is not None
    assert exchange.end_ns > exchange.stamps[-1]
    for place, stamp in enumerate(again.stamps):
        sent = server.at(f"t{place}")
        assert sent.realtime_ns <= stamp <= sent.done_ns + GIVE_UP
    assert again.headers_ns is not None
    assert server.at("head").realtime_ns <= again.headers_ns <= server.at("head").done_ns + GIVE_UP
    assert server.at("end").realtime_ns <= (again.end_ns or 0) <= server.at("end").done_ns + GIVE_UP
    assert (exchange.user_stamped_reads, again.user_stamped_reads) == (0, 0)
    assert exchange.reads == 7


def test_pieces_of_one_read_share_its_stamp() -> None:
    exchange = one([Send(head(200, {"transfer-encoding": "chunked"}) + chunk(b"a") + chunk(b"b") + chunk(b""))])
    assert exchange.parts == [b"a", b"b"]
    assert set(exchange.stamps) == {exchange.headers_ns} == {exchange.end_ns}


def test_reads_without_a_kernel_stamp_are_counted_and_bear_the_time_of_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plain_socket(family: int) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        return sock

    monkeypatch.setattr("servebench.wire.pool.open_socket", plain_socket)
    exchange = one(sse_response([Wait(0.03), b"a", Wait(0.03), b"b", Wait(0.03)]))
    assert exchange.user_stamped_reads == exchange.reads >= 3
    assert exchange.started_ns < exchange.stamps[0] < exchange.stamps[1] < (exchange.end_ns or 0) < time.time_ns()


def test_the_sockets_send_at_once() -> None:
    with open_socket(socket.AF_INET) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not sock.getblocking()


# Framing.


def test_chunk_extensions_and_trailers() -> None:
    trailers = {"retry-after": "5", "content-encoding": "gzip", "x-sum": "1"}
    script = sse_response([b"ab", b"c" * 300], extension=";name=value;other", trailers=trailers)
    exchanges, server = played(script, requests=2)
    for exchange in exchanges:
        assert (body_of(exchange), exchange.error) == (b"ab" + b"c" * 300, None)
        assert fields(exchange).keys() == {b"content-type", b"transfer-encoding"}
        assert exchange.take()[0] == [b"ab", b"c" * 300]
    assert server.connections == 1


def test_every_byte_in_a_read_of_its_own() -> None:
    raw = head(200, {"transfer-encoding": "chunked", "X-Odd": " y "}) + chunk(b"hello", ";a=b") + chunk(b"") + b""
    (first, second), server = played(byte_by_byte(raw, 0.0005), requests=2)
    for exchange in (first, second):
        assert (body_of(exchange), exchange.status, exchange.error) == (b"hello", 200, None)
        assert exchange.header(b"x-odd") == b"y"
        assert exchange.received == 5
    assert server.connections == 1


def test_interim_responses_are_passed_over() -> None:
    interim = [Send(head(100)), Send(head(103, {"link": "</x>"})), Wait(0.01)]
    exchanges, server = played([*interim, *response(201, b"made", {"x": "1"})], requests=2)
    for exchange in exchanges:
        assert (exchange.status, body_of(exchange), exchange.error) == (201, b"made", None)
        assert fields(exchange) == {b"content-length": b"4", b"x": b"1"}
        assert (exchange.headers_ns or 0) >= server.sent[0].realtime_ns
    assert exchanges[1].headers_ns is not None
    assert exchanges[1].headers_ns >= server.at("response").realtime_ns
    assert server.connections == 1


def test_an_interim_response_in_the_same_read_as_the_final_one() -> None:
    exchange = one([Send(head(100) + head(200, {"content-length": "2"}) + b"ok")])
    assert (exchange.status, body_of(exchange)) == (200, b"ok")


def test_a_switch_to_another_protocol_is_an_error_and_stops_nobody() -> None:
    upgrade = head(101, {"upgrade": "websocket", "connection": "upgrade"})

    def script(seen: object) -> Script:
        return [Send(upgrade)] if seen.path == "/bad" else response(200, b"ok")  # type: ignore[attr-defined]

    with ScriptedServer(script) as server:

        async def main() -> tuple[Exchange, Exchange]:
            async with pool_to(server.port) as pool:
                return await ask(pool, path="/bad"), await ask(pool, path="/good")

        bad, good = run(main)
    assert isinstance(bad.error, httpx.RemoteProtocolError)
    assert (good.error, body_of(good), good.connection) == (None, b"ok", 2)


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
@pytest.mark.parametrize("end", [Close(), HalfClose()])
def test_a_body_that_the_close_delimits(version: str, end: Close) -> None:
    steps = [
        Send(head(200, {"content-type": "text/plain"}, version=version)),
        Send(b"abc"),
        Wait(0.01),
        Send(b"def"),
        end,
    ]
    exchange = one(steps)
    assert (body_of(exchange), exchange.error, exchange.status) == (b"abcdef", None, 200)
    assert (exchange.end_ns or 0) >= exchange.stamps[-1]


def test_http_1_0_with_a_length_is_not_kept_alive() -> None:
    script = [Send(head(200, {"content-length": "2"}, version="HTTP/1.0") + b"ok")]
    exchanges, server = played(script, requests=2)
    assert [(body_of(exchange), exchange.error) for exchange in exchanges] == [(b"ok", None)] * 2
    assert [exchange.connection for exchange in exchanges] == [1, 2]
    assert server.connections == 2


@pytest.mark.parametrize("headers", [{"content-length": "0"}, {"transfer-encoding": "chunked"}])
def test_an_empty_body(headers: dict[str, str]) -> None:
    exchange = one([Send(head(200, headers) + (chunk(b"") if "content-length" not in headers else b""))])
    assert (exchange.parts, exchange.error, exchange.received) == ([], None, 0)
    assert exchange.end_ns == exchange.headers_ns


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body(status: int) -> None:
    exchanges, server = played([Send(head(status))], requests=2)
    assert [exchange.status for exchange in exchanges] == [status] * 2
    assert server.connections == 1


@pytest.mark.parametrize("length", ["banana", "-1", "5, 6"])
def test_a_length_that_is_none(length: str) -> None:
    exchange = one([Send(head(200, {"content-length": length}) + b"hello")], idle=0.5)
    assert isinstance(exchange.error, httpx.RemoteProtocolError)


def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 12_000
    exchange = one(response(200, body))
    assert (body_of(exchange) == body, exchange.received, exchange.error) == (True, len(body), None)
    assert exchange.stamps == sorted(exchange.stamps)
    assert exchange.reads > 1


def test_portions_are_handed_over_as_they_come_and_nothing_is_lost() -> None:
    steps = [step for n in range(10) for step in (Wait(0.005), Send(b"%d" % n))]
    with ScriptedServer(sse_response(steps)) as server:

        async def main() -> tuple[list[bytes], list[int], int]:
            taken: list[bytes] = []
            stamps: list[int] = []
            calls = 0

            def portion(exchange: Exchange) -> None:
                nonlocal calls
                calls += 1
                assert len(exchange.parts) >= 3
                parts, when = exchange.take()
                taken.extend(parts)
                stamps.extend(when)

            async with pool_to(server.port) as pool:
                exchange = Exchange()
                exchange.on_end = pool.finished
                exchange.on_portion, exchange.portion = portion, 3
                pool.start(payload(), exchange)
                await exchange.wait()
                last = exchange.take()
                assert len(last[0]) < 3
                return [*taken, *last[0]], [*stamps, *last[1]], calls

        taken, stamps, calls = run(main)
    assert b"".join(taken) == b"0123456789"
    assert len(stamps) == len(taken)
    assert stamps == sorted(stamps)
    assert calls >= 2


# Content coding.


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "GZIP"])
@pytest.mark.parametrize("cut", [1, 15, 30])
def test_a_coded_body_is_decoded_as_it_is_taken(coding: str, cut: int) -> None:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | (16 if "gz" in coding.lower() else 0))
    packed = packer.compress(b"data: hello\n\n" * 50) + packer.flush()
    exchange = one(sse_response([packed[:cut], Wait(0.01), packed[cut:]], headers={"content-encoding": coding}))
    raw, stamps = list(exchange.parts), list(exchange.stamps)
    parts, taken = exchange.take()
    assert b"".join(raw) == packed
    assert b"".join(parts) == b"data: hello\n\n" * 50
    assert (taken, len(parts)) == (stamps, len(raw))
    assert exchange.error is None


def test_a_damaged_coded_body_keeps_what_came_before_the_damage() -> None:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    good = packer.compress(b"hello" * 50) + packer.flush(zlib.Z_SYNC_FLUSH)
    steps = [good, Wait(0.01), b"\xff" * 50, Wait(0.01), b"more"]
    exchange = one(sse_response(steps, headers={"content-encoding": "gzip"}))
    parts, stamps = exchange.take()
    assert (parts[0], b"".join(parts[1:]), len(stamps)) == (b"hello" * 50, b"", len(parts))
    assert isinstance(exchange.error, httpx.DecodingError)


# Long requests.


def test_a_long_request_to_a_slow_reader() -> None:
    body = hashlib.sha256(b"seed").digest() * (20 << 15)  # 20 MiB
    script = [Wait(0.3), ReadRequest(), *response(200, b"ok")]
    with ScriptedServer(script) as server:

        async def main() -> Exchange:
            async with pool_to(server.port, idle=5.0) as pool:
                return await ask(pool, body)

        exchange = run(main)
    assert (exchange.error, body_of(exchange)) == (None, b"ok")
    assert server.requests[0].body == body
    assert exchange.sent_ns is not None
    assert exchange.sent_ns - exchange.started_ns > 250 * MS  # the kernel has the last byte only after the reader began
    assert exchange.sent_ns <= server.requests[0].received_ns


def test_a_long_request_is_not_copied_as_it_is_sent() -> None:
    """A copy of what is left at each partial write would make the cost grow with the square of the length."""
    request = payload(bytes(20 << 20))

    def serve(sock: socket.socket) -> None:
        left = len(request)
        time.sleep(0.05)
        while left > 0:
            left -= len(sock.recv(65_536))
        sock.sendall(head(200, {"content-length": "0"}))

    with raw_server(serve) as port:

        async def main() -> int:
            async with pool_to(port) as pool:
                exchange = Exchange()
                exchange.on_end = pool.finished
                tracemalloc.start()
                pool.start(request, exchange)
                await exchange.wait()
                assert exchange.status == 200
                return tracemalloc.get_traced_memory()[1]

        try:
            assert run(main) < 2 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("end", ["open", "closed", "reset"])
def test_an_answer_that_comes_before_the_request_was_sent(end: str) -> None:
    """A server that refuses a long body answers at once, and may close without having read the rest."""
    told = head(413, {"content-length": "8", "content-type": "text/plain"}) + b"too long"

    def serve(sock: socket.socket) -> None:
        sock.recv(1000)
        sock.sendall(told)
        if end == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if end == "open":
            time.sleep(0.2)

    with raw_server(serve) as port:

        async def main() -> Exchange:
            async with pool_to(port) as pool:
                exchange = await ask(pool, bytes(20 << 20))
                assert pool._idle == []
                return exchange

        exchange = run(main)
    assert (exchange.status, exchange.error, body_of(exchange)) == (413, None, b"too long")
    assert exchange.sent_ns is None


def test_a_wake_up_without_room_to_write_is_harmless() -> None:
    with ScriptedServer([Wait(0.1), ReadRequest(), *response(200, b"ok")]) as server:

        async def main() -> Exchange:
            async with pool_to(server.port) as pool:
                exchange = start(pool, bytes(20 << 20))
                await until(lambda: pool.active.get(exchange))
                await asyncio.sleep(0.03)  # until the buffers of the kernel are full
                connection = pool.active[exchange]
                assert connection is not None
                connection.ready(WRITE)
                await exchange.wait()
                return exchange

        exchange = run(main)
    assert (exchange.error, body_of(exchange), len(server.requests[0].body)) == (None, b"ok", 20 << 20)


def test_a_stream_that_begins_before_the_request_was_sent() -> None:
    """The answer is read while the request goes on."""

    def serve(sock: socket.socket) -> None:
        sock.sendall(head(200, {"transfer-encoding": "chunked"}) + chunk(b"early"))
        time.sleep(0.1)
        left = len(payload(bytes(size)))
        while left:
            left -= len(sock.recv(1 << 20))
        sock.sendall(chunk(b"late") + chunk(b""))
        sock.recv(1)

    size = 20 << 20
    with raw_server(serve) as port:

        async def main() -> Exchange:
            async with pool_to(port) as pool:
                exchange = await ask(pool, bytes(size))
                assert len(pool._idle) == 1
                return exchange

        exchange = run(main)
    assert (exchange.parts, exchange.error) == ([b"early", b"late"], None)
    assert exchange.sent_ns is not None
    assert exchange.stamps[0] < exchange.sent_ns < exchange.stamps[1]


def test_a_reset_in_mid_request_without_an_answer_is_a_write_error() -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(1000)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with raw_server(serve) as port:

        async def main() -> Exchange:
            async with pool_to(port) as pool:
                return await ask(pool, bytes(20 << 20))

        exchange = run(main)
    assert isinstance(exchange.error, httpx.WriteError | httpx.RemoteProtocolError)
    assert (exchange.sent_ns, exchange.status) == (None, None)


# Breaks.

CHUNKED = head(200, {"transfer-encoding": "chunked"})


@pytest.mark.parametrize(
    ("steps", "kind", "text", "got"),
    [
        ([Close()], httpx.RemoteProtocolError, "before it answered", b""),
        ([Send(b"HTTP/1.1 200 OK\r\ncont"), Close()], httpx.RemoteProtocolError, "before it answered", b""),
        ([Send(head(100)), Wait(0.01), Close()], httpx.RemoteProtocolError, "before it answered", b""),
        ([Reset()], httpx.ReadError, "ECONNRESET", b""),
        ([Send(CHUNKED + chunk(b"ab")), Wait(0.01), Reset()], httpx.ReadError, "ECONNRESET", b"ab"),
        ([Send(CHUNKED + chunk(b"ab")), Wait(0.01), Close()], httpx.RemoteProtocolError, "inside the body", b"ab"),
        ([Send(CHUNKED + chunk(b"ab")[:4]), Wait(0.01), Close()], httpx.RemoteProtocolError, "inside the body", b"a"),
        (
            [Send(head(200, {"content-length": "5"}) + b"ab"), Close()],
            httpx.RemoteProtocolError,
            "inside the body",
            b"ab",
        ),
        ([Send(CHUNKED + b"zz\r\n")], httpx.RemoteProtocolError, "not HTTP/1.1", b""),
        ([Send(CHUNKED + chunk(b"ab") + b"\xff\r\n")], httpx.RemoteProtocolError, "not HTTP/1.1", b"ab"),
        ([Send(b"SSH-2.0-OpenSSH_9.6\r\n")], httpx.RemoteProtocolError, "not HTTP/1.1", b""),
        ([Send(b"\x16\x03\x01\x00\x05hello")], httpx.RemoteProtocolError, "not HTTP/1.1", b""),
    ],
)
def test_a_break_says_what_broke_and_keeps_what_came(
    steps: Script, kind: type[Exception], text: str, got: bytes
) -> None:
    exchanges, server = played(steps, requests=2)
    for exchange in exchanges:
        assert type(exchange.error) is kind
        assert text in str(exchange.error)
        assert body_of(exchange) == got
        assert exchange.end_ns is not None
    assert server.connections == 2  # a broken connection is not used again


def test_a_body_beyond_the_limit_ends_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servebench.wire.connection.MAX_BODY_BYTES", 1 << 20)
    assert one(response(200, bytes(1 << 20))).error is None
    exchange = one(sse_response([bytes(1 << 19), bytes(1 << 19), b"x", Hang()]))
    assert isinstance(exchange.error, httpx.RemoteProtocolError)
    assert "larger than 1 MiB" in str(exchange.error)


def test_a_second_answer_to_one_request_is_not_given_to_the_next() -> None:
    """In the same read, in part or as a whole, or in a later one."""
    extra = head(200, {"content-length": "5"}) + b"extra"
    answer = head(200, {"content-length": "2"}) + b"ok"
    for more in (extra, extra[:10], extra[:-2]):
        exchanges, server = played([Send(answer + more)], requests=3)
        assert [(body_of(exchange), exchange.error) for exchange in exchanges] == [(b"ok", None)] * 3
        assert server.connections == 3
    exchanges, server = played([Send(answer), Wait(0.05), Send(extra)], requests=1)
    assert body_of(exchanges[0]) == b"ok"


def test_line_ends_after_an_answer_are_no_second_answer() -> None:
    exchanges, server = played([Send(head(200, {"content-length": "2"}) + b"ok\r\n")], requests=3)
    assert [(body_of(exchange), exchange.error) for exchange in exchanges] == [(b"ok", None)] * 3
    assert server.connections == 1


@pytest.mark.parametrize("ending", ["content-length: 2\r\nconnection: close", "connection: close"])
def test_a_connection_that_the_server_will_close_is_not_kept(ending: str) -> None:
    raw = f"HTTP/1.1 200 OK\r\n{ending}\r\n\r\nok".encode()
    exchanges, server = played([Send(raw), Close()], requests=2)
    assert [(body_of(exchange), exchange.error) for exchange in exchanges] == [(b"ok", None)] * 2
    assert server.connections == 2


def test_callbacks_see_the_exchange_in_order() -> None:
    calls: list[str] = []

    def note(name: str) -> Callable[[Exchange], None]:
        return lambda exchange: calls.append(f"{name} {exchange.status} {len(exchange.parts)} {exchange.finished}")

    with ScriptedServer(sse_response([Wait(0.03), b"a", Wait(0.03), b"b", Wait(0.03)])) as server:

        async def main() -> None:
            async with pool_to(server.port) as pool:
                exchange = Exchange()
                exchange.on_headers, exchange.on_portion, exchange.portion = note("head"), note("portion"), 1

                def ended(_: Exchange) -> None:
                    pool.finished(exchange)
                    note("end")(exchange)

                exchange.on_end = ended
                pool.start(payload(), exchange)
                await exchange.wait()
                await asyncio.sleep(0.01)

        run(main)
    assert calls[0] == "head 200 0 False"
    assert calls[1:-1] in (["portion 200 1 False", "portion 200 2 False"], ["portion 200 2 False"])  # read at once
    assert calls[-1] == "end 200 2 True"
