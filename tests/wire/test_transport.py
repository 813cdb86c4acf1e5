"""The transport under httpx: responses as httpx gives them, with the arrivals of their bytes."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import trustme
from wire_client import MS, mishaps, run, until

from servebench.testing import (
    Close,
    Events,
    Hang,
    Reset,
    Script,
    ScriptedServer,
    Send,
    Wait,
    chunk,
    head,
    json_response,
    refusing_port,
    response,
    sse,
    sse_response,
    unanswering_port,
)
from servebench.wire.arrivals import Arrivals
from servebench.wire.pool import Limits
from servebench.wire.transport import KernelStampTransport, encode

EV = Events("chat")
LATE = 5 * MS


def with_client(
    script: Script | Callable[..., Script],
    main: Callable[[httpx.AsyncClient, ScriptedServer], Awaitable[None]],
    limits: Limits | None = None,
    hold_ns: int = 0,
) -> None:
    """Run `main(client, server)`."""
    with ScriptedServer(script) as server:

        async def within() -> None:
            transport = KernelStampTransport(limits, hold_ns=hold_ns)
            async with httpx.AsyncClient(transport=transport, base_url=server.url) as client:
                await main(client, server)

        run(within)
    assert mishaps(server) == []


def arrivals_of(answer: httpx.Response) -> Arrivals:
    arrivals = answer.extensions["arrivals"]
    assert isinstance(arrivals, Arrivals)
    return arrivals


# What httpx gives.


def test_json_both_ways() -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        answer = await client.post("/v1/x?a=1&b=%20", json={"text": "é"}, headers={"authorization": "Bearer k"})
        assert answer.status_code == 200
        assert answer.json() == {"ok": True}
        assert answer.headers["content-type"] == "application/json"
        assert answer.elapsed.total_seconds() > 0
        (seen,) = server.requests
        assert (seen.method, seen.path, seen.json()) == ("POST", "/v1/x?a=1&b=%20", {"text": "é"})
        assert seen.headers["authorization"] == "Bearer k"
        assert seen.headers["host"] == f"127.0.0.1:{server.port}"
        assert seen.headers["content-length"] == str(len(seen.body))
        (pool,) = client._transport._pools.values()  # type: ignore[attr-defined]
        assert (pool.active, len(pool._idle)) == ({}, 1)

    with_client(json_response(200, {"ok": True}), main)


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "PUT", "PATCH"])
def test_other_methods(method: str) -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        for _ in range(2):
            answer = await client.request(method, "/x")
            assert (answer.status_code, answer.content) == (200, b"ok")
        assert [seen.method for seen in server.requests] == [method] * 2
        assert server.connections == 1

    with_client(response(200, b"ok"), main)


def test_a_head_request_waits_for_no_body() -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        for _ in range(2):
            answer = await client.head("/x")
            assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "5")
            assert arrivals_of(answer).body == b""

    with_client([Send(head(200, {"content-length": "5"}))], main, Limits(idle=2.0))


@pytest.mark.parametrize("hold_ns", [0, 400_000])
def test_a_stream_comes_in_pieces_as_it_is_sent(hold_ns: int) -> None:
    events = [sse(EV.text(f" {n}")) for n in range(5)]
    steps = [step for n, event in enumerate(events) for step in (Wait(0.04), Send(event, f"t{n}"))]

    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        got: list[bytes] = []
        when: list[int] = []
        async with client.stream("POST", "/", json={}) as answer:
            assert answer.status_code == 200
            assert "arrivals" not in answer.extensions
            async for piece in answer.aiter_bytes():
                got.append(piece)
                when.append(time.time_ns())
        assert got == events
        assert when[0] < server.at("t4").realtime_ns
        arrivals = arrivals_of(answer)
        assert arrivals.body == b"".join(events)
        for place, read in enumerate(when):
            sent = server.at(f"t{place}")
            end = len(b"".join(events[: place + 1])) - 1
            assert sent.realtime_ns <= arrivals.at(end) <= min(read, sent.done_ns + LATE)

    with_client(sse_response(steps), main, hold_ns=hold_ns)


def test_lines() -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        async with client.stream("GET", "/") as answer:
            lines = [line async for line in answer.aiter_lines()]
        assert lines == ["data: a", "", "data: b", "", "last"]

    with_client(sse_response([b"data: a\n\nda", Wait(0.01), b"ta: b\r\n\r", Wait(0.01), b"\nlast"]), main)


def test_gzip_is_decoded_by_httpx_and_kept_in_the_arrivals() -> None:
    packed = gzip.compress(b"hello" * 100)

    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        answer = await client.get("/")
        assert answer.content == b"hello" * 100
        assert arrivals_of(answer).body == packed
        assert "gzip" in server.requests[0].headers["accept-encoding"]

    with_client(sse_response([packed[:20], Wait(0.01), packed[20:]], headers={"content-encoding": "gzip"}), main)


def test_arrivals_tell_when_each_byte_came() -> None:
    steps = [Wait(0.01), Send(b"abc", "one"), Wait(0.05), Send(b"defg", "two"), Wait(0.01)]

    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        await client.get("/")  # so that the next one is on a kept connection
        arrivals = arrivals_of(await client.get("/"))
        assert (arrivals.body, arrivals.ends.tolist()) == (b"abcdefg", [3, 7])
        assert (arrivals.ends.dtype.name, arrivals.stamps_ns.dtype.name) == ("int64", "int64")
        assert arrivals.kernel
        assert [arrivals.at(offset) for offset in range(7)] == [arrivals.stamps_ns[0]] * 3 + [arrivals.stamps_ns[1]] * 4
        for place, label in enumerate(("one", "two")):
            assert server.at(label).realtime_ns <= arrivals.stamps_ns[place] <= server.at(label).done_ns + LATE
        assert arrivals.sent_ns is not None
        assert arrivals.headers_ns is not None
        assert arrivals.sent_ns <= server.requests[1].received_ns
        assert arrivals.sent_ns <= arrivals.headers_ns <= arrivals.stamps_ns[0]
        with pytest.raises(IndexError):
            arrivals.at(7)

    with_client(sse_response(steps), main)


def test_an_empty_body_has_empty_arrivals() -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        arrivals = arrivals_of(await client.get("/"))
        assert (arrivals.body, arrivals.ends.tolist(), arrivals.stamps_ns.tolist()) == (b"", [], [])
        with pytest.raises(IndexError):
            arrivals.at(0)

    with_client(response(204, b""), main)


def test_a_redirect_is_followed_when_asked() -> None:
    def script(seen: object) -> Script:
        return response(302, b"", {"location": "/there"}) if seen.path == "/here" else response(200, b"ok")  # type: ignore[attr-defined]

    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        answer = await client.get("/here", follow_redirects=True)
        assert (answer.content, [past.status_code for past in answer.history]) == (b"ok", [302])
        assert (await client.get("/here")).status_code == 302

    with_client(script, main)


def test_a_body_that_is_generated_is_sent_with_its_length() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"cd"

    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        await client.post("/", content=pieces())
        (seen,) = server.requests
        assert (seen.body, seen.headers["content-length"]) == (b"abcd", "4")
        assert "transfer-encoding" not in seen.headers

    with_client(response(200, b"ok"), main)


@pytest.mark.parametrize(
    ("method", "body", "length"), [("GET", b"", None), ("GET", b"x", b"1"), ("POST", b"", b"0"), ("PUT", b"xy", b"2")]
)
def test_a_request_as_bytes(method: str, body: bytes, length: bytes | None) -> None:
    request = httpx.Request(method, "http://a.example:8000/p%20q?x=1", content=body, headers={"x-a": "b"})
    raw = encode(request, body)
    top, _, rest = raw.partition(b"\r\n\r\n")
    line, *fields = top.split(b"\r\n")
    names = [field.split(b":")[0].lower() for field in fields]
    assert line == method.encode() + b" /p%20q?x=1 HTTP/1.1"
    assert rest == body
    assert b"Host: a.example:8000" in fields
    assert b"x-a: b" in fields
    assert [field.split(b": ")[1] for field in fields if field.startswith(b"content-length")] == [length] * bool(length)
    assert len(names) == len(set(names))


# At once.


def test_requests_at_once_do_not_mix() -> None:
    def script(seen: object) -> Script:
        body = seen.path.encode() * 10  # type: ignore[attr-defined]
        return sse_response([step for n in range(10) for step in (Wait(0.002), body[n::10])])

    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        for _ in range(2):
            answers = await asyncio.gather(*(client.get(f"/{n:04}") for n in range(30)))
            for n, answer in enumerate(answers):
                body = f"/{n:04}".encode() * 10
                assert answer.content == b"".join(body[k::10] for k in range(10))
                assert arrivals_of(answer).body == answer.content
        assert server.connections == 30

    with_client(script, main)


def test_several_origins() -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        with ScriptedServer(response(200, b"other")) as other:
            assert (await client.get("/")).content == b"one"
            assert (await client.get(other.url)).content == b"other"

    with_client(response(200, b"one"), main)


def test_a_slow_reader_gets_everything() -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        got = b""
        async with client.stream("GET", "/") as answer:
            async for piece in answer.aiter_raw():
                got += piece
                await asyncio.sleep(0.01)
        assert got == bytes(range(60)) == arrivals_of(answer).body
        assert len(arrivals_of(answer).ends) > 1

    with_client(sse_response([step for n in range(60) for step in (Wait(0.0005), bytes([n]))]), main)


# Errors.


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([Close()], httpx.RemoteProtocolError),
        ([Reset()], httpx.ReadError),
        ([Send(b"nonsense\r\n\r\n")], httpx.RemoteProtocolError),
        ([Hang()], httpx.ReadTimeout),
    ],
)
def test_errors_before_the_head_are_those_of_httpx(script: Script, kind: type[httpx.TransportError]) -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        with pytest.raises(kind) as caught:
            await client.get("/x")
        assert type(caught.value) is kind
        assert caught.value.request.url.path == "/x"

    with_client(script, main, Limits(idle=0.2))


@pytest.mark.parametrize(
    ("end", "kind"),
    [(Close(), httpx.RemoteProtocolError), (Reset(), httpx.ReadError), (Hang(), httpx.ReadTimeout)],
)
def test_errors_within_the_body_come_after_what_was_received(end: Close, kind: type[httpx.TransportError]) -> None:
    script = [Send(head(200, {"transfer-encoding": "chunked"}) + chunk(b"abc")), Wait(0.02), end]

    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        got = b""
        async with client.stream("GET", "/x") as answer:
            with pytest.raises(kind) as caught:
                async for piece in answer.aiter_bytes():
                    got += piece
        assert caught.value.request.url.path == "/x"
        assert got == b"abc" == arrivals_of(answer).body
        with pytest.raises(kind):
            await client.get("/")

    with_client(script, main, Limits(idle=0.2))


def test_errors_of_connecting() -> None:
    async def main() -> None:
        transport = KernelStampTransport(Limits(connect=0.2))
        async with httpx.AsyncClient(transport=transport) as client:
            with refusing_port() as port, pytest.raises(httpx.ConnectError, match="refused"):
                await client.get(f"http://127.0.0.1:{port}")
            with unanswering_port() as port, pytest.raises(httpx.ConnectTimeout):
                await client.get(f"http://127.0.0.1:{port}")
            with pytest.raises(httpx.ConnectError, match="invalid"):
                await client.get("http://servebench.invalid")

    run(main)


def test_tls_is_verified_by_default() -> None:
    authority = trustme.CA()
    import ssl

    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with ScriptedServer(response(200, b"ok"), tls=served) as server:

        async def main() -> None:
            async with httpx.AsyncClient(transport=KernelStampTransport(verify=trusting)) as client:
                answer = await client.get(server.url)
                assert (answer.content, arrivals_of(answer).kernel) == (b"ok", True)
            async with httpx.AsyncClient(transport=KernelStampTransport()) as client:
                with pytest.raises(httpx.ConnectError, match="TLS"):
                    await client.get(server.url)

        run(main)


# Ends before the end.

ENDLESS = [Send(head(200, {"transfer-encoding": "chunked"}) + chunk(b"abc")), Hang()]


def test_closing_in_mid_stream_frees_the_connection() -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        async with client.stream("GET", "/") as answer:
            async for _ in answer.aiter_bytes():
                break
        assert answer.is_closed
        (pool,) = client._transport._pools.values()  # type: ignore[attr-defined]
        assert (pool.active, pool._idle) == ({}, [])
        async with client.stream("GET", "/") as answer:
            assert answer.status_code == 200
        assert pool.opened == 2

    with_client(ENDLESS, main)


@pytest.mark.parametrize("script", [[Hang()], ENDLESS], ids=["before the head", "within the body"])
def test_a_request_that_is_cancelled_frees_its_connection(script: Script) -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.get("/"), 0.1)
        (pool,) = client._transport._pools.values()  # type: ignore[attr-defined]
        await until(lambda: not pool.active)

    with_client(script, main)


def test_closing_the_client_ends_what_runs() -> None:
    with ScriptedServer(ENDLESS) as server:

        async def main() -> None:
            client = httpx.AsyncClient(transport=KernelStampTransport())
            task = asyncio.create_task(client.get(server.url))
            await until(lambda: server.requests)
            await client.aclose()
            with pytest.raises(httpx.ReadError):
                await task

        run(main)


def test_a_transport_can_be_closed_twice_and_unused() -> None:
    async def main(client: httpx.AsyncClient, server: ScriptedServer) -> None:
        transport = KernelStampTransport()
        await transport.aclose()
        async with transport:
            request = httpx.Request("GET", server.url)
            answer = await transport.handle_async_request(request)
            assert await answer.aread() == b"ok"
        await transport.aclose()

    with_client(response(200, b"ok"), main)
