"""Runs nsys for an answer, with a limit: it never hangs us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from servebench.profile.tool import ProfileError

# What it prints while all is well, and the inner parts of its exceptions
NOISE = re.compile(r"^(\[\d+/\d+\]|Generating '|Generated:|\s+/|\[Quad)")


def run_nsys(nsys: Path, arguments: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> str:
    """Run nsys and return what it printed.

    Args:
        limit_s: seconds that it may take; then it and what it started are killed.
        env: variables to set beside our own.

    Raises:
        ProfileError: it failed, with its own last words, or it took too long.
    """
    words = f"nsys {arguments[0]}"
    try:
        process = subprocess.Popen(
            [str(nsys), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for servebench, which then stops the capture in its own time
            env={**os.environ, **(env or {})},
        )
    except OSError as error:
        raise ProfileError(f"cannot start {nsys}: {error.strerror}") from None
    try:
        output = process.communicate(timeout=limit_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        raise ProfileError(f"{words} did not end within {limit_s:g} s") from None
    finally:
        _kill(process)
    if process.returncode != 0:
        raise ProfileError(f"{words} failed (exit code {process.returncode}): {last_words(output)}")
    return output


def last_words(output: str) -> str:
    """The last lines of an output that say something, as one line."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip() and not NOISE.match(line)]
    return " ".join(lines[-2:])[-400:] or "it said nothing"


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
