"""Runs as the sides of a comparison: which of them count, and their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servebench.experiment.cell import Outcome
from servebench.experiment.comparison.effects import Figures
from servebench.experiment.figures import known, value_of


def why_unusable(outcome: Outcome) -> str | None:
    """Why a run cannot be compared: it failed, or its own verdict is INVALID; None when it can."""
    if outcome.summary is None:
        return outcome.reason or "it has no summary"
    if outcome.verdict == "INVALID":
        return f"INVALID: {'; '.join(_texts(outcome, 'fail')) or 'without a reason'}"
    return None


def _texts(outcome: Outcome, level: str) -> list[str]:
    codes = ((outcome.summary or {}).get("verdict") or {}).get("codes") or []
    return [f"{code['code']} ({code['text']})" for code in codes if code["level"] == level]


def plan_hash(outcome: Outcome) -> str | None:
    """The hash of what the run was to send; None when its summary does not say."""
    found = ((outcome.summary or {}).get("plan") or {}).get("hash")
    return None if found is None else str(found)


def is_simulated(outcome: Outcome) -> bool:
    """Whether the run was made on the simulated engine."""
    return bool((outcome.summary or {}).get("simulated"))


def figures_of(outcomes: Sequence[Outcome], family: Sequence[str]) -> Figures:
    """Every figure that a run has, by name: one value a run, None where it has none."""
    names = dict.fromkeys([*family, *known()])
    values = {name: [value_of(outcome.summary or {}, name) for outcome in outcomes] for name in names}
    return {name: each for name, each in values.items() if any(value is not None for value in each)}


def verdicts_of(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many runs have which verdict; "failed" for those without."""
    return dict(sorted(Counter(outcome.verdict or "failed" for outcome in outcomes).items()))


def doubts_of(outcomes: Iterable[Outcome]) -> Mapping[str, int]:
    """The codes that make runs SUSPECT, and in how many runs each does."""
    found: Counter[str] = Counter()
    for outcome in outcomes:
        codes: list[dict[str, Any]] = ((outcome.summary or {}).get("verdict") or {}).get("codes") or []
        found.update({code["code"] for code in codes if code["level"] == "warn"})
    return dict(found.most_common())
