"""Where a trace's instants count from: it depends on the version of torch, and only sometimes is it written down."""

from __future__ import annotations

import time
from dataclasses import dataclass

from servebench.profile.timeline import Alignment

SECOND = 1_000_000_000
EARLIEST = 1_262_304_000 * SECOND  # 2010: a machine that has run for 40 years is less likely
LATEST = 4_102_444_800 * SECOND  # 2100
WRITTEN_WITHIN = 900 * SECOND  # after the capture: a large trace takes minutes
EARLY = 5 * SECOND  # a file's date may be coarse
BOOTED = 60 * SECOND  # no server works so early; a trace that begins so early counts from its own begin

UNKNOWN = "nothing says what its instants count from: they cannot be joined to a run"


@dataclass(frozen=True, slots=True)
class Origin:
    """What brings instants onto CLOCK_REALTIME: ns to add to them, and how it was found; no alignment if it was not."""

    offset_ns: int
    alignment: Alignment | None


def find_origin(first_ns: int, last_ns: int, base_ns: int | None, written_ns: int) -> Origin:
    """Find out what the instants count from.

    Args:
        first_ns, last_ns: of the trace, as it has them.
        base_ns: `baseTimeNanoseconds` of the file.
        written_ns: CLOCK_REALTIME when the file was last written.
    """
    if _plausible(first_ns) and _plausible(last_ns):
        return Origin(0, _stated("the file's instants count from 1970"))
    if base_ns is not None and _plausible(base_ns + first_ns) and _plausible(base_ns + last_ns):
        return Origin(base_ns, _stated("the file's instants, counted from the base that it states"))
    offset = _since_boot(last_ns, written_ns) if first_ns > BOOTED else None
    return Origin(0, None) if offset is None else Origin(offset, _booted())


def _since_boot(last_ns: int, written_ns: int) -> int | None:
    """The offset of this machine's clock whose end of the capture fits to the file's date; None if neither's does."""
    for clock in (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME):
        offset = time.time_ns() - time.clock_gettime_ns(clock)
        if -EARLY <= written_ns - (offset + last_ns) <= WRITTEN_WITHIN:
            return offset
    return None


def _plausible(instant: int) -> bool:
    return EARLIEST <= instant <= LATEST


def _stated(method: str) -> Alignment:
    return Alignment(method, reason="the file does not say how exact its clock is")


def _booted() -> Alignment:
    method = "the file's instants count from this machine's start, as its date confirms"
    return Alignment(method, reason="the wall clock may have been adjusted since the capture")
