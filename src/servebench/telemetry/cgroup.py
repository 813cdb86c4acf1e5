"""Limits that a control group puts on this process: less processor or memory than the machine has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from servebench.telemetry.files import Absent, find, text

_UNLIMITED = 1 << 60  # version 1 says "no limit" with a number close to 2^63


class Cgroup:
    """The control groups of this process; each value raises Absent where there is none.

    A group is held by the limits of all groups above it too, so the least one counts. Inside a container the path in
    /proc/self/cgroup may be the host's and lead nowhere; then the mount's own top is the container's group.

    Args:
        root: where /proc and /sys hang.
    """

    def __init__(self, root: Path) -> None:
        self._membership = root / "proc/self/cgroup"
        self._mount = root / "sys/fs/cgroup"

    @property
    def version(self) -> int:
        """1 or 2."""
        text(self._membership)
        return 2 if (self._mount / "cgroup.controllers").exists() else 1

    @property
    def cpu_cores(self) -> float:
        """Processor time per time, in cores."""
        if self.version == 2:
            pairs = [value.split() for value in self._values("", "cpu.max")]
            limits = [int(quota) / int(period) for quota, period in pairs if quota != "max"]
        else:
            groups = zip(self._values("cpu", "cpu.cfs_quota_us"), self._values("cpu", "cpu.cfs_period_us"), strict=True)
            limits = [int(quota) / int(period) for quota, period in groups if int(quota) > 0]
        return _least(limits)

    @property
    def memory_bytes(self) -> int:
        """Memory, without swap."""
        if self.version == 2:
            limits = [int(value) for value in self._values("", "memory.max") if value != "max"]
        else:
            values = (int(value) for value in self._values("memory", "memory.limit_in_bytes"))
            limits = [value for value in values if value < _UNLIMITED]
        return int(_least(limits))

    def _values(self, controller: str, name: str) -> Iterator[str]:
        """The file `name` of this process's group and of each one above it, where they have it."""
        top = self._mount / controller
        group = find(rf"^\d+:(?:[^:]*,)?{controller}(?:,[^:]*)?:(/.*)$", self._membership)
        place = top / group.lstrip("/")
        for directory in (place, *place.parents):
            if (directory / name).exists():
                yield text(directory / name)
            if directory == top:
                return


def _least(limits: list[int] | list[float]) -> float:
    if not limits:
        raise Absent("no limit is set")
    return min(limits)
