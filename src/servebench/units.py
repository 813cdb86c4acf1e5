"""Durations, rates and sizes as people write them: ``800ms``, ``4/s``, ``2k``."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
PERIODS = {"s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
MULTIPLES = {"": 1, "k": 1_000, "M": 1_000_000}

_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"
_DURATION = re.compile(_NUMBER + r"\s*([a-zµ]*)")
_RATE = re.compile(_NUMBER + r"\s*/\s*([a-z]+)")
_SIZE = re.compile(_NUMBER + r"\s*([kM]?)")


def _number(value: object, example: str) -> float | None:
    """Return a plain number as a float, None for text; raise ValueError for anything that is neither, or not ≥ 0."""
    if isinstance(value, str):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected {example}, not {describe(value)}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"expected {example}, not {value}")
    return float(value)


def describe(value: object) -> str:
    """Name a value for an error message: what it is, and what it says if it is short."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return json.dumps(shorten(value), ensure_ascii=False) if isinstance(value, str) else str(value)


def shorten(text: str, most: int = 60) -> str:
    """The text, or its beginning and three dots where it is longer than a message should be."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def parse_duration(value: object) -> float:
    """Seconds from ``"800ms"``, ``"60s"``, ``"2m"``, ``"1h"``, or a bare number of seconds.

    Raises:
        ValueError: no duration, or a negative one.
    """
    example = "a duration such as 800ms, 60s or 2m"
    plain = _number(value, example)
    if plain is not None:
        return plain
    text = str(value).strip()
    match = _DURATION.fullmatch(text)
    if not match or (match[2] or "s") not in SECONDS:
        raise ValueError(f"expected {example}, not {describe(text)}")
    unit = match[2] or "s"
    # Dividing by a whole number keeps 800ms at exactly 0.8, which multiplying by 1e-3 would not.
    return float(match[1]) / round(1 / SECONDS[unit]) if SECONDS[unit] < 1 else float(match[1]) * SECONDS[unit]


@dataclass(frozen=True, slots=True)
class Quota:
    """So many in each period, as ``600/min`` says.

    Attributes:
        amount: how many.
        period: in seconds.
    """

    amount: float
    period: float

    @property
    def rate(self) -> float:
        """Per second."""
        return self.amount / self.period


def parse_quota(value: object) -> Quota:
    """Amount and period from ``"600/min"``; a bare number is per second.

    Raises:
        ValueError: no rate, or a negative one.
    """
    example = "a rate such as 4/s or 600/min"
    plain = _number(value, example)
    if plain is not None:
        return Quota(plain, 1.0)
    text = str(value).strip()
    plain_text = re.fullmatch(_NUMBER, text)
    if plain_text:
        return Quota(float(text), 1.0)
    match = _RATE.fullmatch(text)
    if not match or match[2] not in PERIODS:
        raise ValueError(f"expected {example}, not {describe(text)}")
    return Quota(float(match[1]), PERIODS[match[2]])


def parse_rate(value: object) -> float:
    """Rate per second from ``"4/s"``, ``"600/min"`` or a bare number per second; raises ValueError."""
    return parse_quota(value).rate


def parse_amount(value: object) -> float:
    """Number, whole or not, from ``"2k"``, ``"1.5k"``, ``"1M"`` or a bare number; k is 1000.

    Raises:
        ValueError: no number, or a negative one.
    """
    example = "a number such as 512 or 2k"
    plain = _number(value, example)
    if plain is not None:
        return plain
    text = str(value).strip()
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"expected {example}, not {describe(text)}")
    return float(match[1]) * MULTIPLES[match[2]]


def parse_size(value: object) -> int:
    """Whole number from ``"2k"``, ``"1.5k"``, ``"1M"`` or a bare number; k is 1000.

    Raises:
        ValueError: no number, a negative one, or one that is not whole.
    """
    amount = parse_amount(value)
    whole = round(amount)
    if not math.isclose(whole, amount, rel_tol=1e-12, abs_tol=1e-9):
        raise ValueError(f"expected a whole number such as 512 or 2k, not {describe(value)}")
    return whole


def format_duration(seconds: float) -> str:
    """Shortest exact spelling in the largest unit that keeps the number at 1 or more: ``0.8`` becomes ``800ms``."""
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:g}m"
    for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        if seconds * per_second >= 1:
            return f"{_exact(seconds * per_second)}{unit}"
    return f"{_exact(seconds * 1e9)}ns" if seconds else "0s"


def format_rate(per_second: float) -> str:
    """``4/s``; a rate under one a second that has no short number, such as 0.0333333333333/s, per minute."""
    if 0 < per_second < 1 and len(_exact(per_second)) > len("0.123"):
        return f"{_exact(per_second * 60)}/min"
    return f"{_exact(per_second)}/s"


def _exact(number: float) -> str:
    """Up to 12 significant digits, without the noise of a binary fraction or an exponent."""
    return f"{number:.12g}"
