"""What vLLM's log says about the seconds that its start took."""

from __future__ import annotations

import re

# The last of several lines counts: a restarted engine core, or one line a worker, says it again.
STAGES = {
    "weights_s": r"Loading weights took ([\d.]+) seconds",
    "model_s": r"Model loading took \S+ GiB memory and ([\d.]+) seconds",
    "compile_s": r"torch\.compile took ([\d.]+) s in total",
    "profiling_s": r"Initial profiling/warmup run took ([\d.]+) s",
    "kernel_warmup_s": r"JIT kernel warmup finished in ([\d.]+)s",
    "graph_capture_s": r"\bGraph capturing finished in ([\d.]+) secs",
    "engine_s": r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s",
}


def startup_times(log: str) -> dict[str, float]:
    """Seconds by stage, of the stages that the log tells; `engine_s` holds those between weights and serving.

    Args:
        log: its text, without colours.
    """
    found = {name: re.findall(pattern, log) for name, pattern in STAGES.items()}
    return {name: float(seconds[-1]) for name, seconds in found.items() if seconds}
