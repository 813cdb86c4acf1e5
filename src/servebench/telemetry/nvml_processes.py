"""Who uses a GPU: the server under test, somebody else, or a process whose number means nothing here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from servebench.telemetry.nvml_fields import Query

HIDDEN_BYTES = 1 << 30  # more memory than this in use, and no process: the driver does not show them
DEEPEST = 32


class Whose(StrEnum):
    """Whose a process is."""

    SERVER = "server"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


class Ancestry(NamedTuple):
    """Of a process, from /proc/PID/stat."""

    parent: int
    session: int


class Owners:
    """Tells the server's processes from others.

    A process is the server's if it is one of `server_pids`, descends from one, or is in the session that one leads
    (orphans have lost their parents). NVML may number processes as another pid namespace does: until one of its numbers
    was found to be the server's, a number that does not exist here is unknown rather than foreign.

    Args:
        server_pids: the server's processes; empty if they are not known, and then nobody's is.
        proc: where the process files hang.
    """

    def __init__(self, server_pids: Collection[int], proc: Path = Path("/proc")) -> None:
        self.known = bool(server_pids)
        self.found = False
        self._roots = frozenset(server_pids)
        self._ours = set(server_pids)
        self._proc = proc
        self._sessions = {pid for pid in server_pids if (mine := self._ancestry(pid)) and mine.session == pid}

    def judge(self, pids: Sequence[int]) -> dict[int, Whose]:
        """Say whose each of the processes is that use one GPU."""
        ours = {pid for pid in pids if self.known and self._is_ours(pid)}
        self.found |= bool(ours)
        return {pid: Whose.SERVER if pid in ours else self._stranger(pid) for pid in pids}

    def _stranger(self, pid: int) -> Whose:
        sure = self.found or (self._proc / str(pid)).exists()
        return Whose.FOREIGN if self.known and sure else Whose.UNKNOWN

    def _is_ours(self, pid: int) -> bool:
        if pid not in self._ours and self._descends(pid):
            self._ours.add(pid)
        return pid in self._ours

    def _descends(self, pid: int) -> bool:
        return any(kin.parent in self._roots or kin.session in self._sessions for kin in self._line(pid))

    def _line(self, pid: int) -> Iterator[Ancestry]:
        for _ in range(DEEPEST):
            ancestry = self._ancestry(pid)
            if ancestry is None:
                return
            yield ancestry
            pid = ancestry.parent

    def _ancestry(self, pid: int) -> Ancestry | None:
        try:
            stat = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        fields = stat[stat.rfind(b")") + 1 :].split()  # the name before it may hold anything
        return Ancestry(int(fields[1]), int(fields[3])) if len(fields) > 3 else None


class Residents:
    """The processes of one GPU, as they were seen so far.

    Args:
        owners: shared by all GPUs.
        others: whether there are other GPUs that the server could be using.
    """

    names = ("processes", "foreign_processes")

    def __init__(self, owners: Owners, others: bool) -> None:
        self._owners = owners
        self._others = others
        self._seen: dict[int, tuple[Whose, int | None]] = {}
        self._hidden = False
        self._readable = False

    @property
    def query(self) -> Query:
        """What NVML is asked once a second."""
        return Query(self.names, self._ask)

    def _ask(self, handle: Any) -> tuple[float | None, float | None]:
        memory: dict[int, int | None] = {}
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) + _graphics(handle):
            memory[process.pid] = process.usedGpuMemory
        self._readable = True
        if not memory and _used(handle) > HIDDEN_BYTES:
            self._hidden = True
            return None, None
        whose = self._owners.judge(list(memory))
        for pid, owner in whose.items():
            self._seen[pid] = owner, _largest(memory[pid], self._seen.get(pid, (owner, None))[1])
        return float(len(memory)), self._foreign(whose)

    @staticmethod
    def _foreign(whose: dict[int, Whose]) -> float | None:
        owners = list(whose.values())
        return None if Whose.UNKNOWN in owners else float(owners.count(Whose.FOREIGN))

    def facts(self) -> dict[str, Any]:
        """Which processes were seen, and whether the server uses this GPU, with the reason for that answer."""
        uses, reason = self._server_uses()
        return {
            "server_uses": uses,
            "server_uses_reason": reason,
            "foreign_reason": self._foreign_reason(),
            "seen_processes": [
                {"pid": pid, "whose": str(owner), "memory_bytes": memory}
                for pid, (owner, memory) in sorted(self._seen.items())
            ],
        }

    def _server_uses(self) -> tuple[bool | None, str]:
        owners = {owner for owner, _ in self._seen.values()}
        if Whose.SERVER in owners:
            return True, "a process of the server has memory on it"
        if not self._readable:
            return None, "the driver does not list the processes"
        if not self._owners.known:
            return None, "the server's processes are not known"
        if self._hidden or Whose.UNKNOWN in owners:
            only = "its memory is in use, it is the only GPU, and the processes on it have no numbers here"
            return (None, "the processes on it have no numbers here") if self._others else (True, only)
        return False, "no process of the server has memory on it"

    def _foreign_reason(self) -> str | None:
        """Why foreign processes cannot be counted, at times at least."""
        if not self._owners.known:
            return "the server's processes are not known"
        if self._hidden:
            return "memory is in use, and the driver lists no process (a container hides them)"
        if any(owner is Whose.UNKNOWN for owner, _ in self._seen.values()):
            return "the driver's process numbers mean nothing here (another pid namespace)"
        return None


def _graphics(handle: Any) -> list[Any]:
    try:
        return list(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    except pynvml.NVMLError:
        return []  # a GPU for computing alone


def _used(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _largest(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if known else None
