"""What the conductor decides from clock, counters and signals, with workers that only pretend."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from servebench.dispatch import conductor
from servebench.dispatch.conductor import Course, Interrupts, conduct
from servebench.record.counters import Command, LiveCounters, Slot, State

MS = 1_000_000


class Pretenders:
    """A crew whose workers follow a script: what to do on each look at them."""

    def __init__(self, counters: LiveCounters, act: Callable[[Pretenders, float], None]) -> None:
        self.counters = counters
        self.workers = [counters.worker(number) for number in range(counters.workers)]
        self._act = act
        self._began = time.monotonic()
        self.ended = [False] * counters.workers
        self.killed = False

    def all_ended(self) -> bool:
        self._act(self, time.monotonic() - self._began)
        return all(self.ended)

    def dead(self, counters: LiveCounters) -> list[int]:
        states = counters.snapshot().states
        return [n for n, ended in enumerate(self.ended) if ended and states[n] != State.DONE]

    def kill(self) -> None:
        self.killed = True
        self.ended = [True] * len(self.ended)

    def done(self, number: int = 0) -> None:
        self.workers[number].state(State.DONE)
        self.ended[number] = True

    @property
    def command(self) -> Command:
        return self.workers[0].command


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Course, Pretenders]]]:
    made: list[LiveCounters] = []
    monkeypatch.setattr(conductor, "END_LIMIT_S", 0.2)

    def play(
        act: Callable[[Pretenders, float], None],
        window_ms: tuple[int, int | None] = (0, None),
        drain: float = 5.0,
        workers: int = 1,
        interrupts: Interrupts | None = None,
    ) -> tuple[Course, Pretenders]:
        counters = LiveCounters.create(workers)
        made.append(counters)
        crew = Pretenders(counters, act)
        for worker in crew.workers:
            worker.state(State.RUNNING)
        window = window_ms[0] * MS, None if window_ms[1] is None else window_ms[1] * MS
        course = conduct(crew, counters, window, drain, interrupts or Interrupts())  # type: ignore[arg-type]
        return course, crew

    yield play
    for counters in made:
        counters.unlink()


Play = Callable[..., tuple[Course, Pretenders]]


def obedient(crew: Pretenders, seconds: float) -> None:
    if crew.command >= Command.DRAIN:
        crew.done()


def test_a_run_by_count_ends_when_its_workers_do(play: Play) -> None:
    def act(crew: Pretenders, seconds: float) -> None:
        if seconds > 0.1:
            crew.workers[0].state(State.DRAINING)
        if seconds > 0.2:
            crew.done()

    course, crew = play(act)
    assert crew.command == Command.RUN
    assert course.start_ns is not None and course.load_end_ns is not None and course.end_ns is not None
    assert 50 * MS < course.load_end_ns - course.start_ns < course.end_ns - course.start_ns
    assert (course.measured_end_ns, course.interrupted, course.overran) == (None, False, False)
    assert len(course.anchors) >= 3


def test_load_goes_on_after_the_window_until_the_cohort_is_done(play: Play) -> None:
    def act(crew: Pretenders, seconds: float) -> None:
        crew.workers[0].set(Slot.COHORT_OPEN, 0 if seconds > 0.4 else 3)
        obedient(crew, seconds)

    course, crew = play(act, (50, 150))
    assert course.start_ns is not None and course.load_end_ns is not None
    assert course.warmup_end_ns == course.start_ns + 50 * MS
    assert course.measured_end_ns == course.start_ns + 150 * MS
    assert 370 * MS < course.load_end_ns - course.start_ns < 3000 * MS
    assert not course.overran


def test_the_cohort_of_a_dead_worker_is_not_waited_for(play: Play) -> None:
    def act(crew: Pretenders, seconds: float) -> None:
        crew.workers[1].set(Slot.COHORT_OPEN, 5)
        crew.ended[1] = True
        obedient(crew, seconds)

    started = time.monotonic()
    play(act, (0, 100), workers=2)
    assert time.monotonic() - started < 4  # and not the five seconds of the drain


def test_the_drain_limit_ends_the_load_and_the_waiting(play: Play) -> None:
    def act(crew: Pretenders, seconds: float) -> None:
        crew.workers[0].set(Slot.COHORT_OPEN, 1)
        crew.workers[0].set(Slot.IN_FLIGHT, 1)
        if crew.command >= Command.STOP:
            crew.done()

    course, _ = play(act, (0, 100), drain=0.2)
    assert course.overran
    assert course.end_ns is not None and course.measured_end_ns is not None
    assert 190 * MS < course.end_ns - course.measured_end_ns < 3000 * MS


def test_a_run_by_count_has_its_drain_from_the_last_request_on(play: Play) -> None:
    def act(crew: Pretenders, seconds: float) -> None:
        crew.workers[0].set(Slot.IN_FLIGHT, 1)
        if seconds > 0.2:
            crew.workers[0].state(State.DRAINING)
        if crew.command >= Command.STOP:
            crew.done()

    course, _ = play(act, drain=0.2)
    assert course.overran
    assert course.end_ns is not None and course.load_end_ns is not None
    assert 190 * MS < course.end_ns - course.load_end_ns < 3000 * MS


def at(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def raise_signal(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_ends_the_sending_only(number: int, play: Play) -> None:
    seen: list[Command] = []

    def act(crew: Pretenders, seconds: float) -> None:
        seen.append(crew.command)
        if crew.command >= Command.DRAIN and seen.count(Command.DRAIN) > 5:
            crew.done()

    with Interrupts() as interrupts:
        at(0.1, lambda: raise_signal(number))
        course, _ = play(act, (0, 60_000), interrupts=interrupts)
    assert course.interrupted
    assert Command.STOP not in seen


def test_a_second_signal_ends_the_waiting(play: Play) -> None:
    def act(crew: Pretenders, seconds: float) -> None:
        if crew.command >= Command.STOP:
            crew.done()

    with Interrupts() as interrupts:
        at(0.1, raise_signal)
        at(0.3, raise_signal)
        course, crew = play(act, (0, 60_000), interrupts=interrupts)
    assert course.interrupted
    assert not crew.killed
    assert not course.overran  # it was cut short, which is another thing


def test_workers_that_do_not_end_are_killed_after_a_while(play: Play) -> None:
    course, crew = play(lambda crew, seconds: None, (0, 50), drain=0.05)
    assert crew.killed
    assert course.end_ns is not None and course.measured_end_ns is not None
    assert course.end_ns - course.measured_end_ns > 200 * MS


def test_a_third_signal_does_not_wait_for_that(monkeypatch: pytest.MonkeyPatch, play: Play) -> None:
    monkeypatch.setattr(conductor, "END_LIMIT_S", 60.0)
    with Interrupts() as interrupts:
        for seconds in (0.1, 0.2, 0.3):
            at(seconds, raise_signal)
        _, crew = play(lambda crew, seconds: None, interrupts=interrupts)
    assert crew.killed


def test_interrupted_before_it_began_it_ends_before_the_zero_and_says_so_without_contradiction(play: Play) -> None:
    with Interrupts() as interrupts:
        raise_signal()
        course, crew = play(obedient, (0, 60_000), interrupts=interrupts)
    assert course.interrupted
    assert course.start_ns is not None
    assert course.load_end_ns == course.start_ns


class TestInterrupts:
    def test_the_handlers_of_before_come_back(self) -> None:
        before: Any = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with Interrupts() as interrupts:
            raise_signal()
            assert interrupts.count == 1
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

    def test_where_nothing_is_lost_they_raise_once_and_are_counted_after_that(self) -> None:
        with Interrupts() as interrupts:
            with pytest.raises(KeyboardInterrupt), interrupts.raising():
                try:
                    raise_signal(signal.SIGTERM)
                finally:
                    raise_signal()
            assert interrupts.count == 2

    def test_one_that_came_before_raises_as_soon_as_it_may(self) -> None:
        with Interrupts() as interrupts:
            raise_signal()
            with pytest.raises(KeyboardInterrupt), interrupts.raising():
                pytest.fail("not reached")

    def test_in_another_thread_signals_stay_with_the_main_one(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        seen: list[int] = []

        def work() -> None:
            with Interrupts() as interrupts, interrupts.raising():
                seen.append(interrupts.count)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [0]
        assert signal.getsignal(signal.SIGINT) == before
