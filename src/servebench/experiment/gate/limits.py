"""Limits as people give them to a gate: ``ttft.p99 < +5%`` of the baseline, or ``ttft.p99 < 800ms`` whatever it was."""

from __future__ import annotations

import re
from dataclasses import dataclass

from servebench.errors import UsageError
from servebench.experiment.comparison.effects import DIFFERENCES
from servebench.experiment.figures import Figure, figure
from servebench.units import parse_amount, parse_duration, parse_rate

EXAMPLES = '"ttft.p99 < +5%", "ttft.p99 < 800ms" or "output_tokens_per_s > -3%"'
_LIMIT = re.compile(r"\s*([\w.]+)\s*(<=?|>=?|≤|≥|=+)\s*(\S.*?)\s*")
_RELATIVE = re.compile(r"([+\-−])\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%")
_SIGN = {"lower": "<", "higher": ">"}
_WORSE = {"lower": "+", "higher": "-"}


@dataclass(frozen=True, slots=True)
class Limit:
    """What a figure may come to.

    Attributes:
        figure: which.
        relative: whether `bound` is a share of the baseline's figure, else it is in the figure's unit.
        bound: 0.05 for +5 %, -0.03 for -3 %, 800 for 800 ms.
        text: as a person would write it.
    """

    figure: Figure
    relative: bool
    bound: float
    text: str


def parse_limit(text: str) -> Limit:
    """Read a limit such as ``ttft.p99 < +5%``; ``<=`` means the same as ``<``.

    Raises:
        UsageError: no limit, no such figure, a sign that would demand an improvement, or a unit that does not fit.
    """
    match = _LIMIT.fullmatch(text)
    if not match:
        raise UsageError(f'"{text}" is no limit; write {EXAMPLES}')
    found, sign, bound = figure(match[1]), match[2][0].replace("≤", "<").replace("≥", ">"), match[3]
    relative = _RELATIVE.fullmatch(bound)
    _check_sign(text, found, sign, bound, relative=relative is not None)
    if relative:
        return _relative(text, found, float(relative[2]))
    value = _absolute(text, found, bound)
    return Limit(found, relative=False, bound=value, text=f"{found.name} {sign} {bound}")


def _check_sign(text: str, found: Figure, sign: str, bound: str, relative: bool) -> None:
    """Refuse a limit that no figure as good as the baseline's could keep."""
    right, worse = _SIGN[found.better], _WORSE[found.better]
    against = relative and bound[0].replace("−", "-") != worse
    if sign == right and not against:
        return
    instead = f'write "{found.name} {right} {worse + bound[1:].strip() if relative else bound}"'
    raise UsageError(f'"{text}" has the wrong sign: {found.name} is better when {found.better}; {instead}')


def _relative(text: str, found: Figure, percent: float) -> Limit:
    worse = _WORSE[found.better]
    if found.name in DIFFERENCES:
        raise UsageError(
            f'"{text}": {found.name} may be 0 in the baseline, so there is no share of it; '
            f'write an absolute limit such as "{found.name} {_SIGN[found.better]} 1%"'
        )
    if not 0 < percent < 1000 or (worse == "-" and percent >= 100):
        raise UsageError(f'"{text}": the share must be above 0 % and below {100 if worse == "-" else 1000} %')
    share = percent / 100
    shown = f"{found.name} {_SIGN[found.better]} {worse}{percent:g}%"
    return Limit(found, relative=True, bound=share if worse == "+" else -share, text=shown)


def _absolute(text: str, found: Figure, bound: str) -> float:
    """The bound in the figure's unit."""
    percent = _PERCENT.fullmatch(bound)
    if percent and not found.unit:
        return float(percent[1]) / 100
    if percent:
        worse = _WORSE[found.better]
        raise UsageError(
            f'"{text}": of what? Write "{found.name} {_SIGN[found.better]} {worse}{bound}" of the baseline'
        )
    try:
        return _in_unit(found.unit, bound)
    except ValueError as error:
        raise UsageError(f'"{text}": {error}') from None


def _in_unit(unit: str, bound: str) -> float:
    if unit == "ms":
        if re.fullmatch(r"[0-9.]+", bound):
            raise ValueError(f"{bound} what? Write {bound}ms or {bound}s")
        return parse_duration(bound) * 1000
    if unit.endswith("/s"):
        return parse_rate(bound)
    return parse_amount(bound.removesuffix(unit).strip() if unit else bound)
