"""A reason code: one thing that was checked, with its figure, its limit and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """What a code means for the verdict."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Status(StrEnum):
    """Whether the result can be believed."""

    VALID = "VALID"
    SUSPECT = "SUSPECT"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class Code:
    """One check.

    Attributes:
        code: ``family.name``.
        level: its level.
        value: the figure; None when it was not measured, and `text` says why.
        limit: the limit that `value` is held against (the one that it broke); None where there is none.
        unit: of both.
        text: what was found, one sentence.
        next: what to do about it; empty when nothing is.
    """

    code: str
    level: Level
    value: float | None
    limit: float | None
    unit: str
    text: str
    next: str = ""


def above(
    code: str, value: float, unit: str, text: str, step: str, *, warn: float | None = None, fail: float | None = None
) -> Code:
    """A code whose level rises as `value` goes beyond `warn` and `fail`; either may be None for no such level."""
    if fail is not None and value > fail:
        return Code(code, Level.FAIL, value, fail, unit, text, step)
    if warn is not None and value > warn:
        return Code(code, Level.WARN, value, warn, unit, text, step)
    return Code(code, Level.OK, value, warn if warn is not None else fail, unit, text)


def unmeasured(code: str, unit: str, why: str, *, level: Level = Level.OK, step: str = "") -> Code:
    """A code without a figure."""
    return Code(code, level, None, None, unit, why, step)


def status(codes: Sequence[Code]) -> Status:
    """INVALID with any failed code, SUSPECT with any warning, else VALID."""
    levels = {code.level for code in codes}
    if Level.FAIL in levels:
        return Status.INVALID
    return Status.SUSPECT if Level.WARN in levels else Status.VALID
