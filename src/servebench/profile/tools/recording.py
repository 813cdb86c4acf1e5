"""A running `perf record` or `perf stat`: begun and ended by us, and never left behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from servebench.profile.perf_program import environment, refusal
from servebench.profile.tool import ProfileError

START_S = 20.0  # a server of some hundred threads takes perf a second or two
STOP_S = 30.0
LITTLE_BYTES = 65536


class Recording:
    """One run of perf on other processes, set up but not yet counting; see `enable`.

    Args:
        program: perf.
        arguments: the subcommand, and how to record whom.
        log: file for what perf says.
    """

    def __init__(self, program: str, arguments: Sequence[str], log: Path) -> None:
        control, self._control = os.pipe()
        self._heard, acknowledged = os.pipe()
        self._log = log
        # Begun disabled: setting up takes perf a moment, and it says when it has enabled the events.
        switch = ["-D", "-1", f"--control=fd:{control},{acknowledged}"]
        alive = ["--", "cat"]  # perf ends with it, and it ends with its input: with us, should we be killed
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    [program, arguments[0], *switch, *arguments[1:], *alive],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(control, acknowledged),
                    start_new_session=True,  # Ctrl-C is for us; and its `cat` can be ended with it
                    env=environment(),
                )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(control)
            os.close(acknowledged)

    def enable(self) -> None:
        """Return once it counts. Raises ProfileError, with perf's reason, if it does not."""
        try:
            with suppress(BrokenPipeError):  # it has ended: told below
                os.write(self._control, b"enable\n")
            ready, _, _ = select.select([self._heard], [], [], START_S)
            acknowledged = bool(ready) and os.read(self._heard, 16).startswith(b"ack")
        except BaseException:
            self.kill()
            raise
        if not acknowledged:
            self.kill()
            raise ProfileError(f"perf: {self._refusal()}" if ready else f"perf did not begin within {START_S:.0f} s")

    def stop(self) -> None:
        """End it; what it recorded is written when this returns.

        Raises:
            ProfileError: it had ended before, or had to be killed; what it wrote so far is kept.
        """
        ended = self._process.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)  # `perf stat` would wait for its `cat`
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            text = f"perf did not end within {STOP_S:.0f} s and was killed; what it wrote is kept"
            raise ProfileError(text) from None
        finally:
            self.kill()
        if ended:
            raise ProfileError(f"perf ended before the window did: {self._why_ended()}")

    def kill(self) -> None:
        """End it and what it started at once, whatever they are at."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._close()

    def _close(self) -> None:
        descriptors = (self._control, self._heard)
        self._control = self._heard = -1  # first: whoever gives up on a `stop` in another thread kills, too
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)

    def _why_ended(self) -> str:
        if self._process.returncode == -signal.SIGKILL:
            return "it was killed"  # by whoever is short of memory, most often
        return self._refusal()

    def _refusal(self) -> str:
        try:
            said = self._log.read_text("utf-8", "replace")
            lost = not said.strip() and shutil.disk_usage(self._log.parent).free < LITTLE_BYTES
        except OSError:
            return "its messages are lost"
        return "the disk is full" if lost else refusal(said)
