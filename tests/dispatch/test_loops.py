"""The open and the closed loop by themselves: what they send, when, and that each call keeps its own payload."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.clock import Anchor
from servebench.dispatch.call import Call
from servebench.dispatch.job import Job, share
from servebench.dispatch.loops import LONGEST_PAUSE_S, ClosedLoop, Gate, OpenLoop
from servebench.dispatch.slices import Slices

MS = 1_000_000


def job(**more: Any) -> Job:
    fields: dict[str, Any] = {
        "rundir": "", "counters": "", "worker": 0, "workers": 1, "url": "", "api": "chat", "model": "m",
        "stream": True, "headers": {}, "extras": {}, "min_tokens": False, "kit": {}, "salt": 0, "api_key_env": None,
        "verify": True, "ca_file": None, "connect_timeout": 1, "idle_timeout": 1, "timeout": 1, "concurrency": None,
        "think": 0.0, "max_in_flight": None, "drop_when_full": False, "throttle": None, "cohort": (0, None),
    }  # fmt: skip
    return Job(**fields | more)


class FakeSender:
    """Takes payloads in order, as the real one does; a payload here is the number of its row."""

    def __init__(self, rows: int) -> None:
        self.payloads = deque(range(rows))
        self.running: list[Call] = []
        self.sent: list[Call] = []
        self.dropped: list[Call] = []
        self.wrong: list[tuple[int, int]] = []
        self.owed = 0
        self.on_free: Callable[[Call], None] = lambda call: None
        self.pause: float | None = None

    @property
    def in_flight(self) -> int:
        return len(self.running)

    def due(self) -> None:
        pass

    def owe(self, calls: int) -> None:
        self.owed += calls

    def send(self, call: Call) -> None:
        call.dispatched_ns = time.time_ns()
        if (payload := self.payloads.popleft()) != call.row:
            self.wrong.append((call.row, payload))
        self.running.append(call)
        self.sent.append(call)

    def drop(self, call: Call, reason: str) -> None:
        self.payloads.popleft()
        self.dropped.append(call)

    def end(self, at: int = 0) -> None:
        call = self.running.pop(at)
        self.on_free(call)

    def retry_pause(self, call: Call) -> float | None:
        return self.pause


def open_loop(offsets_ms: list[float], loop: asyncio.AbstractEventLoop, **limits: Any) -> tuple[OpenLoop, FakeSender]:
    rows = np.arange(len(offsets_ms), dtype=np.int64)
    offsets = np.array([round(ms * MS) for ms in offsets_ms], dtype=np.int64)
    sender = FakeSender(len(rows))
    slices = Slices(loop)
    return OpenLoop(job(**limits), rows, offsets, sender, slices, loop), sender  # type: ignore[arg-type]


def closed_loop(rows: int, loop: asyncio.AbstractEventLoop, **limits: Any) -> tuple[ClosedLoop, FakeSender]:
    sender = FakeSender(rows)
    numbers = np.arange(rows, dtype=np.int64)
    return ClosedLoop(job(**limits), numbers, sender, Slices(loop), loop), sender  # type: ignore[arg-type]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


class TestOpenLoop:
    def test_calls_go_at_their_due_times_whatever_became_of_the_others(self) -> None:
        async def play() -> FakeSender:
            loop, sender = open_loop([0, 0, 5, 20, 20.5], asyncio.get_running_loop())
            loop.start(Anchor.now(), time.monotonic_ns() + 10 * MS)
            await until(lambda: loop.exhausted)
            return sender

        sender = asyncio.run(play())
        assert [call.row for call in sender.sent] == [0, 1, 2, 3, 4]
        assert all(call.dispatched_ns is not None and call.dispatched_ns >= call.scheduled_ns for call in sender.sent)
        assert [call.scheduled_ns - sender.sent[0].scheduled_ns for call in sender.sent] == [
            0, 0, 5 * MS, 20 * MS, 20 * MS + MS // 2,
        ]  # fmt: skip

    def test_the_cohort_is_owed_before_the_load_starts_so_that_a_late_worker_does_not_look_finished(self) -> None:
        async def play() -> int:
            _, sender = open_loop([0, 10, 20, 30, 40], asyncio.get_running_loop(), cohort=(10 * MS, 40 * MS))
            return sender.owed

        assert asyncio.run(play()) == 3

    def test_members_of_the_cohort_are_marked(self) -> None:
        async def play() -> FakeSender:
            loop, sender = open_loop([0, 1, 2, 3], asyncio.get_running_loop(), cohort=(1 * MS, 3 * MS))
            loop.start(Anchor.now(), time.monotonic_ns())
            await until(lambda: loop.exhausted)
            return sender

        assert [call.cohort for call in asyncio.run(play()).sent] == [False, True, True, False]

    def test_what_is_long_overdue_when_the_load_ends_is_dropped_and_what_is_just_due_is_sent(self) -> None:
        async def play(late_ms: float) -> FakeSender:
            loop, sender = open_loop([0, 1, 50], asyncio.get_running_loop())
            loop.start(Anchor.now(), time.monotonic_ns() - round(late_ms * MS))
            loop.stop()  # before the event loop had a turn
            assert loop.exhausted
            return sender

        late = asyncio.run(play(30))
        assert ([c.row for c in late.sent], [c.row for c in late.dropped]) == ([], [0, 1])
        just = asyncio.run(play(3))
        assert ([c.row for c in just.sent], [c.row for c in just.dropped]) == ([0, 1], [])

    def test_stopped_before_it_was_started_it_records_nothing(self) -> None:
        async def play() -> FakeSender:
            loop, sender = open_loop([0, 1], asyncio.get_running_loop())
            loop.stop()
            return sender

        sender = asyncio.run(play())
        assert (sender.sent, sender.dropped) == ([], [])

    def test_waiting_calls_are_dropped_at_the_end_and_nothing_is_sent_after_it(self) -> None:
        async def play() -> FakeSender:
            loop, sender = open_loop([0, 0, 0, 1], asyncio.get_running_loop(), max_in_flight=1)
            loop.start(Anchor.now(), time.monotonic_ns())
            await until(lambda: loop._next == 4)
            loop.stop()
            sender.end()
            await asyncio.sleep(0.01)
            return sender

        sender = asyncio.run(play())
        assert ([c.row for c in sender.sent], [c.row for c in sender.dropped]) == ([0], [1, 2, 3])

    @given(
        steps=st.lists(st.sampled_from(["due", "due", "end", "turn"]), min_size=5, max_size=60),
        limit=st.sampled_from([None, 1, 2, 3]),
        drop=st.booleans(),
        throttled=st.booleans(),
        stop_late=st.booleans(),
    )
    def test_each_call_keeps_its_own_payload_and_every_row_is_accounted(
        self, steps: list[str], limit: int | None, drop: bool, throttled: bool, stop_late: bool
    ) -> None:
        async def play() -> tuple[FakeSender, int, int]:
            limits = {"max_in_flight": limit, "drop_when_full": drop, "throttle": (4, 0.001) if throttled else None}
            loop, sender = open_loop([0.0] * 60, asyncio.get_running_loop(), **limits)
            loop._zero = loop._zero_realtime = time.monotonic_ns() - (20 * MS if stop_late else 0)
            most = 0
            for step in steps:
                if step == "due":
                    loop._due(loop._next)
                    loop._next += 1
                elif step == "end" and sender.running:
                    sender.end(len(sender.running) // 2)
                elif step == "turn":
                    await asyncio.sleep(0)
                most = max(most, sender.in_flight)
            known = loop._next
            loop.stop()
            return sender, most, 60 if stop_late else known

        sender, most, known = asyncio.run(play())
        assert sender.wrong == []
        assert most <= (limit or 60)
        handled = sorted(call.row for call in sender.sent + sender.dropped)
        assert handled == list(range(len(handled)))
        assert len(handled) >= known


class TestClosedLoop:
    def test_slots_stay_full_until_the_rows_are_used_up(self) -> None:
        async def play() -> tuple[FakeSender, int]:
            loop, sender = closed_loop(20, asyncio.get_running_loop(), concurrency=4)
            loop.start(Anchor.now(), time.monotonic_ns())
            most = 0
            while len(sender.sent) < 20 or sender.running:
                most = max(most, sender.in_flight)
                if sender.running:
                    sender.end()
                await asyncio.sleep(0.001)
            assert loop.exhausted
            return sender, most

        sender, most = asyncio.run(play())
        assert most == 4
        assert [call.row for call in sender.sent] == list(range(20))
        assert sender.wrong == []
        assert {call.slot for call in sender.sent} == {0, 1, 2, 3}

    def test_no_slot_is_free_before_the_zero(self) -> None:
        async def play() -> FakeSender:
            loop, sender = closed_loop(3, asyncio.get_running_loop(), concurrency=3)
            anchor = Anchor.now()
            zero = anchor.monotonic_ns + 7 * MS
            loop.start(anchor, zero)
            await until(lambda: len(sender.sent) == 3)
            assert min(call.scheduled_ns for call in sender.sent) >= anchor.to_realtime(zero)
            return sender

        for call in asyncio.run(play()).sent:
            assert call.dispatched_ns is not None
            assert call.dispatched_ns >= call.scheduled_ns

    def test_a_slot_that_comes_free_after_the_end_sends_nothing(self) -> None:
        async def play() -> FakeSender:
            loop, sender = closed_loop(10, asyncio.get_running_loop(), concurrency=1)
            loop.start(Anchor.now(), time.monotonic_ns())
            await until(lambda: bool(sender.running))
            sender.end()  # its next call is queued
            loop.stop()
            await asyncio.sleep(0.01)
            return sender

        sender = asyncio.run(play())
        assert len(sender.sent) == 1
        assert sender.owed == 1

    def pauses(self, asked: list[float | None]) -> list[float]:
        """Seconds that one slot waits after each of its calls, of which `asked` says how they were refused."""

        async def play() -> list[float]:
            running = asyncio.get_running_loop()
            loop, sender = closed_loop(10, running, concurrency=1)
            waits: list[float] = []
            loop._loop = type("Clock", (), {"call_later": lambda self, wait, *more: waits.append(wait)})()  # type: ignore[assignment]
            loop._free = lambda slot: waits.append(0.0)  # type: ignore[method-assign]
            for one in asked:
                sender.pause = one
                loop._freed(Call(0, 0, slot=0))
            return waits

        return asyncio.run(play())

    def test_refusals_make_growing_pauses_up_to_a_second(self) -> None:
        assert self.pauses([0.0] * 7) == [0.05, 0.1, 0.2, 0.4, 0.8, LONGEST_PAUSE_S, LONGEST_PAUSE_S]

    def test_a_call_that_went_through_ends_them(self) -> None:
        assert self.pauses([0.0, 0.0, None, 0.0]) == [0.05, 0.1, 0.0, 0.05]

    def test_what_the_server_asks_for_is_waited_but_never_less_than_the_own_pause(self) -> None:
        assert self.pauses([2.0, 0.001, 0.0]) == [2.0, 0.1, 0.2]

    def test_no_server_can_ask_for_ever(self) -> None:
        assert self.pauses([1e20]) == [3600.0]

    def test_paused_slots_are_counted_while_they_wait(self) -> None:
        async def play() -> tuple[int, int, int]:
            loop, sender = closed_loop(10, asyncio.get_running_loop(), concurrency=1)
            loop.start(Anchor.now(), time.monotonic_ns())
            await until(lambda: bool(sender.running))
            sender.pause = 0.0
            sender.end()
            waiting = loop.paused
            await until(lambda: bool(sender.running))
            return waiting, loop.paused, loop.pauses

        assert asyncio.run(play()) == (1, 0, 1)


class TestGate:
    def test_no_more_than_the_limit_passes_in_any_period(self) -> None:
        async def play() -> list[float]:
            passed: list[float] = []
            gate = Gate((5, 0.3), lambda: passed.append(time.monotonic()), asyncio.get_running_loop())
            for _ in range(12):
                gate.ask()
            await until(lambda: len(passed) == 12)
            gate.close()
            return passed

        passed = asyncio.run(play())
        assert all(passed[at + 5] - passed[at] >= 0.299 for at in range(7))
        assert passed[4] - passed[0] < 0.2

    def test_closed_it_lets_nothing_through(self) -> None:
        async def play() -> list[int]:
            passed: list[int] = []
            gate = Gate((5, 0.1), lambda: passed.append(1), asyncio.get_running_loop())
            gate.ask()
            gate.close()
            await asyncio.sleep(0.02)
            return passed

        assert asyncio.run(play()) == []


class TestSlices:
    def test_urgent_work_goes_first(self) -> None:
        async def play() -> list[str]:
            order: list[str] = []
            slices = Slices(asyncio.get_running_loop())
            slices.later(lambda: order.append("decode 1"))
            slices.later(lambda: order.append("decode 2"))
            slices.urgent(lambda: order.append("send"))
            assert slices.backlog == 3
            await asyncio.sleep(0)
            return order

        assert asyncio.run(play()) == ["send", "decode 1", "decode 2"]

    def test_a_slice_ends_when_its_time_is_up_so_that_the_sockets_get_their_turn(self) -> None:
        async def play() -> list[int]:
            turns: list[int] = []
            turn = 0
            slices = Slices(asyncio.get_running_loop())

            def work() -> None:
                turns.append(turn)
                end = time.perf_counter_ns() + 400_000
                while time.perf_counter_ns() < end:
                    pass

            for _ in range(6):
                slices.later(work)
            while len(turns) < 6:
                await asyncio.sleep(0)
                turn += 1
            return turns

        turns = asyncio.run(play())
        assert max(turns.count(turn) for turn in turns) <= 2
        assert len(set(turns)) >= 3

    def test_idle_work_is_done_until_there_is_none(self) -> None:
        async def play() -> int:
            left = 5

            def idle() -> bool:
                nonlocal left
                left -= 1
                return left > 0

            slices = Slices(asyncio.get_running_loop(), idle)
            slices.wake()
            await asyncio.sleep(0.01)
            return left

        assert asyncio.run(play()) == 0

    def test_flush_runs_what_waits_and_what_that_adds(self) -> None:
        async def play() -> list[int]:
            done: list[int] = []
            slices = Slices(asyncio.get_running_loop())
            slices.later(lambda: slices.urgent(lambda: done.append(2)))
            slices.later(lambda: done.append(1))
            slices.flush()
            return done

        assert asyncio.run(play()) == [2, 1]


@pytest.mark.parametrize(("total", "workers"), [(10, 3), (3, 3), (1, 4), (0, 2), (64, 1)])
def test_shares_add_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    parts = [share(total, worker, workers) for worker in range(workers)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1
