"""Starts the ground-truth server in a process of its own, and ends it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from types import TracebackType
from typing import Self

from servebench.errors import EngineError


class GroundTruth:
    """A ground-truth server for as long as the `with` block lasts.

    Args:
        step_us: microseconds from token to token, the same for all streams.
        ttft_us: microseconds to the first token at least; it comes with the next step.
        cpu: pin the server to this core.
        port: 0 picks a free one.

    Raises:
        EngineError: when the server does not come up.
    """

    def __init__(self, step_us: int = 10_000, ttft_us: int = 50_000, *, cpu: int | None = None, port: int = 0) -> None:
        arguments = [str(port), str(step_us), str(ttft_us), "--until-eof"]
        arguments += [] if cpu is None else ["--cpu", str(cpu)]
        self._command = [sys.executable, "-m", "servebench.testing.groundtruth", *arguments]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        # It ends with its standard input, so it cannot outlive this process, however that one ends.
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.__exit__(None, None, None)
            raise EngineError("the ground-truth server did not start; its own message is above")
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._process is None:
            return
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def stats(self) -> dict[str, int]:
        """The server's own counts: `requests`, `tokens`, and `late_steps` that it had to leave out."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=10) as response:
            counts: dict[str, int] = json.load(response)
        return counts
