"""The sampler process: every source in a thread of its own, one journal, no part in the load.

``python -m servebench.telemetry.sampler`` reads its `SamplerJob` from standard input, takes a baseline sample of every
source, prints "ready", and samples on until standard input is closed or SIGTERM comes. Then it takes a final sample and
leaves `telemetry.json` beside its journal.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.errors import ServebenchError
from servebench.telemetry.job import SamplerJob
from servebench.telemetry.source import Reading, Source, SourceLoop

if TYPE_CHECKING:
    from servebench.record.journal import JournalWriter

READY_LIMIT_S = 2.5  # a source that has not answered by then has no baseline, and the load does not wait for it
END_LIMIT_S = 4.0
FLUSH_S = 1.0
NICE = 10  # the load and the server go first


def makers(job: SamplerJob) -> dict[str, Callable[[], Source]]:
    """How each source that is asked for is made, by its name. Each imports what it needs when it is called."""

    def server() -> Source:
        from servebench.telemetry.prometheus import PrometheusSource

        assert job.server_metrics_url is not None
        return PrometheusSource(
            job.server_metrics_url,
            job.scrape_hz,
            job.engine,
            headers=_headers(job),
            verify=job.verify,
            ca_file=job.ca_file,
        )

    def nvml() -> Source:
        from servebench.telemetry.nvml import NvmlSource

        return NvmlSource(job.nvml_hz, job.nvml_library, job.server_pids)

    def host() -> Source:
        from servebench.telemetry.host_source import HostSource

        return HostSource(job.host_hz)

    def remote() -> Source:
        from servebench.telemetry.remote_source import RemoteSource

        return RemoteSource.of(job)

    known = {"server": server, "nvml": nvml, "host": host, "remote": remote}
    return {name: known[name] for name in job.asked}


def _headers(job: SamplerJob) -> dict[str, str]:
    key = os.environ.get(job.api_key_env) if job.api_key_env else None
    return {**job.headers, **({"Authorization": f"Bearer {key}"} if key else {})}


class Sampler:
    """Runs the sources of one job until it is told to end."""

    def __init__(self, job: SamplerJob) -> None:
        self._directory = Path(job.journal_dir)
        self._opened: JournalWriter | None = None
        self._fresh: deque[tuple[str, int, Sequence[Reading]]] = deque()
        self._began = 0.0, 0.0
        self._loops = [SourceLoop(name, make, self._take) for name, make in makers(job).items()]

    def _take(self, source: str, t_ns: int, readings: Sequence[Reading]) -> None:
        self._fresh.append((source, t_ns, readings))  # atomic: the sources neither wait for each other nor for a disk

    def baseline(self) -> None:
        """Start every source and return when each has its first sample, is absent, or has had its time."""
        for loop in self._loops:
            loop.start()
        deadline = time.monotonic() + READY_LIMIT_S
        for loop in self._loops:
            loop.baselined.wait(max(0.0, deadline - time.monotonic()))
        self._began = time.monotonic(), time.process_time()

    @property
    def _journal(self) -> JournalWriter:
        """Opened when first written to: its imports would delay the baseline, and with it the load."""
        if self._opened is None:
            from servebench.record.journal import JournalWriter

            self._opened = JournalWriter(self._directory, "telemetry")
        return self._opened

    def flush(self) -> None:
        """Hand what was read to the kernel."""
        while self._fresh:
            source, t_ns, readings = self._fresh.popleft()
            for device, name, value, *own in readings:
                self._journal.sample(source, device, name, own[0] if own else t_ns, value)
        self._journal.flush()

    def finish(self) -> dict[str, Any]:
        """Take the final samples, close the journal and return the manifest's part."""
        for loop in self._loops:
            loop.stop()
        deadline = time.monotonic() + END_LIMIT_S
        for loop in self._loops:
            loop.join(deadline - time.monotonic())
        wall, cpu = self._began
        share = (time.process_time() - cpu) / max(1e-9, time.monotonic() - wall)
        self.flush()
        self._journal.close()
        return {"sources": {loop.name: loop.report() for loop in self._loops}, "cpu_share": share, "process": _usage()}


def _usage() -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024
    return {"pid": os.getpid(), "cpu_s": usage.ru_utime + usage.ru_stime, "max_rss_bytes": usage.ru_maxrss * unit}


class Ending:
    """Tells when to end: standard input closed, SIGTERM, or the parent gone."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(wake)

    def within(self, seconds: float) -> bool:
        """Wait for it, for `seconds` at most."""
        readable, _, _ = select.select([0, self._wake], [], [], seconds)
        if self._wake in readable or os.getppid() != self._parent:
            return True
        return 0 in readable and not os.read(0, 4096)


def main() -> None:
    """Run the job on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    ending = Ending()
    os.nice(NICE)
    _warm_up()
    line = sys.stdin.buffer.readline()
    if not line.strip():
        return  # the parent changed its mind
    try:
        _run(SamplerJob.decode(line), ending)
    except ServebenchError as error:
        sys.stderr.write(f"{error}\n")  # its last line is what the parent repeats
        sys.exit(int(error.exit_code))


def _warm_up() -> None:
    """Import what nearly every job needs, while it is waited for."""
    import servebench.telemetry.host_source
    import servebench.telemetry.nvml
    import servebench.telemetry.prometheus  # noqa: F401


def _run(job: SamplerJob, ending: Ending) -> None:
    sampler = Sampler(job)
    sampler.baseline()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not ending.within(FLUSH_S):
        sampler.flush()
    report = Path(job.journal_dir) / "telemetry.json"
    report.with_suffix(".new").write_text(json.dumps(sampler.finish()))
    report.with_suffix(".new").replace(report)


if __name__ == "__main__":
    main()
