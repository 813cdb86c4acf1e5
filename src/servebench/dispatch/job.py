"""What a worker process is told: one JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """The work of one worker.

    Attributes:
        rundir: the run directory; the plan lies there.
        counters: path of the live counters.
        worker, workers: this worker's number, and how many there are.
        url: of the server, without the dialect's path.
        api: "chat" or "completions".
        model: its name in requests.
        stream: whether answers are streamed.
        headers: sent with every request.
        extras: added to every body.
        min_tokens: whether each body carries `min_tokens` equal to its `max_tokens`.
        kit: the prompt kit, as `PromptKit.to_dict` gives it.
        salt: of this run's prompts.
        api_key_env: name of the variable that holds the key.
        verify: whether TLS certificates are checked.
        ca_file: trusted certificates instead of the system's.
        connect_timeout, idle_timeout, timeout: seconds.
        concurrency: slots of this worker in a closed loop; None in an open one.
        think: seconds a slot waits between two requests.
        max_in_flight: this worker's part of the cap; None without one.
        drop_when_full: whether a request that finds no slot is dropped rather than kept waiting.
        throttle: (requests, seconds) at most, this worker's part.
        cohort: the measured window, ns after the start; the second is None for a run bounded by a request count.
        keep_raw: whether raw bytes are stored.
        tokenizer: a local tokenizer to count answers with when the server does not.
    """

    rundir: str
    counters: str
    worker: int
    workers: int
    url: str
    api: str
    model: str
    stream: bool
    headers: dict[str, str]
    extras: dict[str, Any]
    min_tokens: bool
    kit: dict[str, Any]
    salt: int
    api_key_env: str | None
    verify: bool
    ca_file: str | None
    connect_timeout: float
    idle_timeout: float
    timeout: float
    concurrency: int | None
    think: float
    max_in_flight: int | None
    drop_when_full: bool
    throttle: tuple[int, float] | None
    cohort: tuple[int, int | None]
    keep_raw: bool = False
    tokenizer: str | None = None

    def write(self, path: Path) -> None:
        """Store the job."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read a job that `write` stored."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def share(total: int, worker: int, workers: int) -> int:
    """The part of `total` that falls to one worker; the parts differ by at most one and add up."""
    return total // workers + (worker < total % workers)
