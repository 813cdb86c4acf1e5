"""May two sets of runs be compared at all? Each reason why not is a refusal, which `--force` turns into a doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.experiment.cell import Outcome
from servebench.experiment.comparison.differences import differences, is_profiled
from servebench.experiment.comparison.sides import is_simulated, plan_hash, why_unusable
from servebench.experiment.findings import brief, shorten

# What is sent and when. Names, seeds, time limits and objectives are not: they are listed as differences.
WORKLOAD = ("workload", "load", "endpoint.api", "endpoint.stream", "endpoint.extra_body")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why runs must not be compared.

    Attributes:
        code: such as "runs.invalid".
        text: what differs, by name.
        next: what to do about it.
    """

    code: str
    text: str
    next: str


def comparable(a: Sequence[Outcome], b: Sequence[Outcome]) -> list[Refusal]:
    """Every reason why the runs of `a` and `b` must not be compared; none when they may."""
    return [*_invalid([*a, *b]), *_simulated(a, b), *_models(a, b), *_profiled([*a, *b]), *_workload([*a, *b])]


def _invalid(runs: Sequence[Outcome]) -> Iterator[Refusal]:
    bad = [f"{run.path} is {reason}" for run in runs if (reason := why_unusable(run)) is not None]
    if bad:
        yield Refusal("runs.invalid", shorten(bad), "leave these runs out, or repeat them")


def _simulated(a: Sequence[Outcome], b: Sequence[Outcome]) -> Iterator[Refusal]:
    if text := _mixture(a, b, is_simulated, "simulated", "real"):
        yield Refusal("runs.simulated", text, "compare like with like")


def _profiled(runs: Sequence[Outcome]) -> Iterator[Refusal]:
    """Even two profiled runs: how much a profiler slows a server depends on what the server does."""
    found = [str(run.path) for run in runs if is_profiled(run.manifest or {})]
    if found:
        text = f"a profiler was attached to the server of {shorten(found)}: what it costs is not the same for any two"
        yield Refusal("runs.profiled", text, "compare runs without a profiler")


def _mixture(
    a: Sequence[Outcome], b: Sequence[Outcome], is_one: Callable[[Outcome], bool], yes: str, no: str
) -> str | None:
    """What is held against what, when not all runs are of one kind."""
    ours, theirs = ({is_one(run) for run in runs} for runs in (a, b))
    if len(ours | theirs) < 2:
        return None
    words = ["mixed" if len(kinds) > 1 else yes if True in kinds else no for kinds in (ours, theirs)]
    return f"{words[0]} against {words[1]} runs"


def _models(a: Sequence[Outcome], b: Sequence[Outcome]) -> Iterator[Refusal]:
    ours, theirs = ({str(_model(run)) for run in runs} for runs in (a, b))
    if ours != theirs:
        text = f"the models differ: {', '.join(sorted(ours))} against {', '.join(sorted(theirs))}"
        yield Refusal("runs.model", text, "another model is another product: compare runs of one")


def _model(run: Outcome) -> Any:
    document: Mapping[str, Any] = run.manifest or run.summary or {}
    return (document.get("endpoint") or {}).get("model")


def _workload(runs: Sequence[Outcome]) -> Iterator[Refusal]:
    """All runs must have been sent the same, up to seeds."""
    first, *others = runs
    found = {
        each.key: f"{each.key} is {brief(each.a)} in {first.path.name} and {brief(each.b)} in {other.path.name}"
        for other in others
        for each in differences(first.manifest or {}, other.manifest or {})
        if any(each.key == key or each.key.startswith(f"{key}.") for key in WORKLOAD)
    }
    if found:
        what = shorten(found.values())
        yield Refusal("runs.workload", f"the workloads differ: {what}", "compare runs of one workload")
    else:
        yield from _plans(runs)


def _plans(runs: Sequence[Outcome]) -> Iterator[Refusal]:
    """The same seeds must have made the same plan, or something besides the scenario went into it."""
    seen: dict[str, Outcome] = {}
    for run in runs:
        seeds = ((run.summary or {}).get("plan") or {}).get("seeds")
        other = seen.setdefault(str(seeds), run)
        if seeds is not None and plan_hash(other) != plan_hash(run):
            text = f"{other.path.name} and {run.path.name} have the same scenario and seeds, and different plans"
            yield Refusal("runs.plan", text, "compare runs of one version of servebench and of one trace")
            return
