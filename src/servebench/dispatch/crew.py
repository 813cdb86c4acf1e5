"""The worker processes as the parent sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from servebench.errors import ExitCode, ServebenchError, UsageError

if TYPE_CHECKING:
    from servebench.dispatch.job import Job
    from servebench.record.counters import LiveCounters

READY_LIMIT_S = 60.0
END_LIMIT_S = 30.0  # for a worker that was told to stop: it gives up what is in flight and saves


class WorkerError(ServebenchError):
    """The workers could not start."""


class Crew:
    """Worker processes, started early so that their imports overlap with the parent's and with the making of the plan.

    This module imports next to nothing itself, for the same reason.

    Args:
        size: how many processes.
    """

    def __init__(self, size: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self.recruit(size)

    def recruit(self, size: int) -> None:
        """Start processes until there are `size`."""
        while len(self._processes) < size:
            log = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the crew
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "servebench.dispatch.worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C in the terminal reaches the parent alone
            )
            self._processes.append(process)
            self._logs.append(log)

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def pids(self) -> list[int]:
        """Process ids, by worker."""
        return [process.pid for process in self._processes]

    def brief(self, jobs: Sequence[Job], directory: Path) -> None:
        """Hand each process its job; `wait_ready` tells of one that has died meanwhile."""
        for process, job in zip(self._processes, jobs, strict=True):
            path = directory / f"worker-{job.worker}.job.json"
            job.write(path)
            assert process.stdin is not None
            try:
                with process.stdin:
                    process.stdin.write(f"{os.getpid()} {path}\n".encode())
            except BrokenPipeError:
                continue

    def wait_ready(self, counters: LiveCounters) -> None:
        """Return when every worker has its first requests ready.

        Raises:
            UsageError: one cannot do what it was asked for, such as load a tokenizer.
            WorkerError: one died or took too long; with its last words.
        """
        from servebench.record.counters import State

        deadline = time.monotonic() + READY_LIMIT_S
        while any(state < State.READY for state in counters.snapshot().states):
            for number, process in enumerate(self._processes):
                if process.poll() == ExitCode.USAGE:
                    raise UsageError(self.last_words(number))
                if process.poll() is not None:
                    raise WorkerError(f"worker {number} ended at its start: {self.last_words(number)}")
            if time.monotonic() > deadline:
                raise WorkerError(f"the workers were not ready within {READY_LIMIT_S:g} s")
            time.sleep(0.002)

    def last_words(self, number: int) -> str:
        """The last line that a worker wrote to its error output."""
        lines = self.log(number).strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def log(self, number: int) -> str:
        """All that a worker wrote to its error output."""
        log = self._logs[number]
        log.seek(0)
        return log.read().decode("utf-8", "replace")

    def dead(self, counters: LiveCounters) -> list[int]:
        """Workers whose process has ended without having said that it was done."""
        from servebench.record.counters import State

        states = counters.snapshot().states
        return [n for n, p in enumerate(self._processes) if p.poll() is not None and states[n] != State.DONE]

    def all_ended(self) -> bool:
        """Whether every process has ended."""
        return all(process.poll() is not None for process in self._processes)

    def kill(self) -> None:
        """Kill whatever still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()  # they hold nothing that the journal does not
            process.wait()
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()  # nothing was written: there is nothing to flush into a broken pipe

    def figures(self, directory: Path) -> list[dict[str, Any]]:
        """What each worker said of itself at its end; a worker that died left nothing, which is said."""
        return [self._figure(number, directory / f"worker-{number}.json") for number in range(len(self._processes))]

    def _figure(self, number: int, path: Path) -> dict[str, Any]:
        if path.exists():
            figures: dict[str, Any] = json.loads(path.read_text())
            return figures
        status = self._processes[number].poll()
        return {"worker": number, "pid": self._processes[number].pid, "exit": "died", "status": status}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for log in self._logs:
            log.close()
