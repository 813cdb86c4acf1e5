"""Readiness: every event is delivered, to the handler it is meant for, and the event loop is never starved."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from servebench.wire.reactor import HOLD_NS, READ, WRITE, EpollReactor, LoopReactor, make_reactor

HOLDS = pytest.mark.parametrize("hold_ns", [0, HOLD_NS], ids=["at once", "held"])
REACTORS = pytest.mark.parametrize("hold_ns", [0, HOLD_NS, None], ids=["at once", "held", "loop's own"])
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


def run(
    body: Callable[[Any], Awaitable[None]],
    hold_ns: int | None,
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> list[dict[str, Any]]:
    """Run `body` with a reactor, of epoll unless `hold_ns` is None; returns what the loop's exception handler heard."""
    problems: list[dict[str, Any]] = []

    async def main() -> None:
        running = asyncio.get_running_loop()
        running.set_exception_handler(lambda _, context: problems.append(context))
        reactor = LoopReactor(running) if hold_ns is None else EpollReactor(running, hold_ns)
        try:
            await asyncio.wait_for(body(reactor), 20)
        finally:
            reactor.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    return problems


@contextmanager
def pairs(count: int) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Connected sockets that do not block: the one to watch, and its peer."""
    made = [socket.socketpair() for _ in range(count)]
    for pair in made:
        for sock in pair:
            sock.setblocking(False)
    try:
        yield made
    finally:
        for pair in made:
            for sock in pair:
                sock.close()


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Return once `condition` holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.001)


@LOOPS
@REACTORS
def test_every_event_is_delivered(hold_ns: int | None, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def body(reactor: Any) -> None:
        got = [b""] * 200

        def reader(place: int, sock: socket.socket) -> Callable[[int], None]:
            def handle(mask: int) -> None:
                got[place] += sock.recv(1)  # one byte of several: what is left must be signalled again

            return handle

        with pairs(len(got)) as made:
            for place, (sock, _) in enumerate(made):
                reactor.register(sock.fileno(), READ, reader(place, sock))
            for byte in (b"a", b"bc", b"d"):
                for _, peer in made:
                    peer.send(byte)
                await asyncio.sleep(0.003)
            await until(lambda: got == [b"abcd"] * len(got))

    assert run(body, hold_ns, loop) == []


@HOLDS
def test_the_mask_names_what_is_ready(hold_ns: int) -> None:
    async def body(reactor: Any) -> None:
        masks: list[int] = []
        with pairs(1) as [(sock, peer)]:

            def handle(mask: int) -> None:
                masks.append(mask)
                reactor.unregister(sock.fileno())

            for wanted, expected in ((WRITE, WRITE), (READ, READ), (READ | WRITE, READ | WRITE)):
                peer.send(b"a")
                reactor.register(sock.fileno(), wanted, handle)
                await until(lambda: bool(masks))
                assert masks.pop() == expected
            peer.close()
            reactor.register(sock.fileno(), READ, handle)
            await until(lambda: bool(masks))
            assert masks.pop() == READ | select.EPOLLHUP

    assert run(body, hold_ns) == []


@REACTORS
def test_modify_changes_what_is_waited_for_and_who_is_called(hold_ns: int | None) -> None:
    async def body(reactor: Any) -> None:
        calls: list[tuple[str, int]] = []
        with pairs(1) as [(sock, peer)]:
            fd = sock.fileno()
            reactor.register(fd, READ, lambda mask: calls.append(("first", mask)))
            reactor.modify(fd, 0)
            peer.send(b"a")
            await asyncio.sleep(0.01)
            assert calls == []
            reactor.modify(fd, READ)
            await until(lambda: calls == [("first", READ)] * len(calls) != [])
            reactor.modify(fd, WRITE, lambda mask: calls.append(("second", mask)))
            calls.clear()
            await until(lambda: calls == [("second", WRITE)] * len(calls) != [])
            reactor.unregister(fd)

    assert run(body, hold_ns) == []


@REACTORS
def test_who_has_unregistered_is_not_called(hold_ns: int | None) -> None:
    async def body(reactor: Any) -> None:
        calls = 0
        with pairs(1) as [(sock, peer)]:

            def handle(mask: int) -> None:
                nonlocal calls
                calls += 1
                reactor.unregister(sock.fileno())

            reactor.register(sock.fileno(), READ, handle)
            peer.send(b"a")
            await asyncio.sleep(0.02)
            reactor.unregister(sock.fileno())  # for the second time
        assert calls == 1

    assert run(body, hold_ns) == []


def test_handlers_may_unregister_others_that_are_ready_too() -> None:
    async def body(reactor: Any) -> None:
        called: list[int] = []
        with pairs(5) as made:

            def handler(fd: int) -> Callable[[int], None]:
                def handle(mask: int) -> None:
                    called.append(fd)
                    for sock, _ in made:
                        reactor.unregister(sock.fileno())

                return handle

            for sock, peer in made:
                peer.send(b"a")
                reactor.register(sock.fileno(), READ, handler(sock.fileno()))
            reactor.drain()
            assert len(called) == 1
            assert reactor.drain() == 0

    assert run(body, 0) == []


def test_an_event_of_a_closed_descriptor_does_not_reach_the_next_owner_of_its_number() -> None:
    async def body(reactor: Any) -> None:
        told: list[str] = []
        with pairs(2) as made, pairs(1) as [(new, new_peer)]:

            def handler(other: socket.socket) -> Callable[[int], None]:
                def handle(mask: int) -> None:
                    """Close the other, whose event waits, and give its number to a descriptor that is not ready."""
                    told.append("old")
                    fd = other.fileno()
                    reactor.unregister(fd)
                    os.dup2(new.fileno(), fd)
                    reactor.register(fd, READ, lambda mask: told.append("new"))
                    for sock, _ in made:
                        if sock is not other:
                            reactor.unregister(sock.fileno())

                return handle

            (one, one_peer), (two, two_peer) = made
            for peer in (one_peer, two_peer):
                peer.send(b"a")
            reactor.register(one.fileno(), READ, handler(two))
            reactor.register(two.fileno(), READ, handler(one))
            reactor.drain()
            assert told == ["old"]
            reactor.drain()
            assert told == ["old"]
            new_peer.send(b"b")
            reactor.drain()
            assert told == ["old", "new"]

    assert run(body, 0) == []


@pytest.mark.parametrize("change", ["none", "modify", "modify later", "unregister"])
def test_what_is_registered_within_a_drain_works_from_then_on(change: str) -> None:
    async def body(reactor: Any) -> None:
        told: list[str] = []
        with pairs(2) as [(sock, peer), (late, late_peer)]:

            def handle(mask: int) -> None:
                reactor.unregister(sock.fileno())
                reactor.register(late.fileno(), READ, lambda mask: told.append("late"))
                if change == "modify":
                    reactor.modify(late.fileno(), READ, lambda mask: told.append("modified"))
                if change == "unregister":
                    reactor.unregister(late.fileno())

            reactor.register(sock.fileno(), READ, handle)
            peer.send(b"a")
            late_peer.send(b"a")
            reactor.drain()
            if change == "modify later":
                reactor.modify(late.fileno(), READ, lambda mask: told.append("modified"))
            reactor.drain()
            reactor.drain()
            expected = {"none": ["late"], "unregister": []}
            assert told == 2 * expected.get(change, ["modified"])

    assert run(body, 0) == []


@LOOPS
@REACTORS
@pytest.mark.parametrize("gap", [0.0, 0.0003, 0.002])
def test_a_handler_that_fails_stops_nobody(
    gap: float, hold_ns: int | None, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Whether the failure comes with a wake-up or, `gap` seconds after one, at the end of a hold."""

    async def body(reactor: Any) -> None:
        got = bytearray()
        with pairs(2) as [(bad, bad_peer), (good, good_peer)]:

            def fail(mask: int) -> None:
                bad.recv(1)
                raise RuntimeError("a bug in a handler")

            reactor.register(bad.fileno(), READ, fail)
            reactor.register(good.fileno(), READ, lambda mask: got.extend(good.recv(1)))
            for round_ in range(1, 6):
                good_peer.send(b"a")
                await asyncio.sleep(gap)
                bad_peer.send(b"a")
                good_peer.send(b"a")
                await until(lambda round_=round_: len(got) == 2 * round_)  # type: ignore[misc]
                await asyncio.sleep(0.002)

    problems = run(body, hold_ns, loop)
    assert [str(problem["exception"]) for problem in problems] == ["a bug in a handler"] * 5


