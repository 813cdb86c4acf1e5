"""Permutation tests of two arms, paired and not, and the intervals that go with them.

Both tests ask the same question: how often would a rearrangement that is as likely as the one seen, if the arms were
equal, give a mean difference at least as large? The sign of each paired difference could as well be the other one; each
run could as well belong to the other arm. Every rearrangement has one *shift*: the true difference at which it would
look exactly like what was seen. (Paired, flipping a subset of signs: the subset's mean, Hartigan 1969. Unpaired,
exchanging k runs of either arm: the difference of the exchanged runs' means.) So the rank of a supposed difference
among the shifts is its p, and the k-th shift from either end is the limit of the interval: test and interval agree.

p is twice the smaller tail, so that "better" and "worse" are each claimed wrongly in at most half of the cases; for
pairs and for arms of equal size that is the two-sided test of the absolute mean difference. All rearrangements are
taken where there are at most `MOST`, else so many at random, with a fixed seed; what was seen counts as one of them,
which keeps p honest at any number of draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations

import numpy as np
from numpy.typing import ArrayLike

from servebench.analysis.stats.inputs import Floats, between, numbers, rows_of
from servebench.analysis.stats.interval import Interval

MOST = 2**16  # rearrangements: all of 16 pairs, or of 9 + 9 runs
SEED = 20261130
ROUNDING = 1e-12  # relative to the largest value: a smaller shift is none, so that ties stay ties
CHUNK = 2**22  # shifts held at once


@dataclass(frozen=True, slots=True)
class Test:
    """Outcome of a two-sided test.

    Attributes:
        p: chance of so large a difference, either way, if the arms were equal.
        least_p: smallest p that this design could ever give; above the level, the test cannot find anything.
        exact: all rearrangements were counted, not a random sample of them.
        n: pairs, or runs of both arms together.
    """

    p: float
    least_p: float
    exact: bool
    n: int


def sign_flip(differences: ArrayLike) -> Test:
    """Two-sided sign-flip test that paired differences have the mean 0; raises ValueError without any, or for NaN.

    It supposes that under equality a difference is as likely as its negative, which pairs in random order give.
    """
    d = numbers(differences, "differences")
    return Test(float(sign_flip_p(d)), least_p_paired(d.size), _subsets(d.size, MOST).exact, d.size)


def sign_flip_p(differences: ArrayLike, most: int = MOST) -> Floats:
    """p of many sign-flip tests at once: (..., pairs) → (...), from at most `most` rearrangements each."""
    d = rows_of(differences, "differences")
    subsets = _subsets(d.shape[-1], most)
    rows = d.reshape(-1, d.shape[-1])
    return _tails(rows, subsets, lambda part: part @ subsets.members.T / subsets.sizes).reshape(d.shape[:-1])


def sign_flip_interval(differences: ArrayLike, confidence: float = 0.95) -> Interval:
    """Interval of the mean paired difference: all values that `sign_flip` would not reject."""
    d = numbers(differences, "differences")
    subsets = _subsets(d.size, MOST)
    return _limits(subsets.members @ d / subsets.sizes, confidence)


def two_sample(a: ArrayLike, b: ArrayLike) -> Test:
    """Two-sided permutation test that two sets of runs have the same mean; raises ValueError for an empty set, or NaN.

    It supposes that under equality the sets have the same law; sets of unequal size and spread need care.
    """
    a, b = numbers(a, "first arm"), numbers(b, "second arm")
    p = float(two_sample_p(a, b))
    return Test(p, least_p_unpaired(a.size, b.size), _exchanges(a.size, b.size, MOST).exact, a.size + b.size)


def two_sample_p(a: ArrayLike, b: ArrayLike, most: int = MOST) -> Floats:
    """p of many two-sample tests at once: (..., n) and (..., m) → (...), from at most `most` rearrangements each."""
    a, b = rows_of(a, "first arm"), rows_of(b, "second arm")
    exchanges, runs = _exchanges(a.shape[-1], b.shape[-1], most), a.shape[-1] + b.shape[-1]
    rows = _centred(np.concatenate([a, b], axis=-1).reshape(-1, runs))
    return _tails(rows, exchanges, lambda part: _exchanged(part, b.shape[-1], exchanges)).reshape(a.shape[:-1])


def two_sample_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Interval:
    """Interval of the difference of means, b − a: all values that `two_sample` would not reject."""
    a, b = numbers(a, "first arm"), numbers(b, "second arm")
    pooled = _centred(np.concatenate([a, b])[None, :])
    return _limits(_exchanged(pooled, b.size, _exchanges(a.size, b.size, MOST))[0], confidence)


def least_p_paired(pairs: int) -> float:
    """Smallest two-sided p of so many pairs: 2 of 2^pairs rearrangements."""
    return max(2.0 ** (1 - pairs), 2 / MOST)


def least_p_unpaired(n: int, m: int) -> float:
    """Smallest two-sided p of n + m runs: 2 of C(n + m, n) rearrangements."""
    return max(min(1.0, 2 / math.comb(n + m, n)), 2 / MOST)


def pairs_that_reach(alpha: float, tests: int = 1) -> int:
    """Fewest pairs whose p can be `alpha` or less after Holm's correction for so many tests; 6 for 5 %."""
    level = _level(alpha, tests)
    return next(n for n in range(1, MOST) if least_p_paired(n) <= level)


