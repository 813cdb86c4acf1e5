"""Timelines made by hand, in ms after an instant, so that what follows from them can be computed on paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from servebench.profile.timeline import NONE, Kind, Timeline
from servebench.testing.synthetic import MS, START_NS

PROCESS, THREAD = 700, 701


def at(ms: float) -> int:
    """An instant in ns; the same as of a run made by hand."""
    return START_NS + round(ms * MS)


@dataclass
class Made:
    """Rows to come; times in ms."""

    rows: list[dict[str, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, kind: Kind, name: str, start: float, end: float, **more: int) -> None:
        if name not in self.names:
            self.names.append(name)
        row = {"start": at(start), "end": at(end), "kind": int(kind), "name": self.names.index(name)}
        self.rows.append({"device": NONE, "process": PROCESS, "thread": NONE, "correlation": NONE} | row | more)

    def range(self, name: str, start: float, end: float, process: int = PROCESS, **more: int) -> None:
        self.add(Kind.RANGE, name, start, end, **{"process": process, "thread": THREAD} | more)

    def operator(self, name: str, start: float, end: float, thread: int = THREAD, process: int = PROCESS) -> None:
        self.add(Kind.OPERATOR, name, start, end, thread=thread, process=process)

    def kernel(
        self,
        name: str,
        start: float,
        end: float,
        launch: float | None = None,
        *,
        process: int = PROCESS,
        device: int = 0,
        stream: int = 7,
        kind: Kind = Kind.COMPUTE,
    ) -> None:
        """A device row; with `launch` also the call, 10 µs long, that launched it."""
        correlation = len(self.rows) + 1
        if launch is not None:
            call = {"process": process, "thread": THREAD, "correlation": correlation}
            self.add(Kind.API, "cudaLaunchKernel", launch, launch + 0.01, **call)
        more = {"process": process, "device": device, "stream": stream, "correlation": correlation}
        self.add(kind, name, start, end, **more)

    def timeline(self, source: str = "torch", **more: Any) -> Timeline:
        keys = sorted({key for row in self.rows for key in row} | {"start", "end", "kind", "name"})
        columns = {key: np.array([row.get(key, NONE) for row in self.rows], np.int64) for key in keys}
        return Timeline.of_columns(source, tuple(self.names), columns, **more)


def vllm(context: int, context_tokens: int, generation: int, generation_tokens: int | None = None) -> str:
    """The name of a step as vLLM writes it."""
    tokens = generation if generation_tokens is None else generation_tokens
    return f"execute_context_{context}({context_tokens})_generation_{generation}({tokens})"
