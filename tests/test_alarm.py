from __future__ import annotations

import asyncio
import time

import pytest

from servebench.alarm import HybridAlarm, TimerfdAlarm, make_alarm


async def _rings(kind: type[TimerfdAlarm] | type[HybridAlarm], after_ns: int) -> list[int]:
    rings: list[int] = []
    alarm = kind(asyncio.get_running_loop(), lambda: rings.append(time.monotonic_ns()))
    start = time.monotonic_ns()
    alarm.at(start + 5_000_000_000)
    alarm.at(start + after_ns)  # replaces the first
    await asyncio.sleep(0.1)
    alarm.close()
    return [at - start for at in rings]


@pytest.mark.parametrize("kind", [TimerfdAlarm, HybridAlarm])
@pytest.mark.parametrize("after_ns", [20_000_000, -1_000_000_000])
def test_it_rings_once_and_never_early(kind: type[TimerfdAlarm] | type[HybridAlarm], after_ns: int) -> None:
    [rung] = asyncio.run(_rings(kind, after_ns))
    assert rung >= max(after_ns, 0)


@pytest.mark.parametrize("kind", [TimerfdAlarm, HybridAlarm])
def test_a_closed_alarm_is_silent(kind: type[TimerfdAlarm] | type[HybridAlarm]) -> None:
    async def body() -> list[int]:
        rings: list[int] = []
        alarm = kind(asyncio.get_running_loop(), lambda: rings.append(1))
        alarm.at(time.monotonic_ns() + 10_000_000)
        alarm.close()
        await asyncio.sleep(0.05)
        return rings

    assert asyncio.run(body()) == []


def test_linux_has_the_punctual_one() -> None:
    async def body() -> str:
        alarm = make_alarm(asyncio.get_running_loop(), lambda: None)
        alarm.close()
        return type(alarm).__name__

    assert asyncio.run(body()) == "TimerfdAlarm"
