"""A worker process: its shard of the plan, its own sockets, its own journal, and no message for any event.

``python -m servebench.dispatch.worker`` reads its parent's process id and the path of its `Job` from standard input,
so that the interpreter and the imports are warm before the plan exists. From then on the parent speaks through the
shared counters alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from servebench.clock import Anchor
from servebench.dispatch.health import Health
from servebench.dispatch.job import Job
from servebench.dispatch.loops import ClosedLoop, Loop, OpenLoop
from servebench.dispatch.payloads import Payloads
from servebench.dispatch.sender import Sender
from servebench.dispatch.slices import Slices
from servebench.errors import ServebenchError
from servebench.record.counters import Command, LiveCounters, Slot, State, WorkerCounters
from servebench.record.journal import JournalWriter
from servebench.record.raw import RawWriter
from servebench.record.redaction import headers as shown_headers
from servebench.record.redaction import secrets_of
from servebench.wire.pool import Limits, Origin, Pool
from servebench.wire.reactor import make_reactor
from servebench.workload.plan import Plan

POLL_S = 0.04  # each look costs as much as several tokens
FIRST_PAYLOADS = 64  # ready before the load may start


def tls_context(verify: bool, ca_file: str | None) -> ssl.SSLContext:
    """The context for https: certificates checked against the system's store or `ca_file`, unless `verify` is off."""
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Worker:
    """Runs one job inside an event loop; `parent` is the process to which it belongs."""

    def __init__(self, job: Job, plan: Plan, counters: WorkerCounters, parent: int) -> None:
        self._job = job
        self._rundir = Path(job.rundir)
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._reactor = make_reactor(self._loop)
        self._rows = plan.shard(job.worker, job.workers)
        self._offsets = plan.scheduled_ns[self._rows]
        payloads = self._payloads = Payloads(job, plan, self._rows)
        self._slices = Slices(self._loop, payloads.prepare_one)
        url = httpx.URL(job.url)
        tls = tls_context(job.verify, job.ca_file) if url.scheme == "https" else None
        limits = Limits(job.connect_timeout, job.idle_timeout, job.timeout)
        self._pool = Pool(Origin.of(url), self._reactor, limits, tls)
        self._journal = JournalWriter(self._rundir / "journal", job.worker)
        self._raw = RawWriter(self._rundir / "raw", job.worker) if job.keep_raw else None
        secrets = secrets_of({"endpoint": {"headers": job.headers}}, os.environ, [job.api_key_env])
        self._sender = Sender(
            job,
            plan,
            payloads,
            self._pool,
            self._slices,
            self._journal,
            self._raw,
            counters,
            secrets,
            _local_count(job.tokenizer),
        )
        self._load: Loop = (
            OpenLoop(job, self._rows, self._offsets, self._sender, self._slices, self._loop)
            if job.concurrency is None
            else ClosedLoop(job, self._rows, self._sender, self._slices, self._loop)
        )
        self._health = Health(job.worker, self._sender, self._slices, self._journal, counters, self._loop)
        self._parent = parent
        self._terminated = False
        self._failure: BaseException | None = None

    async def run(self) -> dict[str, Any]:
        """Send the shard, wait for the answers, and return the worker's own figures.

        An error in anything that the event loop calls ends the run as well: a worker that goes on without knowing what
        it has missed would wait for ever, or report less than there was.
        """
        self._loop.set_exception_handler(self._failed)
        self._loop.add_signal_handler(signal.SIGTERM, self._terminate)
        try:
            return await self._run()
        except BaseException:
            self._salvage()
            raise

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failure = self._failure or context.get("exception") or RuntimeError(context["message"])

    def _salvage(self) -> None:
        """Save what is recorded, before the error ends the process."""
        try:
            self._journal.close()
        except ServebenchError:
            pass  # it may be the very error

    async def _run(self) -> dict[str, Any]:
        for _ in range(FIRST_PAYLOADS):
            self._payloads.prepare_one()
        self._slices.wake()  # the others while the start is waited for
        self._counters.state(State.READY)
        await self._wait_for_start()
        started_cpu, started_wall = time.process_time_ns(), time.monotonic_ns()
        self._health.start()
        self._load.start(Anchor.now(), self._counters.start_monotonic_ns)
        self._counters.state(State.RUNNING)
        await self._until_sent()
        self._counters.state(State.DRAINING)
        await self._until_drained()
        self._slices.flush()
        self._health.sample()
        cpu = time.process_time_ns() - started_cpu
        figures = self._figures(cpu, time.monotonic_ns() - started_wall)
        self._journal.close()
        if self._raw is not None:
            self._raw.close()
        await self._pool.close()
        self._reactor.close()
        return figures

    def _terminate(self) -> None:
        self._terminated = True

    @property
    def _command(self) -> Command:
        """What is wanted; a worker whose parent has gone, or that was told to end, saves and ends by itself."""
        if self._failure is not None:
            raise self._failure
        if self._terminated or os.getppid() != self._parent:
            return Command.STOP
        return self._counters.command

    async def _wait_for_start(self) -> None:
        while self._command == Command.WAIT:
            await asyncio.sleep(0.002)

    async def _until_sent(self) -> None:
        tick = 0
        while not self._load.exhausted:
            if self._command >= Command.DRAIN or self._counters.load_stop:
                break
            await asyncio.sleep(POLL_S)
            tick += 1
            if tick % 5 == 0:
                self._flush()
        self._load.stop()

    async def _until_drained(self) -> None:
        tick = 0
        while self._sender.busy:
            if self._command >= Command.STOP:
                self._sender.give_up()
                self._slices.flush()
                return
            await asyncio.sleep(POLL_S)
            tick += 1
            if tick % 5 == 0:
                self._flush()

    def _flush(self) -> None:
        self._journal.flush()
        self._counters.set(Slot.TOKENS, self._sender.live_tokens())
        self._counters.set(Slot.ANSWERING, self._sender.answering())
        self._counters.set(Slot.PAUSED, self._load.paused)

    def _figures(self, cpu_ns: int, wall_ns: int) -> dict[str, Any]:
        self._counters.set(Slot.TOKENS, self._sender.live_tokens())
        return {
            "worker": self._job.worker,
            "pid": os.getpid(),
            "exit": "died" if self._terminated else "clean",
            "cpu_load_s": cpu_ns / 1e9,
            "cpu_s": time.process_time(),
            "load_s": wall_ns / 1e9,
            "connections": self._pool.opened,
            "reads": self._sender.reads,
            "kernel_stamped_reads": self._sender.reads - self._sender.user_stamped_reads,
            "wakeups": self._reactor.wakeups,
            "made_late": self._payloads.made_late,
            "pauses": getattr(self._load, "pauses", 0),
            **self._health.figures(),
            "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }


def _local_count(tokenizer: str | None) -> Callable[[str], int] | None:
    if tokenizer is None:
        return None
    from servebench.workload.tokenizers import LocalTokenizer

    encode = LocalTokenizer(tokenizer).encode

    def count(text: str) -> int:
        encoded = encode(text)
        return encoded.count if encoded is not None else 0

    return count


def main() -> None:
    """Run the job that standard input names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    import uvloop

    parent, _, path = sys.stdin.readline().strip().partition(" ")
    if not path:
        return  # the parent changed its mind
    job = Job.read(Path(path))
    if shown_headers(job.headers) != job.headers:
        Path(path).unlink(missing_ok=True)  # a secret must not outlive a kill
    counters = LiveCounters.open(Path(job.counters)).worker(job.worker)
    counters.set(Slot.PID, os.getpid())
    plan = Plan.read(Path(job.rundir) / "plan.parquet")
    gc.collect()
    gc.freeze()
    gc.disable()

    async def work() -> dict[str, Any]:
        return await Worker(job, plan, counters, int(parent)).run()

    try:
        figures = uvloop.run(work())
    except ServebenchError as error:
        sys.stderr.write(f"{error}\n")  # into the worker's log, whose last line the parent repeats
        sys.exit(int(error.exit_code))
    report = Path(job.rundir) / "journal" / f"worker-{job.worker}.json"
    report.with_suffix(".new").write_text(json.dumps(figures))
    report.with_suffix(".new").replace(report)
    if os.getppid() != int(parent):
        Path(job.counters).unlink(missing_ok=True)  # where the parent died before all workers had it open
    if figures["exit"] != "clean":
        sys.stderr.write("it was ended by SIGTERM\n")
        sys.exit(128 + signal.SIGTERM)
    counters.state(State.DONE)


if __name__ == "__main__":
    main()
