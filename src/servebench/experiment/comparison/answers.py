"""The answers that runs gave to the greedy probes, and how far two runs agree in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.experiment.cell import Outcome

Answer = Mapping[str, Any]
Floats = NDArray[np.float64]
ASPECTS = ("sha", "output_tokens", "finish_reason")  # text, length, and how it ended


@dataclass(frozen=True, slots=True)
class Answers:
    """What one run answered.

    Attributes:
        run: its name.
        asked: how many probes it was asked.
        by_probe: the answers that it gave, by the probe's id.
        reason: why some or all are missing.
    """

    run: str
    asked: int = 0
    by_probe: Mapping[str, Answer] = field(default_factory=dict)
    reason: str | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Answers:
        """What lies in the run directory of a cell; a directory without probes has no answers."""
        from servebench.run.probing import FILE  # the package of runs is much to load where there is nothing to read

        told = (outcome.manifest or {}).get("probes")
        if not told:
            return cls(outcome.cell.name, reason=outcome.reason or "no probes were asked")
        try:
            found = json.loads((outcome.path / FILE).read_text("utf-8"))
            given = {answer["prompt_id"]: answer for answer in found if answer["sha"] is not None}
        except (OSError, ValueError, KeyError, TypeError):
            return cls(outcome.cell.name, told["asked"], reason=f"its {FILE} is gone or damaged")
        return cls(outcome.cell.name, told["asked"], given, told["reason"])


def agreement(a: Answers, b: Answers, aspect: str = "sha") -> float | None:
    """Share of the probes that both answered in which the answers are the same; None if they have none in common."""
    common = a.by_probe.keys() & b.by_probe.keys()
    if not common:
        return None
    same = [a.by_probe[probe][aspect] == b.by_probe[probe][aspect] for probe in common]
    return sum(map(bool, same)) / len(common)


def distances(runs: Sequence[Answers], aspect: str = "sha") -> Floats:
    """(runs, runs): the share of probes that two runs answered differently; NaN where they have none in common."""
    found = np.zeros((len(runs), len(runs)))
    for i, a in enumerate(runs):
        for j, b in enumerate(runs[:i]):
            same = agreement(a, b, aspect)
            found[i, j] = found[j, i] = np.nan if same is None else 1 - same
    return found


def first_difference(a: Answer, b: Answer) -> tuple[int, str]:
    """Where two answers part, from 1, counted in tokens where both have ids, else in words."""
    ids = (a["token_ids"], b["token_ids"])
    unit = "token" if None not in ids else "word"
    left, right = ids if unit == "token" else (a["text"].split(), b["text"].split())
    place = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
    return place + 1, unit


def margin_at(a: Answer, b: Answer, place: int, unit: str) -> float | None:
    """How sure both were of their own token where they part: the larger of the two margins, None where not told."""
    found = [answer.get("margins") or [] for answer in (a, b)]
    if unit != "token" or any(len(margins) < place or margins[place - 1] is None for margins in found):
        return None
    return float(max(margins[place - 1] for margins in found))
