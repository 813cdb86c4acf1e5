"""How figures are rounded in summary.json: fixed digits, so that a recomputed summary has the same bytes."""

from __future__ import annotations


def rounded(value: float | None) -> float | None:
    """Six decimals; whole numbers stay whole."""
    if value is None or isinstance(value, int):
        return value
    return round(float(value), 6)


def milliseconds(nanoseconds: float | None) -> float | None:
    """Milliseconds with six decimals, which is exact for a whole number of nanoseconds."""
    return None if nanoseconds is None else round(nanoseconds / 1e6, 6)
