"""The kernel timer: it expires on time, once, and as last set."""

from __future__ import annotations

import os
import select
import statistics
import time
from unittest import mock

import pytest

from servebench.timerfd import TimerFd, _libc

MS = 1_000_000


def wait(timer: TimerFd, seconds: float = 2.0) -> int | None:
    """CLOCK_MONOTONIC when the timer's descriptor is readable; None if it is not within `seconds`."""
    ready, _, _ = select.select([timer.fd], [], [], seconds)
    return time.monotonic_ns() if ready else None


def expired(timer: TimerFd) -> bool:
    return bool(select.select([timer.fd], [], [], 0)[0])


@pytest.mark.parametrize("how", ["at", "after"])
def test_it_never_expires_early_and_is_mostly_prompt(how: str) -> None:
    late = []
    with TimerFd() as timer:
        for delay in (0.1, 1, 3, 0.5, 2) * 4:
            due = time.monotonic_ns() + int(delay * MS)
            if how == "at":
                timer.at(due)
            else:
                timer.after(int(delay * MS))
            when = wait(timer)
            assert when is not None
            assert when >= due
            late.append(when - due)
            timer.clear()
    assert statistics.quantiles(late, n=4)[0] < 1 * MS  # a loop's own timers are 0.6 to 1.8 ms late


@pytest.mark.parametrize("instant", [-5, 0, 1])
def test_an_instant_that_has_passed_expires_at_once(instant: int) -> None:
    with TimerFd() as timer:
        timer.at(instant)
        assert wait(timer, 0.5) is not None
        timer.clear()
        timer.after(instant)
        assert wait(timer, 0.5) is not None


def test_it_is_one_shot_and_stays_readable_until_it_is_cleared() -> None:
    with TimerFd() as timer:
        timer.after(1)
        assert wait(timer) is not None
        assert expired(timer)
        timer.clear()
        assert not expired(timer)
        assert wait(timer, 0.02) is None


def test_the_last_setting_counts() -> None:
    with TimerFd() as timer:
        timer.after(1 * MS)
        timer.after(3_600_000 * MS)
        assert wait(timer, 0.02) is None
        timer.at(time.monotonic_ns() + 1 * MS)
        assert wait(timer) is not None


def test_setting_anew_takes_an_expiry_back() -> None:
    with TimerFd() as timer:
        timer.after(1)
        assert wait(timer) is not None
        timer.after(3_600_000 * MS)
        assert not expired(timer)


def test_instants_beyond_32_bits() -> None:
    with TimerFd() as timer:
        timer.at(2**62)
        assert wait(timer, 0.01) is None
        timer.after(5_000_000_000)
        assert wait(timer, 0.01) is None


def test_clearing_what_has_not_expired_does_nothing() -> None:
    with TimerFd() as timer:
        timer.clear()
        timer.after(2 * MS)
        timer.clear()
        assert wait(timer) is not None


def test_the_descriptor_is_freed_once() -> None:
    timer = TimerFd()
    fd = timer.fd
    assert not os.get_inheritable(fd)
    timer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    other = os.open("/dev/null", os.O_RDONLY)
    timer.close()
    os.close(other)  # fails if the second close took it
    assert timer.fd == -1


def test_a_system_without_timers_says_so() -> None:
    with mock.patch("servebench.timerfd._libc", object()), pytest.raises(OSError, match="no timerfd"):
        TimerFd()


def test_a_timer_that_cannot_be_had_says_so() -> None:
    with mock.patch.object(_libc, "timerfd_create", lambda *_: -1), pytest.raises(OSError, match="timerfd_create"):
        TimerFd()
