"""The simulated engine as a child process: see `launch.start_sim`.

Reads one JSON line from standard input, prints the base URL as one line, serves, and ends with its parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from servebench.engine.sim.serving import run
from servebench.engine.sim.settings import SimSettings

_PARENT_CHECK_S = 1.0


def main() -> None:
    """Serve as the parent says: `{"settings": {..}, "model": .., "host": .., "port": .., "step_log": ..}`."""
    orders = json.loads(sys.stdin.readline())
    settings = SimSettings.of(orders["settings"])
    where = orders["host"], orders["port"]
    run(settings, orders["model"], *where, _announce, _follow_parent, step_log=orders["step_log"])


def _announce(url: str) -> None:
    sys.stdout.write(url + "\n")
    sys.stdout.flush()


def _follow_parent(stop: asyncio.Event) -> None:
    """End when standard input ends, or when the parent is another: a copy of the pipe in a sibling keeps it open."""
    loop = asyncio.get_running_loop()
    parent = os.getppid()

    def look() -> None:
        if os.getppid() != parent:
            stop.set()
        loop.call_later(_PARENT_CHECK_S, look)

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_reader(sys.stdin.fileno(), read)
    look()


if __name__ == "__main__":
    main()
