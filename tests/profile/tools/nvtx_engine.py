"""The simulated engine with NVTX ranges named like vLLM's steps, and its profile routes: a real server for nsys.

``python nvtx_engine.py LIBRARY``; LIBRARY is `nvtx_ranges.c`, compiled against NVTX's headers. It prints its URL and
serves until SIGTERM. Python's own package nvtx would not do: from 0.2.12 on it first asks NVTX whether a tool listens
(nvtxDomainIsEnabled), which nsys 2022.4 does not answer, and then marks nothing.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from servebench.engine.sim.core import EngineCore
from servebench.engine.sim.server import SimApp
from servebench.engine.sim.serving import run
from servebench.engine.sim.settings import SimSettings


def name_steps(library: ctypes.CDLL) -> None:
    begin, end = EngineCore.begin, EngineCore.end

    def named_begin(self: EngineCore, now: float) -> float | None:
        seconds = begin(self, now)
        if self.step is not None:
            context, generation = self.step.prefill_tokens, self.step.decode_sequences
            name = f"execute_context_{min(context, 1)}({context})_generation_{generation}({generation})"
            library.push(name.encode())
        return seconds

    def named_end(self: EngineCore, now: float) -> object:
        library.pop()
        return end(self, now)

    EngineCore.begin = named_begin  # type: ignore[method-assign]
    EngineCore.end = named_end  # type: ignore[method-assign, assignment]


def bracket_captures(library: ctypes.CDLL) -> None:
    """Routes like vLLM's, that call NVTX where vLLM calls CUDA's profiler."""
    initialise = SimApp.__init__

    def add_routes(self: SimApp, *arguments: Any) -> None:
        initialise(self, *arguments)
        for path, call in (("/start_profile", library.begin_capture), ("/stop_profile", library.end_capture)):
            self._routes[path] = {"POST": lambda connection, _, call=call: connection.respond(200, b"%d" % call())}

    SimApp.__init__ = add_routes  # type: ignore[method-assign]


if __name__ == "__main__":
    ranges = ctypes.CDLL(sys.argv[1])
    name_steps(ranges)
    bracket_captures(ranges)
    settings = SimSettings(base=0.01)
    run(settings, "simulated", "127.0.0.1", 0, lambda url: print(url, flush=True))
