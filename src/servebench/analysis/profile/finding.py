"""One finding, and what several of them need of a window's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servebench.analysis.rounding import rounded

Document = Mapping[str, Any]
MEANT = {"prefill": "prefill_only", "decode": "decode_only", "mixed": "mixed"}
WORDS = {"prefill_only": "prefill", "decode_only": "decode", "mixed": "mixed", "idle": "idle", "unknown": ""}


def finding(code: str, sentence: str, next_: str, **evidence: float | str | None) -> dict[str, Any]:
    """One finding; figures of the evidence are rounded as everywhere."""
    shown = {key: value if isinstance(value, str) else rounded(value) for key, value in evidence.items()}
    return {"code": code, "sentence": sentence, "evidence": shown, "next": next_}


def ms(value: float) -> str:
    """Milliseconds with three digits: 11.8 ms, 0.42 ms, 1780 ms."""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def percent(share: float) -> str:
    """A share of one with at most three digits; all and nothing only where it is exactly that."""
    return f"{min(max(100 * share, 0.01), 99.9):.3g} %" if 0 < share < 1 else f"{100 * share:.0f} %"


def window_ms(answers: Document) -> float:
    """Length of the window; 0 where there is none."""
    return float((answers["window"] or {}).get("ms") or 0.0)


def step_ms(row: Document) -> float | None:
    """What a step of this kind takes (p50): its period, else its duration."""
    value = row["period"]["p50"] if row["period"]["n"] else row["p50"]
    return None if value is None else float(value)


def step_row(answers: Document, kind: str) -> Document | None:
    """The row of the steps of one kind."""
    return next((row for row in answers["steps"]["kinds"] if row["kind"] == kind), None)


def main_step(answers: Document) -> Document | None:
    """The kind of step that the window was meant for, else the one that took the most time."""
    meant = step_row(answers, MEANT.get(answers["kind"] or "", ""))
    return meant or max(answers["steps"]["kinds"], key=lambda row: row["n"] * (row["mean"] or 0.0), default=None)


def step_words(row: Document) -> str:
    """``decode step``."""
    return f"{WORDS[row['kind']]} step".strip()


def steps_per_process(answers: Document) -> float:
    """Steps of one worker process: what a device's time is divided by; 0 without steps."""
    steps = answers["steps"]
    return float(steps["n"]) / steps["processes"] if steps["processes"] else 0.0


def experiment(vary: str) -> str:
    """An experiment that varies one thing."""
    return f"`servebench ab SCENARIO --vary {vary}`"
