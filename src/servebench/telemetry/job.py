"""What the sampler process is told: one JSON line."""

from __future__ import annotations

import msgspec


class SamplerJob(msgspec.Struct, kw_only=True, frozen=True):
    """The work of the sampler.

    Attributes:
        journal_dir: where its journal and, at its end, `telemetry.json` go; it exists.
        server_metrics_url: of the server's Prometheus page, such as `http://127.0.0.1:8000/metrics`, or None.
        engine: "vllm", "sglang", "tgi", "sim" or "unknown", which is then told from the page.
        api_key_env: name of the variable that holds the API key, sent to the server's page.
        headers: sent to the server's page as well.
        scrape_hz: of the server's page.
        nvml: whether this machine's GPUs are sampled.
        nvml_hz: how often.
        nvml_library: path of a libnvidia-ml.so.1 instead of the system's.
        server_pids: processes of the server under test, which may use the GPUs.
        host: whether this machine itself is sampled.
        host_hz: how often.
        remote_url: of `servebench telemetry serve` or a DCGM exporter on the GPU host.
        remote_token_env: name of the variable that holds its token.
        verify: whether TLS certificates are checked.
        ca_file: trusted certificates instead of the system's.
    """

    journal_dir: str
    server_metrics_url: str | None = None
    engine: str = "unknown"
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    scrape_hz: float = 2.0
    nvml: bool = True
    nvml_hz: float = 20.0
    nvml_library: str | None = None
    server_pids: list[int] = []
    host: bool = True
    host_hz: float = 2.0
    remote_url: str | None = None
    remote_token_env: str | None = None
    verify: bool = True
    ca_file: str | None = None

    def encode(self) -> bytes:
        """As one line."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> SamplerJob:
        """Read what `encode` gave; raises msgspec.ValidationError."""
        return msgspec.json.decode(line, type=cls)

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of the sources that are asked for."""
        wanted = {
            "server": self.server_metrics_url is not None,
            "nvml": self.nvml,
            "host": self.host,
            "remote": self.remote_url is not None,
        }
        return tuple(name for name, asked in wanted.items() if asked)
