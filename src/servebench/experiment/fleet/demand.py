"""How much is asked of a fleet: a peak rate, users, a daily shape, or a trace of arrivals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from servebench.errors import UsageError
from servebench.experiment.fleet.arithmetic import Line, plain

DAY = 24.0


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of the demand's shape.

    Attributes:
        start: hours since its beginning.
        hours: how long it lasts.
        rate: mean requests per second.
        peak: the highest requests per second in it; a fleet that follows the shape must carry that.
    """

    start: float
    hours: float
    rate: float
    peak: float

    def scaled(self, by: float) -> Step:
        return replace(self, rate=self.rate * by, peak=self.peak * by)


@dataclass(frozen=True, slots=True)
class Demand:
    """What the fleet must carry.

    Attributes:
        peak: requests per second.
        steps: the shape over time, consecutive; empty when only the peak is known.
        lines: how the peak was computed, where it was.
        assumptions: what had to be assumed, one sentence each.
    """

    peak: float
    steps: tuple[Step, ...] = ()
    lines: tuple[Line, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def hours(self) -> float:
        """How long the shape lasts; 0 without one."""
        return sum(step.hours for step in self.steps)

    @property
    def mean(self) -> float | None:
        """Mean requests per second over the shape; None without one."""
        return sum(s.rate * s.hours for s in self.steps) / self.hours if self.steps else None

    @property
    def day_factor(self) -> float:
        """By which sums over the shape become those of a day."""
        return DAY / self.hours


def of_peak(peak: float) -> Demand:
    """A demand of which only the peak is known, in requests per second; UsageError unless it is positive and finite."""
    if not 0 < peak < math.inf:
        raise UsageError(f"the peak rate must be positive and finite, not {plain(peak)} /s")
    return Demand(peak)


def of_users(users: int, per_user: float) -> Demand:
    """`users` that are active at the same time, each asking `per_user` times a second."""
    line = Line("peak rate", f"{plain(users)} users × {plain(per_user)} /s", users * per_user, "/s")
    said = (
        f"At the peak {plain(users)} users are active at the same time, each asking {plain(per_user)} times a second."
    )
    return replace(of_peak(line.value), lines=(line,), assumptions=(said,))


def of_shape(steps: Sequence[Step], source: str) -> Demand:
    """A demand by its shape; `source` says where that is from, for the list of assumptions."""
    peak = max((step.peak for step in steps), default=0.0)
    hours = sum(step.hours for step in steps)
    said = [f"The demand's shape is that of {source}."]
    if abs(hours - DAY) > 0.01:
        said.append(f"It covers {plain(hours)} hours; every day is taken to look like that, scaled to 24 hours.")
    return replace(of_peak(peak), steps=tuple(steps), assumptions=tuple(said))


def scaled_to(demand: Demand, shape: Demand) -> Demand:
    """`demand` spread over time as `shape` is: the shape's highest step becomes the demand's peak."""
    by = demand.peak / shape.peak
    said = f"The shape is scaled by {plain(by)}, so that its highest point is the peak of {plain(demand.peak)} /s."
    return Demand(
        peak=demand.peak,
        steps=tuple(step.scaled(by) for step in shape.steps),
        lines=demand.lines,
        assumptions=(*demand.assumptions, *shape.assumptions, said),
    )
