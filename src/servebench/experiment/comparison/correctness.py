"""The correctness gate: do the arms give the same answers to the same greedy probes, as far as each repeats its own?

On real hardware a near-tie between two tokens may fall one way or the other from run to run, so that two runs of one
arm need not agree. An arm is therefore held against the base by runs: D is the share of probes that two runs answer
differently; the statistic is the sum of D over all pairs of runs of different arms; under equality each run could as
well be of the other arm, so p is the share of all divisions of the runs into two such sets that have a sum as large
(exact up to 20,000 divisions, else so many at random). Where all answers of all runs are the same there is nothing to
test: "same". Where the number of runs can never reach the level and the answers differ, nothing is claimed.

A change of settings that only changes the order of sums (a chunk's size, a batch's) moves logits by rounding. Answers
that part only where both arms' own two best tokens lay within `NEAR_TIE` of each other are told apart from others,
"differs at near-ties only", where the server tells the log probabilities: that is rounding, and no wrong answer.

Shape of the result (`of`)::

    {"verdict": "same" | "differs at near-ties only" | "differs beyond A/A" | "not judged",
     "reason": str, "alpha": 0.05,
     "probes": 16,                              # most that a run was asked
     "arms": {NAME: {"runs": 6, "answered": 96, "asked": 96, "agreement": 1.0 | null,       # A/A: among its own runs
                     "output_tokens": 31.2 | null,                                       # mean of an answer
                     "finish_reasons": {"length": 90, "stop": 6}, "reason": str | null}},   # why some are missing
     "comparisons": [{"arm": NAME, "verdict", "reason", "probes": 16,      # that both arms answered
                      "agreement": 0.94 | null, "within": 1.0 | null,      # identical answers, between and within arms
                      "lengths": {"agreement", "within"}, "finish_reasons": {"agreement", "within"},
                      "p": 0.002 | null, "p_adjusted": 0.004 | null, "least_p": 0.002 | null,
                      "differing": [{"prompt_id", "words": 1500, "agreement": 0.0, "within": 1.0,
                                     "first_difference": 12, "unit": "token" | "word",        # the median place
                                     "margin": 0.03 | null}]}],            # the largest at which two runs part
     "definition": str}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import comb
from statistics import fmean, median_low
from typing import Any

import numpy as np

from servebench.analysis.stats.holm import holm
from servebench.analysis.stats.permutation import divisions
from servebench.experiment.cell import Outcome
from servebench.experiment.comparison.answers import (
    ASPECTS,
    Answers,
    Floats,
    agreement,
    distances,
    first_difference,
    margin_at,
)

SAME, DIFFERS, NOT_JUDGED = "same", "differs beyond A/A", "not judged"
NEAR_TIES = "differs at near-ties only"
NEAR_TIE = 0.125  # in log p: two steps of a bfloat16 logit between 8 and 16
ALPHA = 0.05
MOST = 20_000  # divisions of the runs; more are drawn at random
DEFINITION = (
    "agreement: share of probes answered identically, over all pairs of runs; within: pairs of runs of one arm (A/A); "
    "p: share of the divisions of the runs into two arms in which the arms differ at least as much, Holm over the arms"
)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is concluded of one arm.

    Attributes:
        verdict, reason: in words.
        p, least_p: of the test; None where none was made.
    """

    verdict: str
    reason: str
    p: float | None = None
    least_p: float | None = None


def of(outcomes_by_arm: Mapping[str, Sequence[Outcome]], base: str, alpha: float = ALPHA) -> Document:
    """Judge the answers of each arm's runs against those of the arm `base`.

    Args:
        outcomes_by_arm: all cells of each arm; failed ones count as runs without answers.
        base: name of the base arm.
        alpha: level of the tests.
    """
    answers = {arm: [Answers.of(outcome) for outcome in outcomes] for arm, outcomes in outcomes_by_arm.items()}
    others = [arm for arm in answers if arm != base]
    judged = _corrected({arm: judge(answers[base], answers[arm], alpha) for arm in others}, alpha)
    compared = [_comparison(arm, *judged[arm], answers[base], answers[arm]) for arm in others]
    verdict, reason = _overall(compared)
    return {
        "verdict": verdict,
        "reason": reason,
        "alpha": alpha,
        "probes": max((run.asked for runs in answers.values() for run in runs), default=0),
        "arms": {arm: _arm(runs) for arm, runs in answers.items()},
        "comparisons": compared,
        "definition": DEFINITION,
    }


def judge(base: Sequence[Answers], cand: Sequence[Answers], alpha: float = ALPHA) -> Judgement:
    """Hold an arm's answers against the base's; runs without any answer are left out."""
    ours, theirs = ([run for run in runs if run.by_probe] for runs in (base, cand))
    if not ours or not theirs:
        return Judgement(NOT_JUDGED, f"the base: {_silence(base)}" if theirs else _silence(cand))
    between = distances([*ours, *theirs])
    if np.isnan(between).any():
        return Judgement(NOT_JUDGED, "the arms were not asked the same probes")
    if not between.any():
        return Judgement(SAME, "every answer is the same in every run")
    return _tested(between, len(ours), len(theirs), alpha)


def _silence(runs: Sequence[Answers]) -> str:
    return next((run.reason for run in runs if run.reason), "it has no run that can be compared")


def _tested(between: Floats, n: int, m: int, alpha: float) -> Judgement:
    least = (2 if n == m else 1) / comb(n + m, n)
    if least > alpha:
        have = f"{n} runs of the base and {m} of the arm"
        return Judgement(NOT_JUDGED, f"answers differ, but {have} can never tell that from chance", least_p=least)
    p = exchange_p(between, n)
    if p > alpha:
        return Judgement(SAME, "the arms differ no more than runs of one arm do", p, least)
    return Judgement(DIFFERS, "the arms differ more than runs of one arm do", p, least)


