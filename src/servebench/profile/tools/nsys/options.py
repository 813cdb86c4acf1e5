"""What of nsys a user may choose, and what it is without a choice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servebench.errors import UsageError, did_you_mean

MEANINGS = {
    "trace": "what to trace: cuda, nvtx, osrt, ... with commas between them (cuda,nvtx; without a GPU nvtx,osrt)",
    "sample": "samples of where the CPUs are: none, process-tree or system-wide (none)",
    "mode": "session: nsys starts and stops; range: vLLM's profile routes bracket the capture, to the step (session)",
    "session": "the session of a server that you launched under nsys launch --session-new NAME",
    "limit": "seconds that storing and exporting one report may take (600)",
}
MODES = ("session", "range")
SAMPLES = ("none", "process-tree", "system-wide")
DRIVERS = ("/proc/driver/nvidia/version", "/dev/dxg")  # the second is WSL's; /dev/nvidiactl comes with libcuda alone


@dataclass(frozen=True, slots=True)
class Options:
    """The settings, read.

    Attributes:
        trace: APIs to trace.
        sample: how to sample the CPUs.
        mode: "session" or "range".
        session: name of the user's own session; None for a server of ours.
        limit_s: for storing and for exporting one report.
        gpu: whether this machine has an NVIDIA GPU.
    """

    trace: tuple[str, ...]
    sample: str
    mode: str
    session: str | None
    limit_s: float
    gpu: bool

    @classmethod
    def read(cls, settings: Mapping[str, str], gpu: bool) -> Options:
        """Read settings whose keys are of `MEANINGS`.

        Raises:
            UsageError: a value that makes no sense, or needs a GPU that is not there.
        """
        default = "cuda,nvtx" if gpu else "nvtx,osrt"
        trace = settings.get("trace", default)
        if not re.fullmatch(r"[a-z][a-z0-9-]*(,[a-z][a-z0-9-]*)*", trace):
            raise UsageError(f'nsys option trace="{trace}": expected names with commas between them, such as {default}')
        mode = _choice(settings, "mode", MODES)
        if mode == "range" and not gpu:
            raise UsageError("nsys option mode=range is driven by CUDA's profiler calls, and no NVIDIA GPU is here")
        if mode == "range" and "session" in settings:
            raise UsageError("nsys option session is of mode=session")
        sample = _choice(settings, "sample", SAMPLES)
        return cls(tuple(trace.split(",")), sample, mode, settings.get("session"), _seconds(settings), gpu)

    @property
    def launching(self) -> tuple[str, ...]:
        """Arguments of `nsys launch`, and of `nsys profile`, for what to trace in the server."""
        flags = (f"--trace={','.join(self.trace)}", "--trace-fork-before-exec=true")
        return (*flags, "--cuda-graph-trace=node") if "cuda" in self.trace else flags

    @property
    def collecting(self) -> tuple[str, ...]:
        """Arguments of `nsys start`, and of `nsys profile`, for what to collect of the CPUs."""
        sample = f"--sample={self.sample}"
        return (sample, "--cpuctxsw=none") if self.sample == "none" else (sample,)


def has_gpu() -> bool:
    """Whether an NVIDIA GPU's driver is loaded here."""
    return any(Path(driver).exists() for driver in DRIVERS)


def _choice(settings: Mapping[str, str], key: str, choices: tuple[str, ...]) -> str:
    value = settings.get(key, choices[0])
    if value not in choices:
        raise UsageError(f'nsys option {key}="{value}": expected {", ".join(choices)}{did_you_mean(value, choices)}')
    return value


def _seconds(settings: Mapping[str, str]) -> float:
    text = settings.get("limit", "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f'nsys option limit="{text}": expected a number of seconds')
    return seconds
