"""The family of tests: one chance of a false alarm for all of them together, most of it kept for the primary figure.

Holm's correction with weights. The primary (of every candidate) begins with seven tenths of the level, so that six
pairs, whose smallest p is 1/32, can decide it at 5 %; the secondaries share the rest. What is found leaves its share to
the others: once the primary is found, the secondaries have the whole level. Were the primary tested at the level and
the secondaries at the level once more, up to 9 % of A/A comparisons of two figures would find something (simulated,
M/G/1); so it is at most the level, however many figures there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from servebench.analysis.stats.holm import holm
from servebench.analysis.stats.permutation import Test, pairs_that_reach, runs_that_reach
from servebench.experiment.comparison.effect import PRIMARY, SECONDARY

PRIMARY_SHARE = 0.7

Key = tuple[str, str]  # candidate and figure


@dataclass(frozen=True, slots=True)
class Family:
    """The tests of an experiment after the correction.

    Attributes:
        counts: tests by role.
        adjusted: p after the correction; a test that so few runs can never decide is missing.
        levels: by role, the level at which a test of its kind stands, given which primaries were found.
    """

    counts: Mapping[str, int]
    adjusted: Mapping[Key, float]
    levels: Mapping[str, float]


def correct(tests: Mapping[Key, Test], roles: Mapping[Key, str], alpha: float) -> Family:
    """Correct the tests of an experiment, all candidates together.

    A test that cannot reach the level even if every test gave its smallest p has no p, but keeps its share.

    Args:
        tests: those that could be made.
        roles: "primary" or "secondary" of each.
        alpha: level of the whole family.
    """
    counts = Counter(roles[key] for key in tests)
    weights = [_weight(roles[key], counts) for key in tests]
    least = holm([test.least_p for test in tests.values()], weights)
    possible = least <= alpha
    p = holm([test.p if can else 1.0 for test, can in zip(tests.values(), possible, strict=True)], weights)
    adjusted = {key: float(each) for key, each, can in zip(tests, p, possible, strict=True) if can}
    found = all(adjusted.get(key, 1.0) <= alpha for key in tests if roles[key] == PRIMARY)
    return Family(counts, adjusted, {role: _level(role, counts, alpha, found) for role in counts})


def runs_wanted(role: str, counts: Mapping[str, int], alpha: float, *, paired: bool) -> int:
    """Fewest pairs, or runs an arm, with which a test of that role can be decided, the others' p being as small."""
    level = _level(role, counts, alpha, found=True)
    if counts.get(PRIMARY):
        level = min(level, _level(PRIMARY, counts, alpha, found=True))  # whose share it needs
    return pairs_that_reach(level) if paired else runs_that_reach(level)


def _level(role: str, counts: Mapping[str, int], alpha: float, found: bool) -> float:
    if role == SECONDARY and found:
        return alpha / counts[SECONDARY]
    return alpha * _weight(role, counts)


def _weight(role: str, counts: Mapping[str, int]) -> float:
    """The share of the level with which a test begins; without the other kind all of it is shared."""
    share = PRIMARY_SHARE if role == PRIMARY else 1 - PRIMARY_SHARE
    alone = not counts.get(SECONDARY if role == PRIMARY else PRIMARY)
    return (1.0 if alone else share) / counts[role]