def runs_that_reach(alpha: float, tests: int = 1) -> int:
    """Fewest runs in each of two arms whose p can be `alpha` or less after Holm's correction; 4 for 5 %."""
    level = _level(alpha, tests)
    return next(n for n in range(1, MOST) if least_p_unpaired(n, n) <= level)


def _level(alpha: float, tests: int) -> float:
    level = between(alpha, "alpha") / tests
    if level < 2 / MOST:
        raise ValueError(f"a level of {level:g} is below the smallest p of {MOST} rearrangements")
    return level


@dataclass(frozen=True, slots=True)
class _Rearrangements:
    """All but the one that was seen.

    Attributes:
        members: (rearrangements, values), 1 where a sign is flipped, or where a run is in the second arm.
        sizes: (rearrangements,), how many signs are flipped, or runs of either arm exchanged; never 0.
        exact: these are all there are.
    """

    members: Floats
    sizes: Floats
    exact: bool


@lru_cache(maxsize=4)
def _subsets(pairs: int, most: int) -> _Rearrangements:
    exact = 2**pairs <= most
    if exact:
        members = (np.arange(1, 2**pairs)[:, None] >> np.arange(pairs)) & 1
    else:
        members = np.random.Generator(np.random.PCG64(SEED)).integers(2, size=(most - 1, pairs))
    return _without_what_was_seen(members.astype(np.float64), members.sum(axis=1), exact)


@lru_cache(maxsize=4)
def _exchanges(n: int, m: int, most: int) -> _Rearrangements:
    members, exact = divisions(n, m, most)
    return _without_what_was_seen(members, members[:, :n].sum(axis=1), exact)


def divisions(n: int, m: int, most: int = MOST) -> tuple[Floats, bool]:
    """The ways to divide n + m runs into a first and a second arm.

    Returns:
        (divisions, n + m): 1 where a run is in the second arm. All of them, what was seen (the last m) included, where
        there are at most `most`; else `most` − 1 at random.
        Whether these are all.
    """
    count = math.comb(n + m, m)
    if count > most:
        seen = np.repeat([0.0, 1.0], [n, m])
        return np.random.Generator(np.random.PCG64(SEED)).permuted(np.tile(seen, (most - 1, 1)), axis=1), False
    second = np.fromiter(chain.from_iterable(combinations(range(n + m), m)), np.int64, count * m).reshape(count, m)
    members = np.zeros((count, n + m))
    np.put_along_axis(members, second, 1.0, axis=1)
    return members, True


def _without_what_was_seen(members: Floats, sizes: Floats, exact: bool) -> _Rearrangements:
    changed = sizes > 0
    found = _Rearrangements(members[changed], sizes[changed].astype(np.float64), exact)
    found.members.flags.writeable = found.sizes.flags.writeable = False  # the cache hands it to everyone
    return found


def _exchanged(pooled: Floats, m: int, exchanges: _Rearrangements) -> Floats:
    """Shifts of (rows, n + m) values whose last m are the second arm: (rows, rearrangements)."""
    second = pooled[:, -m:].sum(axis=1, keepdims=True)
    shifts: Floats = (second - pooled @ exchanges.members.T) / exchanges.sizes
    return shifts


def _centred(rows: Floats) -> Floats:
    """Rows about their means: sums of equally many values differ by the same, with less rounding."""
    centred: Floats = rows - rows.mean(axis=1, keepdims=True)
    return centred


def _tails(rows: Floats, among: _Rearrangements, shifts: Callable[[Floats], Floats]) -> Floats:
    """p of each row: twice the share of rearrangements, with what was seen, whose shift lies beyond 0 on one side."""
    p = np.empty(len(rows))
    step = max(1, CHUNK // among.sizes.size)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        found, nothing = shifts(part), ROUNDING * np.abs(part).max(axis=1, keepdims=True)
        smaller = np.minimum((found <= nothing).sum(axis=1), (found >= -nothing).sum(axis=1))
        p[start : start + step] = np.minimum(1.0, 2 * (1 + smaller) / (1 + among.sizes.size))
    return p


def _limits(shifts: Floats, confidence: float) -> Interval:
    """The k-th shifts from both ends, k as large as the confidence allows."""
    total = shifts.size + 1
    k = int((1 - between(confidence, "confidence")) / 2 * total + ROUNDING * total)
    if k < 1:
        return Interval(None, None, 1 - 2 / total)
    ordered = np.partition(shifts, [k - 1, shifts.size - k])
    return Interval(float(ordered[k - 1]), float(ordered[-k]), 1 - 2 * k / total)
