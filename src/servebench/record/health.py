"""What a worker process costs: processor time, memory, descriptors, switches; cheap enough to ask often."""

from __future__ import annotations

import gc
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Health:
    """One sample of this process; None where the system does not tell.

    Attributes:
        monotonic_ns: CLOCK_MONOTONIC of the sample.
        cpu_ns: processor time of all threads since the process began, user and system.
        rss_bytes: resident memory now.
        max_rss_bytes: the most it ever was.
        fds: open file descriptors.
        voluntary_switches, involuntary_switches: how often it waited, and how often it was made to.
        gc_collections: runs of the cyclic collector, of all generations.
    """

    monotonic_ns: int
    cpu_ns: int
    rss_bytes: int | None
    max_rss_bytes: int
    fds: int | None
    voluntary_switches: int
    involuntary_switches: int
    gc_collections: int

    def cpu_share_since(self, earlier: Health) -> float | None:
        """Share of one core that was used since `earlier`; None when no time has passed."""
        elapsed = self.monotonic_ns - earlier.monotonic_ns
        return (self.cpu_ns - earlier.cpu_ns) / elapsed if elapsed > 0 else None


class ProcessHealth:
    """Samples the process that it lives in; a sample takes some ten microseconds on Linux."""

    def __init__(self) -> None:
        self._statm = _open(_PROC / "statm")
        self._page = resource.getpagesize()
        self._maxrss_unit = 1024 if _PROC.exists() else 1  # Linux counts in KiB, macOS in bytes

    def sample(self) -> Health:
        """Take one sample."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Health(
            monotonic_ns=time.monotonic_ns(),
            cpu_ns=time.process_time_ns(),
            rss_bytes=self._rss(),
            max_rss_bytes=usage.ru_maxrss * self._maxrss_unit,
            fds=_count_fds(),
            voluntary_switches=usage.ru_nvcsw,
            involuntary_switches=usage.ru_nivcsw,
            gc_collections=sum(generation["collections"] for generation in gc.get_stats()),
        )

    def _rss(self) -> int | None:
        if self._statm is None:
            return None
        return int(os.pread(self._statm, 128, 0).split()[1]) * self._page

    def close(self) -> None:
        """Let the descriptor go; a second call does nothing."""
        statm, self._statm = self._statm, None
        if statm is not None:
            os.close(statm)


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _count_fds() -> int | None:
    """Number of open descriptors.

    Since Linux 6.2 it is the size of /proc/self/fd, which spares the listing of thousands.
    """
    for directory in (_PROC / "fd", Path("/dev/fd")):
        try:
            return directory.stat().st_size or sum(1 for _ in directory.iterdir()) - 1  # less the one that lists
        except OSError:
            continue
    return None