def test_a_hold_gathers_what_comes_within_it() -> None:
    def wakeups(hold_ns: int) -> tuple[int, int]:
        """How often the reactor woke for twenty events a millisecond apart, and how many holds that took."""
        seen = 0
        start = time.monotonic_ns()

        async def body(reactor: Any) -> None:
            nonlocal seen
            got = bytearray()
            with pairs(1) as [(sock, peer)]:
                reactor.register(sock.fileno(), READ, lambda mask: got.extend(sock.recv(10)))
                for _ in range(20):
                    peer.send(b"a")
                    await asyncio.sleep(0.001)
                await until(lambda: len(got) == 20)
                seen = reactor.wakeups

        assert run(body, hold_ns) == []
        return seen, (time.monotonic_ns() - start) // (hold_ns or 1)

    assert wakeups(0)[0] == 20
    woken, holds = wakeups(50_000_000)
    assert woken <= 2 * holds + 2 < 20  # one to begin a hold, one at its end


@LOOPS
@HOLDS
def test_a_drain_gives_way_although_everything_stays_ready(
    hold_ns: int, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def body(reactor: Any) -> None:
        calls = 0

        def busy(mask: int) -> None:
            nonlocal calls
            calls += 1
            end = time.perf_counter_ns() + 2_000
            while time.perf_counter_ns() < end:
                pass

        with pairs(150) as made:
            for sock, peer in made:
                peer.send(b"a")
                reactor.register(sock.fileno(), READ, busy)
            handled = [reactor.drain() for _ in range(20)]
            assert sum(handled) == calls
            assert 256 <= max(handled) <= 2048  # several batches, and an end, which level-triggered readiness has not
            before = calls
            turns = 0
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 3
            assert calls > before
            for sock, _ in made:
                reactor.unregister(sock.fileno())

    assert run(body, hold_ns, loop) == []


@LOOPS
@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_after_close_nobody_is_called_and_nothing_is_watched(
    pause: float, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        calls: list[int] = []
        running = asyncio.get_running_loop()
        reactor = EpollReactor(running, 5_000_000)
        watched = reactor._epoll.fileno(), reactor._timer.fd
        with pairs(1) as [(sock, peer)]:
            reactor.register(sock.fileno(), READ, calls.append)
            peer.send(b"a")
            await until(lambda: bool(calls))
            reactor.unregister(sock.fileno())
            await asyncio.sleep(pause)  # so that the reactor holds, or that the hold has ended
            reactor.register(sock.fileno(), READ, calls.append)
            reactor.close()
            calls.clear()
            assert True not in [running.remove_reader(fd) for fd in watched]  # it tells whether there was one
            await asyncio.sleep(0.01)
            assert calls == []

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@HOLDS
def test_a_quiet_reactor_sleeps(hold_ns: int) -> None:
    async def body(reactor: EpollReactor) -> None:
        got = bytearray()
        with pairs(1) as [(sock, peer)]:
            reactor.register(sock.fileno(), READ, lambda mask: got.extend(sock.recv(1)))
            peer.send(b"a")
            await until(lambda: bool(got))
            await asyncio.sleep(0.01)
            woken = reactor.wakeups
            await asyncio.sleep(0.02)
            assert reactor.wakeups == woken <= 3

    assert run(body, hold_ns) == []


def test_each_platform_has_its_reactor(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> type:
        reactor = make_reactor(asyncio.get_running_loop(), 7)
        reactor.close()
        assert getattr(reactor, "hold_ns", 7) == 7
        return type(reactor)

    assert uvloop.run(main()) is EpollReactor
    monkeypatch.setattr("servebench.wire.reactor.has_timerfd", lambda: False)
    assert uvloop.run(main()) is LoopReactor


def test_a_hold_can_be_switched_off_while_it_lasts() -> None:
    async def body(reactor: Any) -> None:
        got = bytearray()
        with pairs(1) as [(sock, peer)]:
            reactor.register(sock.fileno(), READ, lambda mask: got.extend(sock.recv(1)))
            for count in range(1, 5):
                peer.send(b"a")
                await until(lambda count=count: len(got) == count)  # type: ignore[misc]
                reactor.hold_ns = 0 if count == 2 else reactor.hold_ns

    assert run(body, 3_000_000) == []
