"""A calculation as it is shown: every line with its figures, so that a reader can repeat it on a pocket calculator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a calculation.

    Attributes:
        label: what is computed.
        expression: with figures, such as ``50 × (1 + 0.2)``; only the four operations, powers of ten and ``ceil``.
        value: its result, from the unrounded figures.
        unit: of the value; empty for a bare number.
        key: under which the document has the value too; empty for a step on the way.
    """

    label: str
    expression: str
    value: float
    unit: str = ""
    key: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "key"}


def keyed(lines: Iterable[Line], keys: Iterable[str]) -> dict[str, float | None]:
    """The values of the lines that have these keys; None for a key that no line has."""
    found = {line.key: line.value for line in lines}
    return {key: found.get(key) for key in keys}


def plain(value: float) -> str:
    """A figure with up to six significant digits and thousands separated, never with an exponent: ``39,600,000``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 5 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ceiling(value: float) -> int:
    """The next whole number; a binary fraction's noise just above one does not count as more."""
    return math.ceil(round(value, 9))
