"""The sampler process as the parent sees it: started early, never able to stop a run."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from servebench.telemetry.job import SamplerJob

STOP_LIMIT_S = 10.0


class SamplerProcess:
    """The sampler, whose interpreter and imports warm up from here on; it does nothing until it is briefed.

    This module imports next to nothing itself. Whatever happens to the sampler, no method raises: `stop` says what is
    missing.
    """

    def __init__(self) -> None:
        self._job: SamplerJob | None = None
        self._report: dict[str, Any] | None = None
        self._ready = False
        self._killed = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "servebench.telemetry.sampler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            process_group=0,  # Ctrl-C in the terminal reaches the parent alone
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def brief(self, job: SamplerJob) -> None:
        """Hand over the job, once; sampling begins."""
        self._job = job
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(job.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it died; `ready` and `stop` say so

    def ready(self, timeout: float = 8.0) -> bool:
        """Wait until every source has its baseline or is known to be absent; False if it dies or takes longer."""
        assert self._process.stdout is not None
        if not self._ready and not self._process.stdout.closed:
            readable, _, _ = select.select([self._process.stdout], [], [], timeout)
            self._ready = bool(readable) and self._process.stdout.readline() == b"ready\n"
        return self._ready

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """The last line that it wrote to its error output."""
        if self._log.closed:
            return "it said nothing"
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self, timeout: float = STOP_LIMIT_S) -> dict[str, Any]:
        """Let it take its final samples and end; return the manifest's `telemetry`. May be called again.

        Returns:
            sources, each with state, reason and figures; cpu_share of one core; process. Where the sampler died, every
            source that was asked for is in the state "lost", with the reason; what it had journalled is still there.
        """
        if self._report is None:
            self._end(timeout)
            self._report = self._read() or self._lost()
            self._log.close()
        return self._report

    def kill(self) -> None:
        """End it at once, without a final sample."""
        if self._process.poll() is None:
            self._process.kill()  # it holds nothing that the journal does not
            self._killed = True
        self._end(STOP_LIMIT_S)

    def _end(self, timeout: float) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._killed = True
            self._process.wait()
        self._process.stdout.close()

    def _read(self) -> dict[str, Any] | None:
        if self._job is None or self._process.returncode != 0:
            return None
        path = Path(self._job.journal_dir) / "telemetry.json"
        report: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return report

    def _lost(self) -> dict[str, Any]:
        how = "was killed" if self._killed else f"ended with status {self._process.returncode}"
        reason = f"the sampler {how}: {self.last_words()}"
        asked = self._job.asked if self._job is not None else ()
        return {"sources": {name: {"state": "lost", "reason": reason} for name in asked}, "cpu_share": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._log.close()


def start_sampler(job: SamplerJob) -> SamplerProcess:
    """Start the sampler with its job; use `ready`, then `stop`, and `kill` or a `with` block for the other ways out."""
    sampler = SamplerProcess()
    sampler.brief(job)
    return sampler