def exchange_p(between: Floats, n: int) -> float:
    """p that the first `n` runs and the others are alike, one-sided.

    Args:
        between: (runs, runs) distances, symmetric, 0 on the diagonal.
        n: runs of the first arm.
    """
    runs = len(between)
    second, exact = divisions(n, runs - n, MOST)
    across = ((second @ between) * (1 - second)).sum(axis=1)
    found = np.repeat([0.0, 1.0], [n, runs - n])
    seen = float((found @ between) @ (1 - found))
    as_large = int((across >= seen - 1e-9).sum())
    return as_large / len(second) if exact else (1 + as_large) / (1 + len(second))


def _corrected(judged: Mapping[str, Judgement], alpha: float) -> dict[str, tuple[Judgement, float | None]]:
    """Each judgement with its p after Holm's correction over the arms, which may take a "differs" back."""
    tested = {arm: judgement.p for arm, judgement in judged.items() if judgement.p is not None}
    adjusted = dict(zip(tested, map(float, holm(list(tested.values()))), strict=True)) if tested else {}
    return {arm: (_after_holm(found, adjusted.get(arm), alpha), adjusted.get(arm)) for arm, found in judged.items()}


def _after_holm(found: Judgement, adjusted: float | None, alpha: float) -> Judgement:
    if found.verdict != DIFFERS or adjusted is None or adjusted <= alpha:
        return found
    return replace(found, verdict=NOT_JUDGED, reason="answers differ, but not clearly enough among so many arms")


def _overall(compared: Sequence[Document]) -> tuple[str, str]:
    """The worst verdict, with the arms that have it."""
    for verdict in (DIFFERS, NOT_JUDGED, NEAR_TIES):
        if found := [each for each in compared if each["verdict"] == verdict]:
            return verdict, f"{', '.join(each['arm'] for each in found)}: {found[0]['reason']}"
    if not compared:
        return NOT_JUDGED, "there is no arm to hold against the base"
    reasons = list(dict.fromkeys(each["reason"] for each in compared))
    return SAME, reasons[0] if len(reasons) == 1 else "no arm differs more than runs of one arm do"


def _arm(runs: Sequence[Answers]) -> Document:
    given = [answer for run in runs for answer in run.by_probe.values()]
    lengths = [answer["output_tokens"] for answer in given if answer["output_tokens"] is not None]
    missing = [run.reason for run in runs if run.reason]
    return {
        "runs": sum(bool(run.by_probe) for run in runs),
        "answered": len(given),
        "asked": sum(run.asked for run in runs),
        "agreement": _mean(agreement(a, b) for a, b in combinations(runs, 2)),
        "output_tokens": fmean(lengths) if lengths else None,
        "finish_reasons": dict(sorted(Counter(str(answer["finish_reason"]) for answer in given).items())),
        "reason": missing[0] if missing else None,
    }


def _comparison(
    arm: str, found: Judgement, adjusted: float | None, base: Sequence[Answers], cand: Sequence[Answers]
) -> Document:
    texts, lengths, reasons = (_agreements(base, cand, aspect) for aspect in ASPECTS)
    common = _probes(base) & _probes(cand)
    differing = [d for probe in sorted(common) if (d := _differing(probe, base, cand)) is not None]
    found = _excused(found, differing)
    return {
        "arm": arm,
        "verdict": found.verdict,
        "reason": found.reason,
        "probes": len(common),
        **texts,
        "lengths": lengths,
        "finish_reasons": reasons,
        "p": found.p,
        "p_adjusted": adjusted,
        "least_p": found.least_p,
        "differing": differing,
    }


def _excused(found: Judgement, differing: Sequence[Document]) -> Judgement:
    """The judgement when all differences begin at near-ties."""
    known = [each["margin"] for each in differing]
    if found.verdict == SAME or not known or any(margin is None or margin > NEAR_TIE for margin in known):
        return found
    reason = f"the arms part only where two tokens were within {max(known):.2g} in log p of each other"
    return replace(found, verdict=NEAR_TIES, reason=reason)


def _agreements(base: Sequence[Answers], cand: Sequence[Answers], aspect: str) -> Document:
    return {
        "agreement": _mean(agreement(a, b, aspect) for a, b in product(base, cand)),
        "within": _mean(agreement(a, b, aspect) for runs in (base, cand) for a, b in combinations(runs, 2)),
    }


def _differing(probe: str, base: Sequence[Answers], cand: Sequence[Answers]) -> Document | None:
    """How the arms part in one probe; None where they do not."""
    ours, theirs = ([run.by_probe[probe] for run in runs if probe in run.by_probe] for runs in (base, cand))
    across = [(a, b) for a, b in product(ours, theirs) if a["sha"] != b["sha"]]
    apart = [first_difference(a, b) for a, b in across]
    if not apart:
        return None
    sure = [margin_at(a, b, *place) for (a, b), place in zip(across, apart, strict=True)]
    inside = [a["sha"] == b["sha"] for answers in (ours, theirs) for a, b in combinations(answers, 2)]
    return {
        "prompt_id": probe,
        "words": ours[0]["words"],
        "agreement": 1 - len(apart) / (len(ours) * len(theirs)),
        "within": fmean(inside) if inside else None,
        "first_difference": median_low(place for place, _ in apart),
        "unit": apart[0][1],
        "margin": None if None in sure else max(margin for margin in sure if margin is not None),
    }


def _probes(runs: Sequence[Answers]) -> set[str]:
    return {probe for run in runs for probe in run.by_probe}


def _mean(shares: Any) -> float | None:
    known = [share for share in shares if share is not None]
    return fmean(known) if known else None
