"""What the service promises: ``ttft: p95 < 800ms``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_serializer

from servebench.scenario.strict import Strict, convert, parse_positive_duration, problem
from servebench.units import describe, format_duration

METRICS = ("ttft", "ttfv", "itl", "icl", "tpot", "e2e", "stall")
_OBJECTIVE = re.compile(r"p(\d{1,2}(?:\.\d+)?)\s*<=?\s*(.+)")


class Objective(Strict):
    """One promise: `quantile` (``p95``) of `metric` stays below `limit_ns` nanoseconds."""

    metric: str
    quantile: str
    limit_ns: int

    @property
    def written(self) -> str:
        """As it would be written under its metric: ``p95 < 800ms``."""
        return f"{self.quantile} < {format_duration(self.limit_ns / 1e9)}"


class Slo(Strict):
    """All objectives, in the order in which they are written."""

    accepts: ClassVar[tuple[str, ...]] = METRICS
    objectives: tuple[Objective, ...] = ()

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Read ``{metric: objective}``, where an objective may be a list of several."""
        if not isinstance(data, dict):
            return data
        lists = {metric: value if isinstance(value, list) else [value] for metric, value in data.items()}
        return {"objectives": [_read_objective(metric, text) for metric, texts in lists.items() for text in texts]}

    @model_serializer
    def written(self) -> dict[str, list[str]]:
        """The objectives by metric, as they would be written."""
        written: dict[str, list[str]] = {}
        for objective in self.objectives:
            written.setdefault(objective.metric, []).append(objective.written)
        return written


def _read_objective(metric: str, text: object) -> dict[str, Any]:
    match = _OBJECTIVE.fullmatch(text.strip()) if isinstance(text, str) else None
    if not match or float(match[1]) == 0:
        raise problem(f"expected an objective such as p95 < 800ms, not {describe(text)}", metric)
    limit = convert(parse_positive_duration, match[2], metric)
    return {"metric": metric, "quantile": f"p{match[1]}", "limit_ns": round(limit * 1e9)}
