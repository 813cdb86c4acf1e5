"""What was found wrong with an experiment as a whole, as codes like those of a run, and the verdict they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from servebench.analysis.verdict.codes import Level, Status
from servebench.errors import ExitCode

Code = dict[str, str]  # code, level, text, next

SHOWN = 3  # things named in one sentence

OK, WARN, FAIL = str(Level.OK), str(Level.WARN), str(Level.FAIL)


def code(name: str, level: str, text: str, step: str = "") -> Code:
    """One check: its name, its level ("ok", "warn" or "fail"), what was found, and what to do about it."""
    return {"code": name, "level": level, "text": text, "next": step}


def verdict(codes: Sequence[Code]) -> dict[str, Any]:
    """INVALID with any failed code, SUSPECT with any warning, else VALID; the exit code; the worst codes first."""
    ranked = sorted(codes, key=lambda each: (FAIL, WARN, OK).index(each["level"]))
    levels = {each["level"] for each in codes}
    status = Status.INVALID if FAIL in levels else Status.SUSPECT if WARN in levels else Status.VALID
    exit_code = ExitCode.INVALID if status is Status.INVALID else ExitCode.GOOD
    return {"status": str(status), "exit_code": int(exit_code), "codes": ranked}


def shorten(texts: Iterable[str]) -> str:
    """The first few of a list, and how many more there are."""
    texts = list(texts)
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return f"{'; '.join(texts[:SHOWN])}{more}"


def brief(value: Any) -> str:
    """A value within a sentence."""
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
