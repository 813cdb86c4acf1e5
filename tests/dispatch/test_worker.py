"""Worker processes by themselves: how they end when nobody leads them, when they are told to, and when they fail."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import OpenAI, tokens, until
from servebench.dispatch.crew import Crew, WorkerError
from servebench.dispatch.job import Job
from servebench.dispatch.worker import Worker
from servebench.errors import UsageError
from servebench.record.counters import LiveCounters, Slot, State
from servebench.record.rundir import RunDir
from servebench.testing import Hang, sse_response
from servebench.workload.kit import PromptKit
from servebench.workload.plan import Plan

KIT = PromptKit("calibrated_words", exact=False, overhead=0, words=("one", "two"), head="one").to_dict()
SECOND = 1_000_000_000


def plan(rows: int, due_ns: int = 0) -> Plan:
    zeros = {name: np.zeros(rows, dtype) for name, dtype in (("class_id", np.int16), ("content_seed", np.int64))}
    lengths = {name: np.full(rows, 3, np.int32) for name in ("input_tokens", "output_tokens")}
    prefix = {"prefix_group": np.full(rows, -1, np.int32), "prefix_tokens": np.zeros(rows, np.int32)}
    return Plan(scheduled_ns=np.full(rows, due_ns, np.int64), **lengths, **zeros, **prefix)


def make_job(rundir: RunDir, counters: LiveCounters, url: str, worker: int, **more: Any) -> Job:
    fields: dict[str, Any] = {
        "rundir": str(rundir.path), "counters": str(counters.path), "worker": worker, "workers": counters.workers,
        "url": url, "api": "chat", "model": "m", "stream": True, "headers": {}, "extras": {}, "min_tokens": False,
        "kit": KIT, "salt": 0, "api_key_env": None, "verify": True, "ca_file": None, "connect_timeout": 2,
        "idle_timeout": 20, "timeout": 20, "concurrency": None, "think": 0.0, "max_in_flight": None,
        "drop_when_full": False, "throttle": None, "cohort": (0, None),
    }  # fmt: skip
    return Job(**fields | more)


@dataclass
class Lone:
    """One worker, briefed, without anybody who conducts it."""

    crew: Crew
    counters: LiveCounters
    rundir: RunDir

    def state(self) -> State:
        return self.counters.snapshot().states[0]

    def status(self) -> int:
        """Its exit status, once it has ended."""
        until(self.crew.all_ended, 10, "the worker ends")
        return self.crew._processes[0].returncode

    def outcomes(self) -> list[str]:
        found: list[str] = self.rundir.requests()["outcome"].to_pylist()
        return found


Start = Callable[..., Lone]


@pytest.fixture
def start(run_path: Path) -> Iterator[Start]:
    crews: list[Crew] = []
    made: list[LiveCounters] = []

    def start(url: str, plan: Plan, **more: Any) -> Lone:
        rundir = RunDir.create(run_path)
        plan.write(rundir.plan_path)
        counters = LiveCounters.create(1)
        crew = Crew(1)
        crews.append(crew)
        made.append(counters)
        crew.brief([make_job(rundir, counters, url, 0, **more)], rundir.journal_dir)
        return Lone(crew, counters, rundir)

    yield start
    for crew in crews:
        crew.__exit__(None, None, None)
    for counters in made:
        counters.unlink()


def test_it_is_ready_with_its_first_requests_made_and_sends_nothing_before_it_may(start: Start) -> None:
    with OpenAI(lambda number: tokens(3)) as server:
        lone = start(server.url, plan(3))
        lone.crew.wait_ready(lone.counters)
        time.sleep(0.1)
        assert server.load == []
        assert lone.state() == State.READY
        lone.counters.start_at(time.monotonic_ns())
        assert lone.status() == 0
    assert lone.state() == State.DONE
    assert lone.outcomes() == ["ok"] * 3


def test_told_to_stop_before_it_may_run_it_sends_and_records_nothing(start: Start) -> None:
    with OpenAI(lambda number: tokens(3)) as server:
        lone = start(server.url, plan(3))
        lone.crew.wait_ready(lone.counters)
        os.kill(lone.crew.pids[0], signal.SIGTERM)
        assert lone.status() == 128 + signal.SIGTERM
        assert server.load == []
    assert lone.outcomes() == []
    assert lone.crew.dead(lone.counters) == [0]


def test_ended_by_sigterm_it_saves_but_does_not_pass_for_one_that_has_done_its_work(start: Start) -> None:
    with OpenAI(lambda number: sse_response([Hang()])) as server:
        lone = start(server.url, plan(4))
        lone.crew.wait_ready(lone.counters)
        lone.counters.start_at(time.monotonic_ns())
        until(lambda: len(server.load) == 4)
        os.kill(lone.crew.pids[0], signal.SIGTERM)
        assert lone.status() == 128 + signal.SIGTERM
    assert lone.outcomes() == ["in_flight"] * 4
    assert lone.crew.dead(lone.counters) == [0]
    assert lone.crew.last_words(0) == "it was ended by SIGTERM"
    assert lone.crew.figures(lone.rundir.journal_dir)[0]["exit"] == "died"


def test_it_ignores_ctrl_c_which_is_for_its_parent_to_judge(start: Start) -> None:
    with OpenAI(lambda number: tokens(3)) as server:
        lone = start(server.url, plan(3))
        lone.crew.wait_ready(lone.counters)
        os.kill(lone.crew.pids[0], signal.SIGINT)
        lone.counters.start_at(time.monotonic_ns())
        assert lone.status() == 0


def test_whose_parent_is_gone_before_it_looks_it_ends_by_itself(run_path: Path) -> None:
    rundir = RunDir.create(run_path)
    plan(3).write(rundir.plan_path)
    counters = LiveCounters.create(1)
    path = run_path / "job.json"
    make_job(rundir, counters, "http://127.0.0.1:9", 0).write(path)
    orphan = subprocess.Popen([sys.executable, "-m", "servebench.dispatch.worker"], stdin=subprocess.PIPE)
    try:
        assert orphan.stdin is not None
        orphan.stdin.write(f"1 {path}\n".encode())  # the line of a parent that is another process than ours
        orphan.stdin.close()
        assert orphan.wait(10) == 0
    finally:
        orphan.kill()
        orphan.wait()
        counters.unlink()


def test_whose_parent_says_nothing_it_ends() -> None:
    done = subprocess.run([sys.executable, "-m", "servebench.dispatch.worker"], input=b"", timeout=20, check=False)
    assert done.returncode == 0


def test_a_disk_that_takes_no_more_ends_it_with_a_word(start: Start) -> None:
    with OpenAI(lambda number: tokens(3)) as server:
        lone = start(server.url, plan(3, due_ns=SECOND // 5))
        lone.crew.wait_ready(lone.counters)
        resource.prlimit(lone.crew.pids[0], resource.RLIMIT_FSIZE, (2000, 2000))  # EFBIG, as a full disk says ENOSPC
        lone.counters.start_at(time.monotonic_ns())
        assert lone.status() == 1
    assert lone.crew.dead(lone.counters) == [0]
    assert lone.crew.last_words(0).startswith("cannot write the journal worker-0.")


def test_an_error_where_nobody_waits_for_it_ends_the_run_instead_of_hanging_it(run_path: Path) -> None:
    rundir = RunDir.create(run_path)
    counters = LiveCounters.create(1)

    async def work(url: str) -> None:
        job = make_job(rundir, counters, url, 0)
        worker = Worker(job, plan(1), counters.worker(0), os.getppid())
        counters.start_at(time.monotonic_ns())
        asyncio.get_running_loop().call_later(0.1, lambda: 1 / 0)
        try:
            await worker.run()
        finally:  # a process of its own would just end
            await worker._pool.close()
            worker._reactor.close()

    try:
        with OpenAI(lambda number: sse_response([Hang()])) as server, pytest.raises(ZeroDivisionError):
            asyncio.run(asyncio.wait_for(work(server.url), 10))
    finally:
        counters.unlink()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_figures_of_its_own(start: Start) -> None:
    with OpenAI(lambda number: tokens(3)) as server:
        lone = start(server.url, plan(3))
        lone.crew.wait_ready(lone.counters)
        lone.counters.start_at(time.monotonic_ns())
        lone.status()
    (figures,) = lone.crew.figures(lone.rundir.journal_dir)
    assert figures["exit"] == "clean"
    assert figures["pid"] == lone.crew.pids[0] == lone.counters.snapshot().workers[0, Slot.PID]
    json.dumps(figures, allow_nan=False)


def test_a_worker_that_cannot_do_what_it_was_asked_for_says_so(start: Start) -> None:
    lone = start("http://127.0.0.1:9", plan(3), api_key_env="NO_SUCH_VARIABLE")
    with pytest.raises(UsageError, match=r"NO_SUCH_VARIABLE .* is not set"):
        lone.crew.wait_ready(lone.counters)


def test_a_worker_that_cannot_start_is_named_with_its_last_words(start: Start) -> None:
    lone = start("http://127.0.0.1:9", plan(3), kit={})
    with pytest.raises(WorkerError, match=r"worker 0 ended at its start: ValueError: not a prompt kit"):
        lone.crew.wait_ready(lone.counters)


def test_a_crew_grows_and_leaves_nothing_behind() -> None:
    with Crew(1) as crew:
        crew.recruit(3)
        pids = crew.pids
        assert len(crew) == len(set(pids)) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
