"""Where to probe next: doubling, then bisection in the logarithm of the rate, to a bracket whose ends are decided.

A state machine without a state: `next_step` is a pure function of what is known of the rates so far, so a search that
was killed goes on where it was. Far from the answer a rate is believed by its first runs, however it leans, since a
wrong turn is found out later; only the ends of the bracket must be decided, and only there more runs are spent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MARGIN = 1 + 1e-9  # of comparisons of ratios
FUTILE = 2.0  # so many times beyond the first rate that could not be decided, others will not be either
ASIDE = 0.49  # of the precision, in the logarithm
ROUNDING = 5.0  # what half of the precision may be off, by the digits of the rates, as a part of the precision
DIGITS = 3  # of a rate; one more where rates lie closer than these tell apart
FINE_PRECISION = 0.04


class Decision(StrEnum):
    """What the runs at a rate say."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a rate.

    Attributes:
        rate: per second.
        decision: by its runs.
        leans_pass: whether what it reached, taken at face value, would do; of use while it is undecided.
        exhausted: whether it has had all the runs that a rate may have.
        confirmed: of a rate that passed, whether it did so again with seeds that the search had not seen.
        unconfirmable: none of the runs with such seeds could be used, nor would others be.
        blind: none of its runs could be used, nor would others be.
    """

    rate: float
    decision: Decision
    leans_pass: bool
    exhausted: bool = False
    confirmed: bool = False
    unconfirmable: bool = False
    blind: bool = False

    @property
    def holds(self) -> bool:
        """Pass, or leaning to it."""
        return self.decision is Decision.PASS or (self.decision is Decision.UNDECIDED and self.leans_pass)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the search may do.

    Attributes:
        first: the rate to begin with, per second.
        least: the lowest rate to try.
        most: the highest one; None for no limit.
        precision: the bracket's ends shall differ by no more than this share of the lower one.
    """

    first: float
    least: float
    most: float | None = None
    precision: float = 0.1


@dataclass(frozen=True, slots=True)
class Probe:
    """Next: a rate of which nothing is known yet."""

    rate: float


@dataclass(frozen=True, slots=True)
class More:
    """Next: more runs at a rate."""

    rate: float


@dataclass(frozen=True, slots=True)
class Confirm:
    """Next: runs with held-out seeds at a rate that passed."""

    rate: float


@dataclass(frozen=True, slots=True)
class Bracket:
    """The end of a search.

    Attributes:
        sustained: the highest rate that passed below all that failed; None when none did.
        failed: the lowest rate that failed; None when none did.
    """

    sustained: float | None
    failed: float | None

    @property
    def width(self) -> float | None:
        """By what share the upper end is above the lower one; None when one of them is open."""
        return self.failed / self.sustained - 1 if self.sustained is not None and self.failed is not None else None


Step = Probe | More | Confirm | Bracket


def next_step(bounds: Bounds, known: Sequence[Known]) -> Step:
    """What to do next, `known` having one entry a rate, in any order."""
    if not known:
        return Probe(bounds.first)
    rates = sorted(known, key=lambda item: item.rate)
    return _resolve(rates) or _explore(bounds, _agreeing(rates)) or _decide(bounds, _agreeing(rates))


def bracket(known: Sequence[Known]) -> Bracket:
    """What the rates known so far enclose: a rate that passes above one that fails counts for nothing."""
    failed = min((item.rate for item in known if item.decision is Decision.FAIL), default=None)
    passed = [item.rate for item in known if item.decision is Decision.PASS]
    below = [rate for rate in passed if failed is None or rate < failed]
    return Bracket(max(below, default=None), failed)


def _resolve(rates: Sequence[Known]) -> Step | None:
    """A rate that fails below one that passes: one of them is wrong, and both get more runs."""
    failed = bracket(rates).failed
    above = [item for item in rates if failed is not None and item.rate > failed and item.decision is Decision.PASS]
    if not above:
        return None
    lowest = next(item for item in rates if item.rate == failed)
    return next((More(item.rate) for item in (lowest, *above) if not item.exhausted), None)


def _agreeing(rates: Sequence[Known]) -> list[Known]:
    """The rates without the passes that a lower, exhausted failure contradicts."""
    failed = bracket(rates).failed
    return [r for r in rates if failed is None or r.rate <= failed or r.decision is not Decision.PASS]


