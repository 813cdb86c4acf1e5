"""The end of a launch that was asked for."""

from __future__ import annotations

from servebench.errors import ExitCode, ServebenchError


class LaunchInterruptedError(ServebenchError):
    """The launch was ended on request; nothing is left running. Exit code 130."""

    exit_code = ExitCode.INTERRUPTED
