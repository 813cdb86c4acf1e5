"""How figures are written for people: few digits, the same number of them along a row, thousands separated."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "–"


def decimals(value: float) -> int:
    """Decimals that leave three to four significant digits of a figure of this size."""
    size = abs(value)
    if size >= 1000:
        return 0
    if size >= 100:
        return 1
    return 2 if size >= 1 else 3


def number(value: float | None, places: int | None = None) -> str:
    """``1,234``, ``10.02``, ``0.215``; a dash for a figure that does not exist."""
    if value is None:
        return NOTHING
    if places is None and (isinstance(value, int) or value == 0):
        return f"{value:,.0f}"
    return f"{value:,.{decimals(value) if places is None else places}f}"


def row(values: Sequence[float | None]) -> list[str]:
    """Figures of one row, all with the decimals of the first one that exists."""
    known = [v for v in values if v is not None]
    places = decimals(known[0]) if known else 0
    return [number(v, places) for v in values]


def share(value: float | None) -> str:
    """A share of one as a percentage; never rounded up to 100 % nor down to 0 %."""
    if value is None:
        return NOTHING
    if value in (0, 1):
        return f"{100 * value:.0f} %"
    percent = min(max(100 * value, 0.01), 99.99)
    return f"{percent:.2g} %" if percent < 1 else f"{percent:.4g} %"


def duration(milliseconds: float | None) -> str:
    """``215 µs``, ``10.0 ms``, ``1.53 s``."""
    if milliseconds is None:
        return NOTHING
    if abs(milliseconds) < 1 and milliseconds != 0:
        return f"{1000 * milliseconds:.3g} µs"
    if abs(milliseconds) < 1000:
        return f"{milliseconds:.1f} ms" if abs(milliseconds) < 100 else f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:,.2f} s"


def size(count: float | None) -> str:
    """Bytes as ``81 MB``."""
    return NOTHING if count is None else f"{count / 1e6:,.0f} MB"


def plural(count: int, noun: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
