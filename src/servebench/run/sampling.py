"""The sampler of a run: started before its load, ended after it, and never able to stop it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from servebench.telemetry.processes import process_tree
from servebench.telemetry.samplers import SamplerProcess

if TYPE_CHECKING:
    from servebench.engine.attach import EndpointFacts
    from servebench.record.rundir import RunDir
    from servebench.run.options import RunOptions
    from servebench.run.target import Target
    from servebench.scenario.schema import Scenario
    from servebench.telemetry.job import SamplerJob

READY_LIMIT_S = 3.0  # from the briefing; the workers prepare meanwhile
OFF: dict[str, Any] = {"sources": {}, "cpu_share": None, "reason": "switched off (--no-telemetry)"}


class Sampling:
    """The sampler process, which warms up from here on; with telemetry switched off, none.

    Attributes:
        warnings: one line each on what went wrong; complete after `end`.
    """

    def __init__(self, options: RunOptions) -> None:
        self.warnings: list[str] = []
        self._options = options
        self._process = SamplerProcess() if options.telemetry else None
        self._briefed = 0.0

    def begin(self, scenario: Scenario, rundir: RunDir, facts: EndpointFacts, target: Target) -> None:
        """Let it sample. No request but the load's may follow, since the server's counters are compared with it."""
        self._briefed = time.monotonic()
        if self._process is not None:
            self._process.brief(job_of(scenario, self._options, rundir, facts, target))

    def wait_ready(self) -> None:
        """Return when every source has its baseline, or `READY_LIMIT_S` after the briefing."""
        if self._process is None or self._process.ready(max(0.0, self._briefed + READY_LIMIT_S - time.monotonic())):
            return
        if self._process.alive():
            self.warnings.append(f"telemetry: a source had no first sample within {READY_LIMIT_S:g} s of being asked")

    def end(self) -> dict[str, Any]:
        """Take the final samples; return the manifest's `telemetry`."""
        if self._process is None:
            return {"telemetry": OFF}
        report = self._process.stop()
        lost = {s.get("reason") for s in report["sources"].values() if s.get("state") == "lost"}
        self.warnings += [f"telemetry: {reason}" for reason in sorted(filter(None, lost))]
        return {"telemetry": report}

    def kill(self) -> None:
        """End it at once; for a run that comes to nothing."""
        if self._process is not None:
            self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.__exit__(kind, error, trace)


def job_of(scenario: Scenario, options: RunOptions, rundir: RunDir, facts: EndpointFacts, target: Target) -> SamplerJob:
    """What the sampler is told."""
    from servebench.telemetry.job import SamplerJob

    return SamplerJob(
        journal_dir=str(rundir.journal_dir),
        server_metrics_url=f"{facts.url}/metrics",
        engine=facts.engine,
        api_key_env=options.api_key_env,
        headers=dict(scenario.endpoint.headers),
        scrape_hz=options.scrape_hz,
        nvml_hz=options.nvml_hz,
        nvml_library=None if options.nvml_library is None else str(options.nvml_library),
        server_pids=_server_pids(facts, target),
        remote_url=options.telemetry_url,
        remote_token_env=options.telemetry_token_env,
        verify=not options.insecure,
        ca_file=str(options.ca_file) if options.ca_file else None,
    )


def _server_pids(facts: EndpointFacts, target: Target) -> list[int]:
    """The server's processes, to tell them from others on its GPUs; none if it is not known to run on this machine."""
    if target.pid is not None:
        return process_tree(target.pid)
    from urllib.parse import urlsplit

    from servebench.engine.reach import is_loopback
    from servebench.telemetry.listeners import gpu_server_pids

    port = urlsplit(facts.url).port
    return gpu_server_pids(port) if port is not None and is_loopback(facts.url) else []
