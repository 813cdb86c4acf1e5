"""The server under test as a profiler needs to see it: its processes, its routes, its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        url: its base URL.
        engine: "vllm", "sim", or what it calls itself.
        pid: of its first process on this machine; None where it is not known to run here.
        client: opens an httpx client for it (key, certificates and headers included); its argument is the timeout in s.
        log_path: its output, where it is our child.
        ours: whether it was launched for this run, as the tool's `Launch` asked.
    """

    url: str
    engine: str
    pid: int | None
    client: Callable[[float], httpx.Client]
    log_path: Path | None = None
    ours: bool = False

    def processes(self) -> list[int]:
        """The first process and its living descendants; empty where it is not known to run here."""
        from servebench.telemetry.processes import process_tree

        return [] if self.pid is None else process_tree(self.pid)
