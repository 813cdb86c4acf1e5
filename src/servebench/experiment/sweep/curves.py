"""The curves of a sweep over load: what each figure is at each offered rate, one series for every other setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servebench.experiment.variables import Point, Variable, labels_of, plain_value
from servebench.units import parse_amount, parse_rate

RATES = ("load.rate", "load.poisson", "load.constant", "load.gamma.rate")
CONCURRENCY = "load.closed.concurrency"

Document = dict[str, Any]


def load_key(variables: Sequence[Variable]) -> str | None:
    """The key among the variables that says how much load there is; None without one."""
    return next((variable.key for variable in variables if variable.key in (*RATES, CONCURRENCY)), None)


def curves(
    variables: Sequence[Variable], points: Sequence[Point], found: Sequence[Mapping[str, Any]]
) -> Document | None:
    """The series over load.

    Args:
        variables: of the sweep.
        points: its points.
        found: of each point, its ``figures``, how many runs were ``used`` and how many met the SLO (`sweep.judge`).

    Returns:
        See `sweep`; None where no load is varied. A point without a usable run is left out.
    """
    key = load_key(variables)
    if key is None:
        return None
    grouped: dict[tuple[tuple[str, str], ...], list[Document]] = {}
    for point, medians in zip(points, found, strict=True):
        rest = tuple((name, value) for name, value in point.items() if name != key)
        places = grouped.setdefault(rest, [])
        if medians["used"]:
            places.append({"x": load_of(key, point[key]), "met": _met(medians), **medians["figures"]})
    return {
        "key": next(variable.written for variable in variables if variable.key == key),
        "closed": key == CONCURRENCY,
        "series": [_series(labels_of(dict(rest), variables), places) for rest, places in grouped.items()],
    }


def load_of(key: str, value: str) -> float:
    """A load as a number: requests a second, or requests in flight."""
    plain = plain_value(value)
    return parse_amount(plain) if key == CONCURRENCY else parse_rate(plain)


def _met(medians: Mapping[str, Any]) -> bool | None:
    """Whether every usable run met the SLO; None where there is none."""
    return None if medians["figures"]["attainment"] is None else medians["slo_met"] == medians["used"]


def _series(labels: Mapping[str, Any], places: list[Document]) -> Document:
    ordered = sorted(places, key=lambda place: place["x"])
    misses = next((place["x"] for place in ordered if place["met"] is False), None)
    held = [place["x"] for place in ordered if place["met"] and (misses is None or place["x"] < misses)]
    return {
        "name": ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in labels.items()),
        "labels": dict(labels),
        "points": ordered,
        "holds": max(held, default=None),
        "misses": misses,
    }
