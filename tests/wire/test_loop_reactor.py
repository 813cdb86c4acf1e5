"""The reactor of systems without epoll carries the same traffic; here it runs on Linux."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from servebench.testing import DONE, Events, ScriptedServer, sse_response
from servebench.wire import reactor as reactors
from servebench.wire.reactor import READ, WRITE, LoopReactor
from servebench.wire.transport import KernelStampTransport


def test_it_tells_of_reading_and_writing_as_asked() -> None:
    async def body() -> list[int]:
        near, far = socket.socketpair()
        near.setblocking(False)
        reactor, seen = LoopReactor(asyncio.get_running_loop()), []

        def ready(mask: int) -> None:
            seen.append(mask)
            if mask == READ:
                near.recv(10)
            else:
                reactor.modify(near.fileno(), READ)

        reactor.register(near.fileno(), READ | WRITE, ready)
        await asyncio.sleep(0.01)
        far.send(b"x")
        await asyncio.sleep(0.01)
        reactor.unregister(near.fileno())
        far.send(b"y")
        await asyncio.sleep(0.01)
        reactor.close()
        near.close()
        far.close()
        return seen

    assert asyncio.run(body()) == [WRITE, READ]


def test_a_stream_comes_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reactors, "has_timerfd", lambda: False)
    events = Events("chat")
    script = sse_response([events.text("one"), events.text(" two"), DONE])

    async def body(url: str) -> bytes:
        async with httpx.AsyncClient(transport=KernelStampTransport()) as client:
            response = await client.post(url, json={})
            return response.content

    with ScriptedServer(script) as server:
        content = asyncio.run(body(server.url))
    assert b"one" in content and b" two" in content and content.rstrip().endswith(b"data: [DONE]")
