"""`gate`: are the candidate's runs worse than the baseline's? For CI, so that equal code passes and a regression fails.

Each figure is a check. Without given limits these are the scenario's objectives and a few central figures, and each
limit is what equal code stays within by the baseline's own run-to-run spread (see `spread`), but not less than 3 %. All
checks of a gate together fail equal code in no more than one of a thousand gates (`CONFIDENCE`, shared out by
Bonferroni). A given limit fails when the change is beyond it *and* beyond what chance does; beyond the limit only is
undecided, which passes unless the gate is strict. An absolute limit is a promise and needs no baseline's noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.errors import ExitCode
from servebench.experiment.cell import Outcome
from servebench.experiment.comparison.sides import is_simulated, plan_hash
from servebench.experiment.figures import figure, value_of
from servebench.experiment.findings import WARN, Code, code, shorten, verdict
from servebench.experiment.gate.check import (
    FAIL,
    FALLBACK,
    GIVEN,
    NOT_JUDGED,
    STATED,
    UNDECIDED,
    Check,
    Values,
    check,
    failures,
)
from servebench.experiment.gate.limits import Limit
from servebench.experiment.gate.runs import Sides, default_figures, sides_of
from servebench.experiment.gate.spread import APART, LEAST_RUNS

SCHEMA = 1
CONFIDENCE = 0.999
BLUNT = 0.10

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """How a gate judges.

    Attributes:
        limits: given ones; empty checks the default figures against the baseline's noise.
        confidence: the share of gates on equal code that pass, all checks together.
        strict: whether an undecided check fails the gate.
    """

    limits: Sequence[Limit] = ()
    confidence: float = CONFIDENCE
    strict: bool = False


def judge_gate(candidate: Sequence[Outcome], baseline: Sequence[Outcome], rules: Rules) -> Document:
    """Judge the candidate's runs against the baseline's, both at least one; JSON-able.

    Shape::

        {"schema": 1, "name": str, "status": "passed" | "failed" | "invalid", "exit_code": 0 | 3 | 4,
         "simulated": bool, "confidence": 0.999, "strict": bool, "created_ns": int | None,
         "runs": {"baseline": [str], "candidate": [str], "left_out": [{"path", "reason"}]},
         "checks": [Check], "differences": [{"key", "base", "cand", "kind"}],
         "verdict": {...}}   # as of every experiment: status, exit_code, codes

    An invalid gate (runs that cannot be compared, or a given limit's figure that no run has) judges nothing: exit 3.
    """
    sides = sides_of(candidate, baseline)
    judged = [] if sides.refused else _checks(sides, rules)
    codes = [*sides.codes, *_missing(judged), *_advice(judged, sides)]
    found = verdict(codes)
    status = _status(found["status"], judged, rules.strict)
    return {
        "schema": SCHEMA,
        "name": sides.name,
        "status": status,
        "exit_code": int(_EXIT_CODES[status]),
        "simulated": any(is_simulated(run) for run in (*candidate, *baseline)),
        "confidence": rules.confidence,
        "strict": rules.strict,
        "created_ns": sides.created_ns,
        "runs": sides.listed(),
        "checks": [each.to_dict() for each in judged],
        "differences": sides.differences,
        "verdict": found,
    }


_EXIT_CODES = {"passed": ExitCode.GOOD, "failed": ExitCode.OBJECTIVE, "invalid": ExitCode.INVALID}


def _status(verdict_status: str, checks: Sequence[Check], strict: bool) -> str:
    if verdict_status == "INVALID":
        return "invalid"
    fatal = (FAIL, UNDECIDED) if strict else (FAIL,)
    return "failed" if any(each.status in fatal for each in checks) else "passed"


def _checks(sides: Sides, rules: Rules) -> list[Check]:
    """The given limits, or the default figures; and always the failures. Each gets an equal part of the error."""
    wanted: list[tuple[str, Limit | None]] = [(limit.figure.name, limit) for limit in rules.limits]
    wanted = wanted or [(name, None) for name in default_figures(sides.scenario)]
    alpha = (1 - rules.confidence) / (len(wanted) + 1)
    judged = [
        check(figure(name), limit, _values(sides.base, name), _values(sides.cand, name), alpha)
        for name, limit in wanted
    ]
    return [*judged, failures(_counts(sides.base), _counts(sides.cand), alpha)]


def _values(runs: Sequence[Outcome], name: str) -> Values:
    return [(plan_hash(run) or "", value_of(run.summary or {}, name)) for run in runs]


def _counts(runs: Sequence[Outcome]) -> Mapping[str, int]:
    cohorts = [(run.summary or {}).get("cohort") or {} for run in runs]
    return {name: sum(int(cohort.get(name) or 0) for cohort in cohorts) for name in ("planned", "ok")}


def _missing(checks: Sequence[Check]) -> list[Code]:
    """A figure for which a limit was given and that cannot be judged is no pass."""
    lost = [each for each in checks if each.status == NOT_JUDGED]
    given = [each for each in lost if each.source == GIVEN]
    if given:
        text = shorten(f"{each.name} cannot be judged: {each.text}" for each in given)
        return [code("gate.no_figure", "fail", text, "give limits for figures that these runs have")]
    return [code("gate.no_figure", WARN, f"not judged: {each.figure}: {each.text}") for each in lost]


def _advice(checks: Sequence[Check], sides: Sides) -> list[Code]:
    """What makes the gate weaker than it looks."""
    found = []
    stated = [each for each in checks if each.source == STATED]
    unknown = [each for each in checks if each.source == GIVEN and not each.absolute and each.noise is None]
    if stated or unknown:
        what = f"limits are the stated {100 * FALLBACK:g} %" if stated else "given limits decide alone, noise or not"
        runs = "1 baseline run does" if len(sides.base) == 1 else f"{len(sides.base)} baseline runs do"
        text = f"{runs} not say how far equal runs lie apart: {what}"
        found.append(code("gate.few_runs", WARN, text, f"keep a baseline of {LEAST_RUNS} runs, better 10"))
    if any(each.design == APART for each in checks):
        text = "the runs had different plans (seeds), so that changes and limits also hold the spread between plans"
        found.append(code("gate.plans", WARN, text, "run baseline and candidate with one seed"))
    blunt = [each for each in checks if each.found_from is not None]
    if blunt and all(abs(each.found_from or 0) > BLUNT for each in blunt):
        least = min(blunt, key=lambda each: abs(each.found_from or 0))
        text = f"the finest check, {least.figure}, finds changes from {100 * abs(least.found_from or 0):.0f} % on only"
        found.append(code("gate.blunt", WARN, text, "take longer runs, or more of them"))
    return found + _floors(checks, [*sides.base, *sides.cand])


def _floors(checks: Sequence[Check], runs: Sequence[Outcome]) -> list[Code]:
    """Quantiles that the gate rests on and that have fewer samples in some run than they need."""
    short = []
    for name in dict.fromkeys(each.figure for each in checks):
        metric, _, quantile = name.partition(".")
        found = [((run.summary or {}).get("metrics") or {}).get(metric) or {} for run in runs]
        if any(quantile in (each.get("below_floor") or []) for each in found):
            short.append(f"{name} (at least {min(int(each.get('n') or 0) for each in found)})")
    if not short:
        return []
    text = f"quantiles that rest on too few samples of a run: {shorten(short)}"
    return [code("gate.floor", WARN, text, "p95 needs 130 samples, p99 662, p99.9 6,636: take longer runs")]
