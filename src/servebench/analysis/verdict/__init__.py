"""The verdict: whether a run can be believed, with a reason code for everything that was checked."""

from __future__ import annotations

from servebench.analysis.facts import Facts
from servebench.analysis.verdict import client, clocks, gpu, load, server, stats
from servebench.analysis.verdict.codes import Code, Level, Status, status
from servebench.errors import ExitCode

__all__ = ["Code", "Level", "Status", "exit_code", "judge", "status"]

_ORDER = {Level.FAIL: 0, Level.WARN: 1, Level.OK: 2}


def judge(facts: Facts) -> tuple[Code, ...]:
    """All codes of a run, the failed ones first, then the warnings; within a level in the order of the families."""
    families = (server.check, load.check, client.check, gpu.check, clocks.check, stats.check)
    codes = [code for check in families for code in check(facts)]
    return tuple(sorted(codes, key=lambda code: _ORDER[code.level]))


def exit_code(verdict: Status | str, objectives_met: bool | None) -> ExitCode:
    """3 for an INVALID run, else 4 when an objective was missed, else 0; `objectives_met` is None without any."""
    if verdict == Status.INVALID:
        return ExitCode.INVALID
    return ExitCode.OBJECTIVE if objectives_met is False else ExitCode.GOOD
