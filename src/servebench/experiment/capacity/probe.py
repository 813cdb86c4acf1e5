"""The judge of a probe: whether the runs at one rate keep the SLO, miss it, or cannot tell yet.

The unit of replication is the run, and there are few. So the variance of an attainment combines what the runs differ by
with what their blocks of time say, which is more but knows nothing of correlation longer than a block; and the sample
is never taken for larger than the number of independent requests that its tail is worth. Simulated on M/G/1 queues of
0.5, 0.8 and 0.9 utilisation at a rate that reaches its target exactly, 200 to 5,000 requests a run and 1 to 6 runs,
with 2.5 % allowed: 0 to 7 % pass and 0 to 7 % fail (9 % in one of 72 cases). It errs towards "undecided".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servebench.analysis.quantiles import Quantile
from servebench.experiment.capacity.search import Decision

Summary = Mapping[str, Any]

SETTLING = 8.0  # independent samples that the estimate of their number costs: short series look less correlated
BLOCK_WEIGHT = 2.0  # runs that the blocks of all runs together count for, beside the runs themselves
DEGREES = 5  # of freedom that the blocks add to those of the runs
CLEAR_LEVEL = 0.001  # a single run decides alone only below this chance of error
CLEAR_GROWTH = 3.0  # or with a backlog that grows so many times its limit
CLEAR_MARGIN = 0.5  # and without a miss in several runs, a largest value below this share of the limit is a pass
FAILED_LIMIT = 0.01
LIKELY_Z, GROWING_Z = 1.3, 3.0  # of the trends of all runs together: below, they may be chance; above, they are not
FEW = 5.0  # requests that pile up in a run are no backlog, however few were offered
# A server that carries just what comes piles up about half of the root of it, by chance and with as much spread. Less
# than WALK roots, by an upper limit that errs in STEADY_LEVEL, is steady. The spread is that of the runs together with
# what servers with room to spare showed, which counts for USUAL_RUNS runs. In virtual time, 4 runs of 2,000 requests:
# 6 % below what the server carries 10 of 12 probes pass, at it none of 12, and 4 % above it 12 of 12 fail.
WALK, STEADY_LEVEL = 0.4, 0.05
USUAL_SPREAD, USUAL_RUNS = 0.2, 3
BY_SERVER = ("server.failures", "server.unfinished")  # an INVALID run's codes that tell of the server, not of the tool
BY_CAP = ("load.rate", "load.gaps")  # likewise where the load drops what finds every slot taken: that is a miss
CAPPED = "load.max_in_flight"  # the code of a run with such a cap


@dataclass(frozen=True, slots=True)
class Rules:
    """How a probe is judged.

    Attributes:
        level: chance of a wrong pass, and of a wrong fail, at each look.
        growth: share of the offered requests that may pile up in the measured window.
    """

    level: float
    growth: float = 0.02


@dataclass(frozen=True, slots=True)
class Share:
    """A share of what was offered, over several runs, with its interval.

    Attributes:
        value: of all runs together; None when nothing was offered.
        low, high: one-sided limits, each wrong with the chance that the rules allow.
        target: what it is held against.
    """

    value: float | None
    low: float | None
    high: float | None
    target: float
    decision: Decision

    @property
    def lack(self) -> float:
        """How far the value is from its target, in allowed misses; above 0 misses it."""
        return math.inf if self.value is None else (self.target - self.value) / (1 - self.target)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Whether requests pile up.

    Attributes:
        growth: of the requests in flight over the measured window, as a share of those offered; mean of the runs.
        piled: the same in requests a run.
        walk: upper limit of the growth in requests, over the root of those offered.
        room: of `walk`.
        z: of the Mann-Kendall tests of all runs together (Stouffer).
        limit: of the growth.
    """

    growth: float
    piled: float
    walk: float
    room: float
    z: float
    limit: float

    @property
    def lack(self) -> float:
        """How far the growth is beyond its limit, in limits; above 0 is beyond it and not merely by chance."""
        beyond = self.growth / self.limit - 1
        return beyond if self.piled > FEW and self.z >= LIKELY_Z else min(beyond, 0.0)

    @property
    def decision(self) -> Decision:
        """Fail when it grows beyond doubt, pass when it is steady beyond doubt."""
        if self.lack > 0 and self.z > GROWING_Z:
            return Decision.FAIL
        return Decision.PASS if self.walk <= self.room else Decision.UNDECIDED


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the runs at a rate say.

    Attributes:
        decision: pass when everything passes, fail when anything fails.
        leans_pass: whether everything does at face value.
        binding: of what decided so (failed, or could not be decided) the nearest to its limit or the farthest beyond:
            an objective such as ``ttft p95``, "backlog" or "failures".
        reason: in words.
        attainment: by objective.
    """

    decision: Decision
    leans_pass: bool
    binding: str
    reason: str
    attainment: dict[str, Share]
    backlog: Backlog
    failures: Share


def unusable(summary: Summary) -> str | None:
    """Why a run says nothing of the server: the tool or the machine was the limit; None when it does say something."""
    codes = (summary.get("verdict") or {}).get("codes") or []
    capped = any(code["code"] == CAPPED for code in codes)
    excused = (*BY_SERVER, *BY_CAP) if capped else BY_SERVER
    failed = [code for code in codes if code["level"] == "fail" and code["code"] not in excused]
    return f"{failed[0]['code']}: {failed[0]['text']}" if failed else None


def judge(runs: Sequence[Summary], rules: Rules) -> Judgement:
    """Judge the summaries of at least one usable run of a scenario with an SLO, all at one rate."""
    names = objectives(runs[0])
    attainment = {name: _attainment(runs, name, rules.level, len(names)) for name in names}
    failures, backlog = _failures(runs, rules.level), _backlog(runs, rules.growth)
    parts: dict[str, Share | Backlog] = {**attainment, "backlog": backlog, "failures": failures}
    decision = _together(part.decision for part in parts.values())
    suspects = {name: part for name, part in parts.items() if part.decision is decision}
    binding = max(suspects, key=lambda name: suspects[name].lack)
    return Judgement(
        decision=decision,
        leans_pass=all(part.lack <= 0 for part in parts.values()),
        binding=binding,
        reason=_words(binding, parts[binding], decision),
        attainment=attainment,
        backlog=backlog,
        failures=failures,
    )


def overloaded(run: Summary, rules: Rules) -> bool:
    """Whether a single run shows so clear a failure that no other is needed."""
    return judge([run], Rules(CLEAR_LEVEL, CLEAR_GROWTH * rules.growth)).decision is Decision.FAIL


def objectives(summary: Summary) -> dict[str, float]:
    """The limits in ms of a run's objectives by name, ``ttft p95``, in their order; of two alike the stricter."""
    limits: dict[str, float] = {}
    for objective in summary["slo"]["objectives"]:
        name = _name(objective)
        limits[name] = min(objective["limit"], limits.get(name, math.inf))
    return limits


