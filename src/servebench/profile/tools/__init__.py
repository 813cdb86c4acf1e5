"""The profilers, one module each."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from servebench.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from servebench.profile.tool import Tool

NAMES = {
    "torch": "vLLM's torch profiler, on CPU and GPU: steps, operators, kernels",
    "nsys": "Nsight Systems: kernels, copies, CUDA calls, NVTX ranges, calls of the operating system",
    "perf": "Linux perf: where the server's processes spend CPU time, as a flame graph",
    "ncu": "Nsight Compute: one kernel against the GPU's roofline",
    "sanitizer": "Compute Sanitizer: memory errors and races of the engine's kernels",
    "xprof": "the profiler port of a JAX server",
}
_CLASSES = {
    "torch": "TorchTool",
    "nsys": "NsysTool",
    "perf": "PerfTool",
    "ncu": "NcuTool",
    "sanitizer": "SanitizerTool",
    "xprof": "XprofTool",
}


def tool_class(name: str) -> type[Tool]:
    """Import a tool by its name. Raises UsageError for an unknown one, with the nearest name."""
    if name not in NAMES:
        raise UsageError(f'no profiler "{name}": expected {", ".join(NAMES)}{did_you_mean(name, NAMES)}')
    found: type[Tool] = getattr(importlib.import_module(f"servebench.profile.tools.{name}"), _CLASSES[name])
    return found


def make_tool(name: str, folder: Path, settings: Mapping[str, str]) -> Tool:
    """The tool, for one run. Raises UsageError for an unknown name or option."""
    return tool_class(name)(folder, settings)
