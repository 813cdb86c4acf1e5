"""An interval, and how much confidence its construction really has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a true value lies, in the unit of what was estimated.

    Attributes:
        low: lower end; None when the samples can never reach the wanted confidence.
        high: upper end; None exactly when `low` is.
        confidence_reached: 0 to 1, at least what was asked for where there are ends; without ends, the most that so few
            samples could reach.
    """

    low: float | None
    high: float | None
    confidence_reached: float

    def __contains__(self, value: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= value <= self.high