def _explore(bounds: Bounds, rates: Sequence[Known]) -> Step | None:
    """Double until a rate does not hold, then halve the gap to the highest one below that does; at face value."""
    low, high = _turn(rates)
    if high is None:
        top = rates[-1].rate
        if bounds.most is not None and top * MARGIN >= bounds.most:
            return None
        return Probe(_tidy(2 * top, bounds) if bounds.most is None else min(_tidy(2 * top, bounds), bounds.most))
    if low is None:
        return None
    return Probe(_tidy(math.sqrt(low * high), bounds)) if high > low * (1 + bounds.precision) * MARGIN else None


def _turn(rates: Sequence[Known]) -> tuple[float | None, float | None]:
    """The neighbours between which rates stop holding: (highest that holds, lowest above that does not).

    What was decided overrules how the undecided lean: those below a pass hold, those above a failure do not.
    """
    found = bracket(rates)
    floor, ceiling = found.sustained or 0.0, found.failed or math.inf
    high = next((r.rate for r in rates if r.rate >= ceiling or (r.rate > floor and not r.holds)), None)
    low = max((r.rate for r in rates if high is None or r.rate < high), default=None)
    return low, high


def _decide(bounds: Bounds, rates: Sequence[Known]) -> Step:
    """Spend runs on the ends until both are decided, stepping away from a rate that cannot be; then confirm."""
    found = bracket(rates)
    if found.width is None or found.width > bounds.precision * MARGIN:
        step = _end(bounds, _outwards(rates, Decision.PASS), Decision.PASS)
        step = step or _descend(bounds, rates) or _end(bounds, _outwards(rates, Decision.FAIL), Decision.FAIL)
        if step is not None:
            return step
    passed = next((r for r in rates if r.rate == found.sustained), None)
    return found if passed is None or passed.confirmed or passed.unconfirmable else Confirm(passed.rate)


def _outwards(rates: Sequence[Known], wanted: Decision) -> list[Known]:
    """The rates on one side of the turn, from it outwards, after its other side where that is undecided for good."""
    low, high = _turn(rates)
    below = [r for r in reversed(rates) if low is not None and r.rate <= low]
    above = [r for r in rates if high is not None and r.rate >= high]
    mine, other = (below, above) if wanted is Decision.PASS else (above, below)
    hazy = [r for r in other[:1] if r.exhausted and r.decision is Decision.UNDECIDED and not r.blind]
    return [*hazy, *mine] if mine else []


def _end(bounds: Bounds, rates: Sequence[Known], wanted: Decision) -> Step | None:
    """What an end of the bracket needs; `rates` go outwards to it. None: it is decided, or cannot be any more."""
    edge: float | None = None  # the outermost rate that has had all its runs in vain
    for item in rates:
        if item.blind:
            return None
        if edge is not None and not _close(bounds, item.rate, edge):
            return Probe(_away(bounds, edge, wanted))
        if item.decision is wanted:
            return None
        if not item.exhausted:
            return More(item.rate)
        edge = item.rate
    outwards = None if edge is None else _away(bounds, edge, wanted)
    return Probe(outwards) if outwards is not None and _sensible(bounds, outwards, rates[0].rate) else None


def _sensible(bounds: Bounds, rate: float, start: float) -> bool:
    """Whether a step away from rates that could not be decided is allowed, and not yet futile."""
    return bounds.least <= rate <= (bounds.most or math.inf) and start / FUTILE <= rate <= start * FUTILE


def _descend(bounds: Bounds, rates: Sequence[Known]) -> Step | None:
    """If not even the lowest rate holds, make sure of it, then halve it as long as that is allowed."""
    lowest = rates[0]
    if _turn(rates)[0] is not None:
        return None
    if lowest.decision is Decision.UNDECIDED and not lowest.exhausted:
        return More(lowest.rate)
    half = max(_tidy(lowest.rate / 2, bounds), bounds.least)
    return Probe(half) if half * MARGIN < lowest.rate else None


def _close(bounds: Bounds, one: float, other: float) -> bool:
    """Whether nothing needs to be tried between two rates: they are about half of the precision apart, or less."""
    step = math.sqrt(1 + bounds.precision) * (1 + bounds.precision / ROUNDING)
    return max(one, other) <= min(one, other) * step


def _away(bounds: Bounds, edge: float, wanted: Decision) -> float:
    """A little less than half of the precision beside a rate that could not be decided: two such steps keep to it."""
    step = (1 + bounds.precision) ** ASIDE
    return _tidy(edge / step if wanted is Decision.PASS else edge * step, bounds, more=1)


def _tidy(rate: float, bounds: Bounds, more: int = 0) -> float:
    """A rate of few digits, as it is printed and named."""
    return float(f"{rate:.{DIGITS + (bounds.precision < FINE_PRECISION) + more}g}")