def target_of(name: str) -> float:
    """The share that must keep to an objective: of ``ttft p95`` 0.95."""
    return float(Quantile.parse(name.split()[1]).share)


def _name(objective: Mapping[str, Any]) -> str:
    return f"{objective['metric']} {Quantile.parse(objective['quantile']).label}"


def _together(decisions: Iterable[Decision]) -> Decision:
    found = set(decisions)
    if Decision.FAIL in found:
        return Decision.FAIL
    return Decision.PASS if found == {Decision.PASS} else Decision.UNDECIDED


def _attainment(runs: Sequence[Summary], name: str, level: float, objectives_in_all: int) -> Share:
    """Passing needs every objective, so each may err by `level`; failing needs one, so they share it."""
    found = [_strictest(run, name) for run in runs]
    parts = [Part(**{key: each["attainment"][key] for key in ("within", "of", "error", "effective")}) for each in found]
    share = judge_share(parts, target_of(name), level, level / objectives_in_all)
    if len(runs) > 1 and share.decision is not Decision.FAIL and _far_inside(runs, found):
        return replace(share, decision=Decision.PASS)
    return share


def _strictest(run: Summary, name: str) -> Mapping[str, Any]:
    mine: list[Mapping[str, Any]] = [each for each in run["slo"]["objectives"] if _name(each) == name]
    return min(mine, key=lambda each: float(each["limit"]))


def _far_inside(runs: Sequence[Summary], found: Sequence[Mapping[str, Any]]) -> bool:
    """Nothing was late, and even the largest value stayed far below the limit."""
    for run, each in zip(runs, found, strict=True):
        kept, largest = each["attainment"], run["metrics"][each["metric"]]["max"]
        if kept["within"] < kept["of"] or largest is None or largest > CLEAR_MARGIN * each["limit"]:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Part:
    """A share in one run: see `analysis.attainment.Attained`."""

    within: int
    of: int
    error: float | None
    effective: float | None


def judge_share(parts: Sequence[Part], target: float, pass_level: float, fail_level: float) -> Share:
    """Hold the share of several runs against a target.

    Wilson's score limits with an effective number of samples and Student's quantile in the place of the normal one.
    """
    of = sum(part.of for part in parts)
    if not of:
        return Share(None, None, None, target, Decision.UNDECIDED)
    value = sum(part.within for part in parts) / of
    size = _independent(parts, value, of)
    low = _score_limit(value, size, -_student(pass_level, len(parts)))
    high = _score_limit(value, size, _student(fail_level, len(parts)))
    decision = Decision.PASS if low >= target else Decision.FAIL if high < target else Decision.UNDECIDED
    return Share(value, low, high, target, decision)


