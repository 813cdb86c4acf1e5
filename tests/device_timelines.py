"""Timelines of devices drawn by hand, in ns after 0, so that every figure can be counted on paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servebench.profile.timeline import COLUMNS, NONE, Kind, Timeline

PROCESS = 700
Call = tuple[int, int]


@dataclass
class Drawn:
    """Rows to come. Each row that is launched gets the next correlation; they begin at 1."""

    rows: list[dict[str, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    launched: int = 0

    def kernel(self, name: str, start: int, end: int, launch: Call | None = None, **more: Any) -> Drawn:
        return self.row(Kind.COMPUTE, name, start, end, launch, **more)

    def collective(self, name: str, start: int, end: int, launch: Call | None = None, **more: Any) -> Drawn:
        return self.row(Kind.COMMUNICATION, name, start, end, launch, **more)

    def row(
        self, kind: Kind, name: str, start: int, end: int, launch: Call | None = None, *, device: int = 0, **more: int
    ) -> Drawn:
        """Add what a device did, and the call that launched it."""
        more = {"process": PROCESS, "stream": 7} | more
        if launch is not None:
            self.launched += 1
            more = {"correlation": self.launched} | more
            self.call("cudaLaunchKernel", *launch, process=more["process"], correlation=more["correlation"])
        return self._add(kind, name, start, end, device=device, **more)

    def call(self, name: str, start: int, end: int, kind: Kind = Kind.API, **more: int) -> Drawn:
        """Add a call of the host."""
        return self._add(kind, name, start, end, **{"process": PROCESS, "thread": PROCESS + 1} | more)

    def timeline(self, **more: Any) -> Timeline:
        columns = {key: np.array([row.get(key, NONE) for row in self.rows], np.int64) for key in COLUMNS}
        return Timeline.of_columns("nsys", tuple(self.names), columns, **more)

    def _add(self, kind: Kind, name: str, start: int, end: int, **more: int) -> Drawn:
        if name not in self.names:
            self.names.append(name)
        where = {"start": start, "end": end, "kind": int(kind), "name": self.names.index(name)}
        self.rows.append(where | more)
        return self
