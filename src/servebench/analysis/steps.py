"""Concurrency as exact step functions of time, from the instants of the requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.data import MISSING, Bools, Ints, Requests


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A level that changes at instants; 0 before the first.

    Attributes:
        t: int64 ns, sorted, distinct.
        level: int64, the level from t[i] to t[i + 1].
    """

    t: Ints
    level: Ints

    @classmethod
    def of_intervals(cls, begin: Ints, end: Ints) -> StepFunction:
        """How many of the intervals [begin, end) hold each instant."""
        t = np.concatenate([begin, end])
        change = np.concatenate([np.ones(begin.size, np.int64), np.full(end.size, -1, np.int64)])
        instants, where = np.unique(t, return_inverse=True)
        return cls(instants, np.cumsum(np.bincount(where, weights=change, minlength=instants.size)).astype(np.int64))

    def area(self, until: Ints) -> Ints:
        """Integral from the beginning to each instant of `until`, in level·ns."""
        if not self.t.size:
            return np.zeros(until.size, np.int64)
        total = np.concatenate([[0], np.cumsum(self.level[:-1] * np.diff(self.t))])
        at = np.searchsorted(self.t, until, side="right") - 1
        inside = total[at] + self.level[at] * (until - self.t[at])
        return np.where(at < 0, 0, inside)

    def mean(self, start: int, end: int) -> float | None:
        """Time-weighted mean over [start, end); None when that is empty."""
        if end <= start:
            return None
        before, after = self.area(np.array([start, end], dtype=np.int64))
        return float(after - before) / (end - start)

    def peak(self, start: int, end: int) -> int:
        """Highest level within [start, end)."""
        if not self.t.size or end <= start:
            return 0
        first = max(int(np.searchsorted(self.t, start, side="right")) - 1, 0)
        last = int(np.searchsorted(self.t, end, side="left"))
        return int(self.level[first:last].max(initial=0))

    def bin_means(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Time-weighted mean within each bin between neighbouring edges."""
        whole = np.round(edges).astype(np.int64)
        return np.diff(self.area(whole)) / np.maximum(np.diff(whole), 1)


def in_flight(requests: Requests, end: int) -> StepFunction:
    """Requests that were sent and had not ended; one without an end lasts to `end`."""
    sent = requests.sent != MISSING
    return _steps(requests.sent[sent], _or_end(requests.end[sent], end))


def prefilling(requests: Requests, end: int) -> StepFunction:
    """Requests that were sent and had no token yet."""
    sent = requests.sent != MISSING
    until = np.where(requests.first_token[sent] != MISSING, requests.first_token[sent], requests.end[sent])
    return _steps(requests.sent[sent], _or_end(until, end))


def decoding(requests: Requests, end: int) -> StepFunction:
    """Requests between their first and their last token; one that did not end well lasts to its end."""
    began: Bools = requests.first_token != MISSING
    until = np.where(requests.ok, requests.last_token, requests.end)[began]
    return _steps(requests.first_token[began], _or_end(until, end))


def _or_end(instants: Ints, end: int) -> Ints:
    return np.where(instants == MISSING, end, instants)


def _steps(begin: Ints, end: Ints) -> StepFunction:
    return StepFunction.of_intervals(begin, np.maximum(begin, end))
