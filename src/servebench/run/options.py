"""What is added to a scenario to make a run of it, and who is told how the run goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servebench.profile.windows import ProfileRequest
    from servebench.record.counters import LiveCounters
    from servebench.run.target import Target
    from servebench.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line adds to a scenario.

    Attributes:
        endpoint: a base URL, "vllm" or "sim".
        model: overrides the scenario's model.
        out: the run directory; None makes one below `results`.
        results: where run directories go by default.
        workers: worker processes; None chooses by the plan's rate and the machine's processors.
        keep_raw: whether raw bytes are stored.
        tokenizer: a local tokenizer, for servers without one.
        api_key_env: name of the environment variable that holds the API key.
        ca_file: trusted certificates instead of the system's.
        insecure: do not check certificates.
        vllm_python: the Python that has vLLM.
        salt: of the prompts; None draws one, so that no run meets the cache of another.
        telemetry: whether the server's metrics, this machine and its GPUs are sampled.
        nvml_library: path of a libnvidia-ml.so.1 instead of the system's.
        nvml_hz, scrape_hz: samples a second of the GPUs and of the server's metrics.
        telemetry_url: of telemetry on the GPU host: `servebench telemetry serve`, or a DCGM exporter.
        telemetry_token_env: name of the environment variable that holds the token for it.
        probes: fixed greedy probes that are asked after the load (see `probing`), at most 16.
        reset_caches: whether a server that runs already is asked to forget its prefix cache before the load.
        profile: what a profiler is to capture after the load; None without one.
    """

    endpoint: str = "vllm"
    model: str | None = None
    out: Path | None = None
    results: Path = Path("results")
    workers: int | None = None
    keep_raw: bool = False
    tokenizer: str | None = None
    api_key_env: str | None = None
    ca_file: Path | None = None
    insecure: bool = False
    vllm_python: Path | None = None
    salt: int | None = None
    telemetry: bool = True
    nvml_library: Path | None = None
    nvml_hz: float = 20.0
    scrape_hz: float = 2.0
    telemetry_url: str | None = None
    telemetry_token_env: str | None = None
    probes: int = 0
    reset_caches: bool = False
    profile: ProfileRequest | None = None


class Observer:
    """What a live view overrides; every method does nothing here."""

    def status(self, text: str) -> None:
        """What is being waited for before there is load."""

    def load(self, scenario: Scenario, target: Target, counters: LiveCounters, rows: int) -> None:
        """The load starts; `counters` show it until `done`."""

    def done(self) -> None:
        """The load has ended."""
