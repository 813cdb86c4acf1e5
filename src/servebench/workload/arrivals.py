"""Due times of an open loop: renewal processes in operational time, mapped through the rate of each stage.

In operational time arrivals come at one a unit. A stage maps it to seconds through its cumulative rate, which for a
Poisson process gives exactly the inhomogeneous Poisson process of that rate (Çinlar's time change).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.scenario.load import Load, Stage

Floats = NDArray[np.float64]
Uniforms = Callable[[int], Floats]
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stage placed in time.

    Attributes:
        start: seconds after the start of the load.
        duration: seconds; infinite for the last stretch of a load that is bounded by a number of requests.
        rate, rate_end: per second, at its start and end, straight between them.
        cv: of the gaps.
    """

    start: float
    duration: float
    rate: float
    rate_end: float
    cv: float

    @property
    def expected(self) -> float:
        """Arrivals to expect: its length in operational time."""
        return FOREVER if self.duration == FOREVER else self.duration * (self.rate + self.rate_end) / 2

    def seconds(self, operational: Floats) -> Floats:
        """Seconds after `start` when the cumulative rate r·t + (r_end − r)·t²/(2·duration) reaches `operational`."""
        slope = 0.0 if self.rate == self.rate_end else (self.rate_end - self.rate) / self.duration
        if slope == 0:
            return operational / self.rate
        # Of the two forms of the root, the one that stays exact for a rate of 0 and a small slope.
        root = np.sqrt(np.maximum(0.0, self.rate**2 + 2 * slope * operational))
        bottom = self.rate + root
        return np.divide(2 * operational, bottom, out=np.zeros_like(operational), where=bottom > 0)


def stretches(load: Load) -> list[Stretch]:
    """Place the stages of an open loop in time.

    They fill the measured window. The warm-up before it holds the first stage's starting rate, and the cool-down after
    it, or whatever a number of requests still needs, the last stage's final one.
    """
    first, last = load.stages[0], load.stages[-1]
    placed = _hold(first, 0.0, load.warmup_s, first.rate)
    start = load.warmup_s
    for stage in load.stages:
        length = stage.duration if stage.duration is not None else _rest(load, start)
        placed.append(Stretch(start, length, stage.rate, stage.last_rate, stage.cv))
        start += length
    after = load.drain if load.requests is None else FOREVER
    return _merge([*placed, *(_hold(last, start, after, last.last_rate) if start < FOREVER else [])])


def _hold(stage: Stage, start: float, duration: float, rate: float) -> list[Stretch]:
    return [Stretch(start, duration, rate, rate, stage.cv)] if duration > 0 and rate > 0 else []


def _rest(load: Load, start: float) -> float:
    return FOREVER if load.duration is None else load.warmup_s + load.duration - start


def _merge(placed: Sequence[Stretch]) -> list[Stretch]:
    """Join neighbours of one steady law, so that its process runs on through the phases of the run."""
    merged: list[Stretch] = []
    for item in placed:
        last = merged[-1] if merged else None
        if last and last.rate == last.rate_end == item.rate == item.rate_end and last.cv == item.cv:
            merged[-1] = Stretch(last.start, last.duration + item.duration, item.rate, item.rate_end, item.cv)
        else:
            merged.append(item)
    return merged


def unit_arrivals(cv: float, uniforms: Uniforms, until: float, at_most: int | None) -> Floats:
    """Arrival times of a renewal process of rate 1, gamma gaps of the given CV (0: constant, 1: Poisson).

    Args:
        cv: standard deviation over mean of the gaps.
        uniforms: draws n uniforms; each call continues the stream.
        until: operational time at which to stop, exclusive.
        at_most: stop after so many. With it the process starts at an arrival, so that all n gaps are draws of the law.
            Without it it starts in equilibrium, so that every instant expects the same rate; from an arrival on, a
            bursty law (CV 13) would expect (CV² − 1)/2 = 84 arrivals too many.
    """
    if cv == 0:
        count = at_most if at_most is not None else int(np.ceil(until))
        times = np.arange(count, dtype=np.float64)
        return times[times < until]
    first = 0.0 if at_most is not None else _residual(cv, uniforms)
    pieces = [] if at_most is not None else [np.array([first])]
    reached, drawn = first, 0
    while reached < until and (at_most is None or drawn < at_most):
        size = _piece(until - reached, at_most, drawn)
        piece = reached + np.cumsum(_gaps(cv, uniforms(size)))
        pieces.append(piece)
        reached, drawn = float(piece[-1]), drawn + size
    times = np.concatenate(pieces) if pieces else np.empty(0)
    return times[times < until]


def _piece(remaining: float, at_most: int | None, drawn: int) -> int:
    """How many gaps to draw at a time: enough as a rule, so that one piece does."""
    if at_most is not None:
        return at_most - drawn
    return int(remaining + 6 * remaining**0.5) + 16


def _gaps(cv: float, uniforms: Floats) -> Floats:
    """Gaps of mean 1 at the given ranks."""
    if cv == 1:
        return -np.log1p(-uniforms)
    from scipy.special import gammaincinv

    shape = cv**-2
    return np.asarray(gammaincinv(shape, uniforms) / shape, dtype=np.float64)


def _residual(cv: float, uniforms: Uniforms) -> float:
    """Time from an arbitrary instant to the next arrival: a uniform share of a length-biased gap (gamma, shape + 1)."""
    if cv == 1:
        return float(_gaps(1.0, uniforms(1))[0])
    from scipy.special import gammaincinv

    shape = cv**-2
    share, rank = uniforms(2)
    return float(share * gammaincinv(shape + 1, rank) / shape)


def due_times(load: Load, uniforms_of: Callable[[int], Uniforms]) -> Floats:
    """Due times of an open loop in seconds after the start of the load, ascending.

    Args:
        load: with stages. Bounded by a duration, it is covered to the end of the drain; by a number, to that number.
        uniforms_of: the stream of uniforms of a stretch by its number, so that a stretch does not shift the next ones.
    """
    return np.concatenate(list(_pieces(load, uniforms_of)) or [np.empty(0)])


def _pieces(load: Load, uniforms_of: Callable[[int], Uniforms]) -> Iterator[Floats]:
    left = load.requests
    for number, stretch in enumerate(stretches(load)):
        operational = unit_arrivals(stretch.cv, uniforms_of(number), stretch.expected, left)
        yield stretch.start + stretch.seconds(operational)
        if left is not None:
            left -= operational.size
            if left == 0:
                return
