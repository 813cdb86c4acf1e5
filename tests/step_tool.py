"""A profiler for the simulated engine: what it captures is the engine's own log of its steps, which is the truth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from servebench.profile.server import Server
from servebench.profile.timeline import Alignment, Kind, Timeline
from servebench.profile.tool import TIMELINE, Bounds, Launch, ProfileError, Tool


class StepTool(Tool):
    """Tells the steps of a simulated engine that writes its log to the file named by the option `log`.

    Attributes:
        calls: what was called, in order, with the window's name.
        failing: a method's name: it raises.
    """

    name: ClassVar[str] = "steps"
    options: ClassVar[Mapping[str, str]] = {"log": "the engine's step log"}
    bounds: ClassVar[Bounds] = Bounds(0.9)
    calls: ClassVar[list[str]] = []
    failing: ClassVar[dict[str, Exception]] = {}
    current = ""

    def _called(self, method: str, window: str = "") -> None:
        StepTool.calls.append(f"{method} {window}".strip())
        if method in StepTool.failing:
            raise StepTool.failing[method]

    def check(self) -> str:
        self._called("check")
        return "1.0"

    def launch(self) -> Launch:
        return Launch()

    def attach(self, server: Server) -> None:
        self._called("attach")
        assert server.processes(), "the server's processes are not known"

    def start(self, window: str, folder: Path, bounds: Bounds) -> None:
        self.current = window
        self._called("start", window)

    def stop(self) -> None:
        self._called("stop", self.current)

    def collect(self, folder: Path) -> dict[str, Any]:
        self._called("collect", folder.name)
        lines = Path(self.settings["log"]).read_text().splitlines()
        steps = [json.loads(line) for line in lines if line.endswith("}")]
        if not steps:
            raise ProfileError("the engine has made no step")
        names = [_name(step["prefill_tokens"], step["decode_sequences"]) for step in steps]
        words = sorted(set(names))
        columns = {key: np.array([s[f"{key}_ns"] for s in steps], np.int64) for key in ("start", "end")}
        columns["kind"] = np.full(len(steps), Kind.RANGE)
        columns["name"] = np.array([words.index(name) for name in names])
        columns["process"] = np.full(len(steps), 1)
        columns["thread"] = np.full(len(steps), 1)
        alignment = Alignment("the engine's own clock", residual_ns=1000)
        Timeline.of_columns("steps", tuple(words), columns, alignment=alignment).write(folder / TIMELINE)
        return {"files": [TIMELINE], "tool": "steps", "version": "1.0"}


def _name(prefill: int, decode: int) -> str:
    """As vLLM annotates a step; the log does not say of how many requests the prompt tokens are."""
    return f"execute_context_{int(prefill > 0)}({prefill})_generation_{decode}({decode})"
