"""The checks of a comparison that no whole experiment shows easily."""

from __future__ import annotations

from typing import Any

import pytest

from servebench.experiment.comparison.checks import answers


def gate(verdict: str, probes: int = 16, answered: int = 96) -> dict[str, Any]:
    arms = {"base": {"answered": 96, "asked": 96}, "cand": {"answered": answered, "asked": 96}}
    if not probes:
        arms = {name: {"answered": 0, "asked": 0} for name in arms}
    return {"verdict": verdict, "reason": "cand: they differ", "probes": probes, "arms": arms}


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (None, "ok", "whether the arms answer alike was not judged"),
        (gate("not judged", probes=0), "ok", "whether the arms answer alike was not judged: cand: they differ"),
        (gate("not judged"), "warn", "whether the arms answer alike was not judged: cand: they differ"),
        (gate("same"), "ok", "the arms answer alike"),
        (gate("differs at near-ties only"), "ok", "the arms answer alike but for near-ties: cand: they differ"),
        (gate("differs beyond A/A"), "warn", "the arms' answers differ by more than one arm's own do from run to run"),
    ],
)
def test_questions_that_were_asked_must_settle_something(found: Any, level: str, text: str) -> None:
    told = answers(found)
    assert (told["level"], told["text"]) == (level, text)
    assert bool(told["next"]) == (level == "warn")


def test_an_arm_that_leaves_probes_unanswered_does_not_pass_by_the_others() -> None:
    told = answers(gate("same", answered=48))
    assert told["level"] == "warn"
    assert told["text"].endswith("that another arm answered: cand answered 48 of 96")