def _independent(parts: Sequence[Part], value: float, of: int) -> float:
    """How many independent samples the parts are worth together; never none."""
    most, variance = sum(_worth(part) for part in parts), _variance(parts, value, of)
    return min(most, value * (1 - value) / variance) if variance > 0 and 0 < value < 1 else most


def _worth(part: Part) -> float:
    effective = part.of if part.effective is None else min(part.effective, part.of)
    return max(effective - SETTLING, effective / 10, 0.1)


def _variance(parts: Sequence[Part], value: float, of: int) -> float:
    """Of the value: by the blocks inside the runs, or by these and the runs together where that is more."""
    inside = sum((part.of * (part.error or 0.0)) ** 2 for part in parts) / of**2
    runs = len(parts)
    if runs == 1:
        return inside
    between = runs / (runs - 1) * sum((part.within - value * part.of) ** 2 for part in parts) / of**2
    return max(inside, ((runs - 1) * between + BLOCK_WEIGHT * inside) / (runs - 1 + BLOCK_WEIGHT))


def _student(level: float, runs: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(runs + DEGREES, 1 - level))


def _score_limit(value: float, size: float, t: float) -> float:
    """Wilson 1927: the share at which `value` would lie |t| standard errors away, above for t > 0."""
    centre = value + t * t / (2 * size)
    half = t * math.sqrt(value * (1 - value) / size + t * t / (4 * size * size))
    return min(max((centre + half) / (1 + t * t / size), 0.0), 1.0)


def _failures(runs: Sequence[Summary], level: float) -> Share:
    """Requests that did not end well miss every objective anyway; beyond a limit they fail the probe by themselves.

    That there are few of them need not be proven.
    """
    parts = [Part(run["cohort"]["ok"], run["cohort"]["planned"], None, None) for run in runs]
    share = judge_share(parts, 1 - FAILED_LIMIT, level, level)
    if share.decision is Decision.UNDECIDED and share.lack <= 0:
        return replace(share, decision=Decision.PASS)
    return share


def _backlog(runs: Sequence[Summary], limit: float) -> Backlog:
    """Whether the requests in flight grow over the measured window.

    Growth is Theil-Sen's trend of the window, as a share of the offered requests: under overload, by how much the rate
    exceeds what the server carries.
    """
    found = [_trend(run) for run in runs]
    offered = [max(run["cohort"]["planned"], 1) for run in runs]
    piled = sum(each for each, _ in found)
    return Backlog(
        growth=piled / sum(offered),
        piled=piled / len(runs),
        walk=_upper_mean([each / math.sqrt(n) for (each, _), n in zip(found, offered, strict=True)]),
        room=max(WALK, FEW / math.sqrt(min(offered))),
        z=sum(each for _, each in found) / math.sqrt(len(runs)),
        limit=limit,
    )


def _upper_mean(walks: Sequence[float]) -> float:
    """Student's upper limit of the mean over runs."""
    from scipy.special import stdtrit

    mean, runs = sum(walks) / len(walks), len(walks)
    degrees = runs - 1 + USUAL_RUNS
    spread = (sum((walk - mean) ** 2 for walk in walks) + USUAL_RUNS * USUAL_SPREAD**2) / degrees
    return mean + float(stdtrit(degrees, 1 - STEADY_LEVEL)) * math.sqrt(spread / runs)


def _trend(run: Summary) -> tuple[float, float]:
    """(requests that piled up, z) of a run; where no level can be told from none, nothing grows."""
    drift: Mapping[str, Any] = next((d for d in run["stationarity"] if d["name"] == "in flight"), {})
    change, z, level = drift.get("change"), drift.get("z"), run["concurrency"]["total"]["window_mean"]
    return (0.0, 0.0) if change is None or z is None or not level else (change * level, z)


def _words(binding: str, part: Share | Backlog, decision: Decision) -> str:
    """What binds, in a sentence."""
    if isinstance(part, Backlog):
        grown = f"{100 * part.growth:.1f} % of the offered requests piled up"
        if part.lack > 0:
            return f"{grown}, limit {100 * part.limit:g} %"
        if decision is Decision.UNDECIDED:
            return f"{grown}: too little is known to rule out a backlog"
        return f"{grown}: no growth beyond chance"
    if part.value is None:
        return f"{binding}: nothing was measured"
    what = "ended well" if binding == "failures" else f"kept to {binding}"
    told = f"{_percent(part.value)} {what}, target {_percent(part.target)}"
    unsure = f" (could be {_percent(part.low)} to {_percent(part.high)})" if decision is Decision.UNDECIDED else ""
    return told + unsure


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.4g} %"
