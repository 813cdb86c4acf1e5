"""What a faster kernel would be worth: its share of the step's time, by Amdahl's law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servebench.analysis.rounding import milliseconds, rounded

CHANGES = (("2x", 0.5), ("-30 %", 0.7))  # the time that remains of the part
TOP = 5


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the step.

    Attributes:
        what: name of the kernel or operator.
        where: "device" or "host".
        ns: time within steps in which nothing hides it: exposed time of a kernel, own time of an operator.
    """

    what: str
    where: str
    ns: int


def describe(
    parts: Sequence[Part], total_ns: int, step_ns: float | None, tpot_ns: float | None = None
) -> list[dict[str, Any]]:
    """The `amdahl` section, two rows a part: step_ratio = 1 − share + share·factor, share = ns / total_ns.

    Args:
        parts: the largest first; at most `TOP` are told.
        total_ns: time of all steps that `ns` was taken from.
        step_ns: of one step, before.
        tpot_ns: a token's time by the client's stamps, before; only the exposed time of a step is taken off it.
    """
    if total_ns <= 0:
        return []
    return [
        _row(part, part.ns / total_ns, change, factor, step_ns, tpot_ns)
        for part in parts[:TOP]
        if part.ns > 0
        for change, factor in CHANGES
    ]


def _row(
    part: Part, share: float, change: str, factor: float, step_ns: float | None, tpot_ns: float | None
) -> dict[str, Any]:
    ratio = 1 - share + share * factor
    return {
        "what": part.what,
        "where": part.where,
        "share": rounded(share),
        "change": change,
        "factor": factor,
        "step_ratio": rounded(ratio),
        "step_ms": None if step_ns is None else [milliseconds(step_ns), milliseconds(step_ns * ratio)],
        "tpot_ms": None if tpot_ns is None else [milliseconds(tpot_ns), milliseconds(_tpot(tpot_ns, step_ns, ratio))],
    }


def _tpot(tpot_ns: float, step_ns: float | None, ratio: float) -> float:
    """A token waits for one step, and for what is not the engine's: only the step's saving comes off it."""
    saved = tpot_ns * (1 - ratio) if step_ns is None else step_ns * (1 - ratio)
    return max(tpot_ns - saved, 0.0)
