"""The engine in real time, on a clock and an alarm of the test's own: deadlines, lateness, overruns."""

from __future__ import annotations

import asyncio
import time

import pytest

from servebench.alarm import HybridAlarm, TimerfdAlarm
from servebench.engine.sim.engine import LiveEngine
from servebench.engine.sim.request import Finish, Request
from servebench.engine.sim.settings import SimSettings

STEP = 0.010
CONSTANT = SimSettings(base=STEP, per_prefill_token=0, per_sequence=0, per_context_token=0)


class Script:
    """A clock that the test moves, and the alarm that goes with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.set_to: list[float] = []
        monkeypatch.setattr("servebench.engine.sim.engine.make_alarm", self._make)

    def _make(self, loop: object, ring: object) -> Script:
        self._ring = ring
        return self

    def at(self, monotonic_ns: int) -> None:
        self.set_to.append(monotonic_ns / 1e9)

    def close(self) -> None:
        self.set_to.clear()

    def ring(self, late: float = 0.0) -> None:
        self.now = self.set_to[-1] + late
        self._ring()

    def read(self) -> float:
        return self.now


class Heard:
    def __init__(self) -> None:
        self.finishes: list[Finish | None] = []

    def token(self, token: int, finish: Finish | None) -> None:
        self.finishes.append(finish)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch)


@pytest.fixture
def engine(script: Script) -> LiveEngine:
    return LiveEngine(CONSTANT, None, script.read)  # type: ignore[arg-type]


def test_steps_count_from_deadlines_so_that_lateness_does_not_add_up(script: Script, engine: LiveEngine):
    engine.submit(Request([1], 4))
    for _ in range(3):
        script.ring(late=0.002)
    assert script.set_to == pytest.approx([100.01, 100.02, 100.03, 100.04])
    assert engine.late == pytest.approx(0.006)
    assert engine.overrun == 0


def test_a_step_overslept_by_more_than_a_step_is_not_caught_up(script: Script, engine: LiveEngine):
    engine.submit(Request([1], 4))
    script.ring(late=0.055)
    assert script.set_to[-1] == pytest.approx(100.065 + STEP)
    assert engine.overrun == pytest.approx(0.055)


def test_an_idle_engine_sleeps_and_starts_at_the_next_arrival(script: Script, engine: LiveEngine):
    engine.submit(Request([1], 1))
    script.ring()
    assert len(script.set_to) == 1
    script.now = 107.5
    engine.submit(Request([2], 1))
    assert script.set_to[-1] == pytest.approx(107.5 + STEP)


def test_an_arrival_in_mid_step_waits_for_the_next(script: Script, engine: LiveEngine):
    first, second = Heard(), Heard()
    engine.submit(Request([1], 3, first))
    script.now += STEP / 2
    engine.submit(Request([2], 3, second))
    script.ring()
    assert (len(first.finishes), len(second.finishes)) == (1, 0)
    script.ring()
    assert (len(first.finishes), len(second.finishes)) == (2, 1)


def test_a_listener_that_asks_again_at_once_does_not_start_a_second_step(script: Script, engine: LiveEngine):
    class Insistent(Heard):
        def token(self, token: int, finish: Finish | None) -> None:
            super().token(token, finish)
            if len(self.finishes) == 1:
                engine.submit(Request([2], 1, Heard()))

    engine.submit(Request([1], 1, Insistent()))
    script.ring()
    assert len(script.set_to) == 2
    script.ring()
    assert not engine.core.busy


def test_an_aborted_request_hears_no_more(script: Script, engine: LiveEngine):
    heard = Heard()
    request = Request([1], 5, heard)
    engine.submit(request)
    script.ring()
    engine.abort(request)
    script.ring()
    assert heard.finishes == [None]
    assert engine.core.metrics.finished_by[Finish.ABORT] == 1
    assert not engine.core.busy


@pytest.mark.parametrize("kind", [TimerfdAlarm, HybridAlarm])
def test_an_alarm_rings_once_and_not_early(kind: type[TimerfdAlarm] | type[HybridAlarm]):
    async def ring_at(delay: float) -> list[float]:
        rings: list[float] = []
        alarm = kind(asyncio.get_running_loop(), lambda: rings.append(time.monotonic()))
        start = time.monotonic()
        alarm.at(round((start + 5) * 1e9))
        alarm.at(round((start + delay) * 1e9))  # replaces the first
        await asyncio.sleep(0.1)
        alarm.close()
        return [at - start for at in rings]

    for delay in (0.02, -1.0):
        [rung] = asyncio.run(ring_at(delay))
        assert rung >= max(delay, 0) - 1e-6
