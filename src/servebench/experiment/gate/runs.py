"""The two sides of a gate: which runs count, and whether they were asked the same of the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.errors import UsageError
from servebench.experiment.cell import Outcome
from servebench.experiment.comparison.checks import doubts
from servebench.experiment.comparison.comparable import comparable
from servebench.experiment.comparison.differences import MACHINE, OBSERVED, Difference, differences
from servebench.experiment.comparison.run_sets import load_runs
from servebench.experiment.comparison.sides import why_unusable
from servebench.experiment.figures import family_of
from servebench.experiment.findings import FAIL, OK, WARN, Code, brief, code, shorten

# Figures of the middle of their distributions move little from run to run, so they show a small regression.
CENTRAL = ("ttft.p50", "itl.mean", "e2e.mean")


@dataclass(frozen=True, slots=True)
class Sides:
    """Baseline and candidate, ready to be judged.

    Attributes:
        base, cand: runs that count.
        left_out: INVALID baseline runs, with the reason of each.
        codes: what was found; a failed one refuses the comparison.
        differences: what differs between the two, besides what follows from it.
    """

    base: Sequence[Outcome]
    cand: Sequence[Outcome]
    left_out: Sequence[tuple[Outcome, str]]
    codes: Sequence[Code]
    differences: Sequence[dict[str, Any]]

    @property
    def refused(self) -> bool:
        return any(each["level"] == FAIL for each in self.codes)

    @property
    def scenario(self) -> Mapping[str, Any]:
        """Of the candidate, as resolved."""
        return (self.cand[0].manifest or {}).get("scenario") or {}

    @property
    def name(self) -> str:
        """Of the candidate's scenario."""
        return str((self.cand[0].summary or {}).get("name") or "unnamed")

    @property
    def created_ns(self) -> int | None:
        """When the candidate's first run began."""
        return (self.cand[0].manifest or {}).get("created_ns")

    def listed(self) -> dict[str, Any]:
        """Their paths, as they were given."""
        return {
            "baseline": [str(run.path) for run in self.base],
            "candidate": [str(run.path) for run in self.cand],
            "left_out": [{"path": str(run.path), "reason": reason} for run, reason in self.left_out],
        }


def load_all(given: Sequence[str]) -> list[Outcome]:
    """The runs of several sets as `load_runs` reads them, each run once; cells that failed come along, without figures.

    Raises:
        UsageError: a set cannot be read or holds no run.
    """
    found: dict[Any, Outcome] = {}
    for each in given:
        runs = load_runs(each)
        for run in (*runs.runs, *runs.lost):
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def default_figures(scenario: Mapping[str, Any]) -> tuple[str, ...]:
    """What a gate checks when no limits are given: the scenario's objectives, and figures that move little."""
    return tuple(dict.fromkeys([*family_of(scenario, None), *CENTRAL]))


def sides_of(candidate: Sequence[Outcome], baseline: Sequence[Outcome]) -> Sides:
    """Both sides, what speaks against comparing them, and what differs.

    An INVALID baseline run is left out, since baselines are kept for long; an INVALID candidate run refuses the gate.

    Raises:
        UsageError: a run is on both sides.
    """
    _check_apart(candidate, baseline)
    left_out = [(run, why) for run in baseline if (why := why_unusable(run)) is not None]
    base = [run for run in baseline if why_unusable(run) is None]
    found = differences(base[0].manifest or {}, candidate[0].manifest or {}) if base else []
    codes = [*_left_out(left_out, base), *_refusals(candidate, base), *_machine(found), *_doubts(candidate, base)]
    codes += [*_mixed("baseline", base), *_mixed("candidate", candidate)]
    shown = [
        {"key": each.key, "base": each.a, "cand": each.b, "kind": each.kind} for each in found if each.kind != OBSERVED
    ]
    return Sides(base, candidate, left_out, codes, shown)


def _check_apart(candidate: Sequence[Outcome], baseline: Sequence[Outcome]) -> None:
    there = {run.path.resolve() for run in baseline}
    twice = next((run for run in candidate if run.path.resolve() in there), None)
    if twice is not None:
        raise UsageError(f"{twice.path} is a candidate and in the baseline; give --baseline a folder, not a pattern")


def _left_out(left_out: Sequence[tuple[Outcome, str]], base: Sequence[Outcome]) -> list[Code]:
    if not left_out:
        return []
    why = shorten(f"{run.path}: {reason}" for run, reason in left_out)
    level, text = (WARN, "left out") if base else (FAIL, "all there are")
    return [code("baseline.invalid", level, f"{len(left_out)} baseline runs, {text}: {why}", "make these runs anew")]


def _refusals(candidate: Sequence[Outcome], base: Sequence[Outcome]) -> list[Code]:
    """Why the candidate cannot be compared with what is left of the baseline."""
    if not base:
        return []
    found = comparable(base, candidate)
    if not found:
        return [code("runs.alike", OK, "all runs have one workload and one model")]
    return [code(each.code, FAIL, each.text, each.next) for each in found]


def _machine(found: Sequence[Difference]) -> list[Code]:
    """Another machine has another speed, whatever the code does."""
    other = [each for each in found if each.kind == MACHINE]
    if not other:
        return []
    what = shorten(f"{each.key} ({brief(each.a)} and {brief(each.b)})" for each in other)
    text = f"baseline and candidate ran on different machines: {what}"
    return [code("runs.machine", WARN, text, "make a baseline on this machine")]


def _mixed(side: str, runs: Sequence[Outcome]) -> list[Code]:
    """Whether one side's runs are of one set-up; where a server was reached may change from run to run."""
    keys = {
        each.key
        for run in runs[1:]
        for each in differences(runs[0].manifest or {}, run.manifest or {})
        if each.sets and each.key != "endpoint.url"
    }
    if not keys:
        return []
    text = f"the {side}'s runs differ among themselves: {shorten(sorted(keys))}"
    return [code(f"{side}.mixed", WARN, text, "make all runs of a side in one go, with one set-up")]


def _doubts(candidate: Sequence[Outcome], base: Sequence[Outcome]) -> list[Code]:
    return [doubts([*base, *candidate])] if base else []
