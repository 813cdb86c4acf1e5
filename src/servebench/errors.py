"""Errors that a user can cause or meet, each one clear line and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process exits with; see README, "Exit codes"."""

    GOOD = 0
    INTERNAL = 1
    USAGE = 2
    INVALID = 3
    OBJECTIVE = 4
    INTERRUPTED = 130


class ServebenchError(Exception):
    """Base of all errors that are reported as one line, without a traceback."""

    exit_code = ExitCode.INTERNAL


class UsageError(ServebenchError):
    """Bad input: what is wrong, where, and the nearest right spelling. Exit code 2."""

    exit_code = ExitCode.USAGE


class EngineError(ServebenchError):
    """The server under test could not be reached, started or understood. Exit code 2."""

    exit_code = ExitCode.USAGE


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` (did you mean "x"?)`` for the closest choice, or an empty string."""
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f' (did you mean "{near[0]}"?)' if near else ""
