"""The one place where the odd-stream tests touch the client: a whole worker in this process, its plan one row."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import uvloop
from numpy.typing import NDArray

from servebench.dispatch.job import Job
from servebench.dispatch.worker import Worker
from servebench.record.columns import RequestRecord
from servebench.record.counters import LiveCounters, live_counters
from servebench.record.journal import read_journals
from servebench.workload.kit import PromptKit
from servebench.workload.plan import Plan

KEY = "sk-odd-streams"  # sent with every request, and must never come back out
KEY_VARIABLE = "SERVEBENCH_TEST_KEY"


@dataclass(frozen=True)
class Answered:
    """The record of one request, and its chunks as arrays."""

    record: RequestRecord
    arrival_ns: NDArray[np.int64]
    tokens: NDArray[np.int32]
    channel: NDArray[np.int8]


def run_one(
    url: str,
    api: str,
    *,
    stream: bool = True,
    connect: float = 5.0,
    idle: float = 5.0,
    total: float = 30.0,
    ca_file: Path | None = None,
    insecure: bool = False,
) -> Answered:
    """Send one request to `url` with these time limits, and return what the worker's journal holds of it."""
    with tempfile.TemporaryDirectory() as folder, live_counters(1) as counters, _restored_signals():
        journal = Path(folder) / "journal"
        journal.mkdir()
        job = Job(
            rundir=folder,
            counters=str(counters.path),
            worker=0,
            workers=1,
            url=url,
            api=api,
            model="scripted",
            stream=stream,
            headers={},
            extras={},
            min_tokens=False,
            kit=PromptKit("calibrated_words", False, None, ("word",), head="word").to_dict(),
            salt=1,
            api_key_env=KEY_VARIABLE,
            verify=not insecure,
            ca_file=str(ca_file) if ca_file else None,
            connect_timeout=connect,
            idle_timeout=idle,
            timeout=total,
            concurrency=None,
            think=0.0,
            max_in_flight=None,
            drop_when_full=False,
            throttle=None,
            cohort=(0, None),
        )
        with mock.patch.dict(os.environ, {KEY_VARIABLE: KEY}), _no_collections():
            uvloop.run(_work(job, counters))
        return _read(journal)


async def _work(job: Job, counters: LiveCounters) -> None:
    worker = Worker(job, _plan(), counters.worker(0), os.getppid())
    counters.start_at(time.monotonic_ns())
    await worker.run()


def _plan() -> Plan:
    zero = np.zeros(1, np.int32)
    return Plan(
        scheduled_ns=np.zeros(1, np.int64),
        input_tokens=zero + 7,
        output_tokens=zero + 64,
        class_id=np.zeros(1, np.int16),
        content_seed=np.zeros(1, np.int64),
        prefix_group=zero - 1,
        prefix_tokens=zero,
    )


def _read(journal: Path) -> Answered:
    requests, chunks, _ = read_journals(journal)
    (row,) = requests.to_pylist()
    columns = (chunks[name].to_numpy() for name in ("arrival_ns", "tokens", "channel"))
    return Answered(RequestRecord(**row), *columns)


@contextmanager
def _no_collections() -> Iterator[None]:
    """As in a worker process: a look at all that the tests have made would keep the sockets waiting."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _restored_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
