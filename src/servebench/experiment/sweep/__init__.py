"""Sweep: one scenario over a grid of settings. Which cells there are, and what a table and curves show of them.

The result (`judge`)::

    {"kind": "sweep", "exit_code": 0 | 2 | 3,                      # 3: a cell failed or is INVALID; 2: all failed
     "variables": [{"key", "written", "values": [..]}], "how": "grid|zip", "repeats": n, "has_slo": bool,
     "cells": [{"cell", "point": n, "repeat": n, "labels": {..}, "path",
                "status": "done|failed|missing", "reason": str|null, "verdict": str|null, "codes": [failing ones],
                "offered_per_s": float|null, "figures": {name: float|null}, "few": [names below their sample floor],
                "slo_met": bool|null, "missed": ["ttft p95", ..],
                "cache": null | {"done": bool, "verified": bool|null, "reason"}}],       # where a reset was asked for
     "points": [{"point": n, "labels": {..}, "runs": n, "used": n, "slo_met": n,        # n of the used runs met it
                 "figures": {name: median over the used runs}}],
     "curves": null | {"key", "closed": bool, "series": [{"name", "labels": {..}, "points": [{"x", **figures}],
                       "holds": x|null, "misses": x|null}], "left_out": [cells that failed or are INVALID]}}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from servebench.errors import ExitCode, UsageError
from servebench.experiment.caches import cache_state
from servebench.experiment.cell import Cell
from servebench.experiment.figures import value_of
from servebench.experiment.sweep.curves import curves
from servebench.experiment.variables import Point, Variable, combine, labels_of, overrides_of
from servebench.scenario.schema import Scenario

if TYPE_CHECKING:
    from servebench.experiment.cell import Outcome
    from servebench.experiment.directory import ExperimentDir

FIGURES = (
    *("ttft.p50", "ttft.p95", "ttft.p99", "itl.p50", "itl.p99", "e2e.p50"),
    *("output_tokens_per_s", "requests_per_s", "goodput_per_s", "attainment", "failed_share"),
)
LONGEST_NAME = 100

How = Literal["grid", "zip"]
Document = dict[str, Any]


def cells(variables: Sequence[Variable], how: How, repeats: int, seed: int) -> list[Cell]:
    """The cells of a sweep in the order in which they run: all points once, then all once more with other seeds.

    Args:
        variables: what is varied, at least one.
        how: see `variables.combine`.
        repeats: runs of each point; the first has the scenario's own seeds, the others one of ``seed + 1`` and so on.
        seed: the scenario's, of its arrivals.

    Raises:
        UsageError: the variables do not go together, or the seed is varied and repeated.
    """
    points = combine(variables, how)
    if repeats > 1 and any(key.partition(".")[0] == "seed" for point in points for key in point):
        raise UsageError("--repeats takes other seeds each time, so --vary seed goes only without it")
    return [
        _cell(variables, number, point, repeat, repeats, seed)
        for repeat in range(repeats)
        for number, point in enumerate(points)
    ]


def _cell(variables: Sequence[Variable], number: int, point: Point, repeat: int, repeats: int, seed: int) -> Cell:
    labels = labels_of(point, variables)
    words = [f"{key.rpartition('.')[2]}-{value}" for key, value in labels.items()]
    name = re.sub(r"[^a-z0-9._]+", "-", "-".join([f"{number + 1:02}", *words]).lower())[:LONGEST_NAME].strip("-.")
    return Cell(
        name=f"{name}-r{repeat + 1}" if repeats > 1 else name,
        labels=labels | ({"repeat": repeat + 1} if repeats > 1 else {}),
        overrides=overrides_of(point),
        seed=seed + repeat if repeat else None,
    )


def question(
    scenario: Scenario,
    variables: Sequence[Variable],
    how: How,
    repeats: int,
    endpoint: str,
    model: str | None,
    reset_caches: bool,
) -> Document:
    """All that decides what the cells are."""
    return {
        "scenario": scenario.resolved(),
        "variables": [{"key": v.key, "written": v.written, "values": list(v.values)} for v in variables],
        "how": how,
        "repeats": repeats,
        "endpoint": endpoint,
        "model": model,
        "reset_caches": reset_caches,
    }


def judge(directory: ExperimentDir) -> Document:
    """Compute the result from the stored cells alone, finished or not; the same each time."""
    asked = directory.document["question"]
    variables = [Variable(v["key"], tuple(v["values"]), v["written"]) for v in asked["variables"]]
    how, repeats = asked["how"], asked["repeats"]
    planned = cells(variables, how, repeats, asked["scenario"]["seed"]["arrivals"])
    ended = {outcome.cell.name: outcome for outcome in directory.outcomes()}
    count = len(planned) // repeats
    rows = [_row(cell, place % count, place // count, ended.get(cell.name)) for place, cell in enumerate(planned)]
    for row in rows if asked["reset_caches"] else ():
        row["cache"] = _cache(ended.get(row["cell"]))
    points = [_point(number, [row for row in rows if row["point"] == number]) for number in range(count)]
    bad = [row["cell"] for row in rows if not _usable(row) and row["status"] != "missing"]
    drawn = curves(variables, combine(variables, how), points)
    return {
        "kind": "sweep",
        "exit_code": _exit_code(rows),
        "variables": asked["variables"],
        "how": how,
        "repeats": repeats,
        "has_slo": bool(asked["scenario"].get("slo")),
        "cells": rows,
        "points": points,
        "curves": None if drawn is None else drawn | {"left_out": bad},
    }


def _exit_code(rows: Sequence[Mapping[str, Any]]) -> int:
    """As a run's that failed where all of them did; as an INVALID run's where not every figure can be trusted."""
    ended = [row for row in rows if row["status"] != "missing"]
    if ended and all(row["status"] == "failed" for row in ended):
        return int(ExitCode.USAGE)
    return int(ExitCode.GOOD if all(map(_usable, ended)) else ExitCode.INVALID)


def _row(cell: Cell, point: int, repeat: int, outcome: Outcome | None) -> Document:
    summary = (outcome.summary if outcome is not None else None) or {}
    codes = (summary.get("verdict") or {}).get("codes") or []
    return {
        "cell": cell.name,
        "point": point,
        "repeat": repeat + 1,
        "labels": dict(cell.labels),
        "path": f"cells/{cell.name}",
        "status": outcome.status if outcome is not None else "missing",
        "reason": outcome.reason if outcome is not None else "not run yet",
        "verdict": outcome.verdict if outcome is not None else None,
        "codes": [code["code"] for code in codes if code["level"] == "fail"],
        "offered_per_s": (summary.get("throughput") or {}).get("offered_requests_per_s"),
        "figures": {name: value_of(summary, name) for name in FIGURES},
        "few": [name for name in FIGURES if _below_floor(summary, name)],
        **_promises(summary),
        "cache": None,
    }


def _cache(outcome: Outcome | None) -> Document | None:
    if outcome is None or outcome.status != "done":
        return None
    return cache_state(outcome.manifest, outcome.summary).to_dict()


def _below_floor(summary: Mapping[str, Any], name: str) -> bool:
    """Whether a quantile has too few samples for its share (see `analysis.quantiles`)."""
    metric, _, quantile = name.partition(".")
    return quantile in ((summary.get("metrics") or {}).get(metric) or {}).get("below_floor", ())


def _promises(summary: Mapping[str, Any]) -> Document:
    slo = summary.get("slo")
    if not slo:
        return {"slo_met": None, "missed": []}
    missed = [f"{each['metric']} {each['quantile']}" for each in slo["objectives"] if each.get("met") is False]
    return {"slo_met": bool(slo["met"]), "missed": missed}


def _usable(row: Mapping[str, Any]) -> bool:
    """Whether its figures may be taken for the server's."""
    return bool(row["status"] == "done" and row["verdict"] != "INVALID")


def _point(number: int, rows: Sequence[Mapping[str, Any]]) -> Document:
    """A point's medians over those of its runs whose figures hold."""
    used = [row for row in rows if _usable(row)]
    return {
        "point": number,
        "labels": {key: value for key, value in rows[0]["labels"].items() if key != "repeat"},
        "runs": len(rows),
        "used": len(used),
        "slo_met": sum(row["slo_met"] is True for row in used),
        "offered_per_s": _median(row["offered_per_s"] for row in used),
        "figures": {name: _median(row["figures"][name] for row in used) for name in FIGURES},
    }


def _median(values: Iterable[float | None]) -> float | None:
    """The median of those that there are; None of none."""
    there = [value for value in values if value is not None]
    return median(there) if there else None
