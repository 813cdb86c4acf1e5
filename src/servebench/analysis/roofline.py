"""How far from the hardware's floor the server was: an estimate from the model's shape and the GPUs' peak figures.

Shape of `roofline` in summary.json; labelled an estimate wherever it is shown::

    {"reason": str | null,                      # why there is no estimate
     "estimate": true, "gpus": 1, "gpu": "NVIDIA H200" | null, "kind": "bf16" | null,
     "bandwidth_bytes_per_s": 4.8e12 | null, "peak_flops": 9.9e14 | null, "source": str | null,
     "decode": {"reason": str | null, "floor_ms": 3.4, "measured_ms": 9.1, "achieved_share": 0.37,
                "weight_bytes": 1.6e10, "kv_bytes": 2.1e8, "sequences": 12.1, "context_tokens": 1240.0,
                "formula": str},
     "prefill": {"reason": str | null, "flops": 4.1e15, "floor_ms": 4150.0, "measured_ms": 9800.0,
                 "achieved_share": 0.42, "tokens": 210000, "prompts": 402, "formula": str},
     "server": {"reason": str | null, "flops_per_s": 3.1e14, "flops_share": 0.31, "read_bytes_per_s": 1.9e12,
                "bandwidth_share": 0.4, "formula": str}}        # by vLLM's own --enable-mfu-metrics

Floors hold for all used GPUs working together without any loss, and for the whole model on them once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis import gpus
from servebench.analysis.counters import growth
from servebench.analysis.data import MISSING
from servebench.analysis.facts import Facts
from servebench.analysis.gpu_peaks import Peaks, peaks_of, stated_peaks
from servebench.analysis.model_shape import ModelShape, UnknownShapeError
from servebench.analysis.phases import PHASES, Phases, level_at, prompt_tokens
from servebench.analysis.rounding import rounded
from servebench.analysis.sampling import absent

Document = dict[str, Any]

DECODE = (
    "floor = (parameters × bytes/weight + sequences × context × 2 × layers × kv_heads × head_dim × bytes/number) / "
    "(GPUs × bandwidth); sequences: mean in decode during decode-only time; context: prompt + half the answer, mean "
    "over output tokens; measured: mean ITL without a prefill in flight"
)
PREFILL = (
    "floor = Σ over prompts (2 × parameters × tokens + 2 × layers × heads × head_dim × tokens²) / (GPUs × peak "
    "FLOP/s); tokens: of prompts whose first token arrived in the window, less cached ones; measured: time with a "
    "prefill in flight"
)

SERVER = (
    "growth of the server's estimated FLOPs and bytes read per GPU over the measured window / its length, against one "
    "GPU's peak FLOP/s and bandwidth"
)
NOTHING: Document = {"decode": None, "prefill": None, "server": None}


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model ran on.

    Attributes:
        count: of GPUs.
        name: of them; None where only their peaks were stated.
        peaks: of one.
    """

    count: int
    name: str | None
    peaks: Peaks


def machine(facts: Facts, phases: Phases) -> Machine | str:
    """The GPUs that the server used and their peaks, or why they are not known."""
    stated = (facts.run.manifest.get("server_identity") or {}).get("gpu_peaks")
    found = gpus.find(facts, phases)
    used = [gpu for gpu in found if gpu.used]
    if stated:
        return Machine(max(len(used), int(stated.get("count") or 1)), None, stated_peaks(stated))
    if not found:
        return absent(facts.run, "nvml", "no GPU was sampled")
    if not used:
        return "it is not known which GPUs the server used"
    names = {gpu.name for gpu in used}
    if len(names) > 1:
        return "the server used GPUs of different kinds"
    peaks = peaks_of(used[0].name)
    if peaks is None:
        return f"the peak figures of {used[0].name or 'the GPU'} are not known"
    return Machine(len(used), used[0].name, peaks)


def describe(facts: Facts, phases: Phases, quiet_itl_ms: float | None) -> Document:
    """The `roofline` section of summary.json; `quiet_itl_ms` is the mean ITL without a prefill in flight."""
    found = machine(facts, phases)
    try:
        shape = _shape(facts.run.manifest.get("server_identity") or {})
    except UnknownShapeError as error:
        return _head(str(error), None, None) | NOTHING
    if isinstance(found, str):
        return _head(found, None, shape) | NOTHING
    parts = {
        "decode": decode(facts, phases, shape, found, quiet_itl_ms),
        "prefill": prefill(facts, phases, shape, found),
        "server": server(facts, shape, found),
    }
    return _head(None, found, shape) | parts


def _shape(identity: Mapping[str, Any]) -> ModelShape:
    if not identity.get("model"):
        why = (identity.get("absent") or {}).get("model")
        raise UnknownShapeError(f"the model's shape is not known: {why}" if why else "the model's shape is not known")
    return ModelShape.of(identity["model"])


def _head(reason: str | None, found: Machine | None, shape: ModelShape | None) -> Document:
    return {
        "reason": reason,
        "estimate": True,
        "gpus": found.count if found else None,
        "gpu": found.name if found else None,
        "kind": shape.kind if shape else None,
        "bandwidth_bytes_per_s": found.peaks.bandwidth if found else None,
        "peak_flops": found.peaks.at(shape.kind) if found and shape else None,
        "source": found.peaks.source if found else None,
    }


def decode(facts: Facts, phases: Phases, shape: ModelShape, found: Machine, measured: float | None) -> Document:
    """Floor of a decode step against the mean ITL without a prefill in flight (ms)."""
    sequences, context = decoding_sequences(facts, phases), mean_context(facts)
    if sequences is None or context is None or measured is None:
        reason = "there was no time in which requests only decoded"
        return {"reason": reason, **dict.fromkeys(_DECODE), "formula": DECODE}
    kv = sequences * context * shape.kv_bytes_per_token
    floor = 1e3 * (shape.weights + kv) / (found.count * found.peaks.bandwidth)
    values = (floor, measured, floor / measured, shape.weights, kv, sequences, context)
    return {"reason": None, **{k: rounded(v) for k, v in zip(_DECODE, values, strict=True)}, "formula": DECODE}


_DECODE = (
    "floor_ms",
    "measured_ms",
    "achieved_share",
    "weight_bytes",
    "kv_bytes",
    "sequences",
    "context_tokens",
)


def decoding_sequences(facts: Facts, phases: Phases) -> float | None:
    """Mean number of requests in decode over the decode-only time of the window; None without any."""
    start, end = facts.window.warmup_end, facts.window.throughput_end
    inside = phases.t[(phases.t > start) & (phases.t < end)]
    edges = np.concatenate([[start], inside, [max(end, start)]]).astype(np.int64)
    spans = np.diff(edges) * (phases.at(edges[:-1]) == PHASES.index("decode_only"))
    if not spans.sum():
        return None
    return float(np.dot(level_at(phases.decode, edges[:-1]), spans.astype(np.float64)) / spans.sum())


def mean_context(facts: Facts) -> float | None:
    """Mean tokens that an output token of the cohort attends to: the prompt and half of the answer."""
    requests = facts.run.requests
    known = facts.cohort & (requests.output_tokens > 0)
    output = requests.output_tokens[known].astype(np.float64)
    whole = np.where(requests.input_tokens != MISSING, requests.input_tokens, requests.input_planned)[known]
    return float(np.dot(output, whole + output / 2) / output.sum()) if output.size else None


def prefill(facts: Facts, phases: Phases, shape: ModelShape, found: Machine) -> Document:
    """FLOPs of the window's prompts at peak against the time in which a prefill was in flight."""
    peak = found.peaks.at(shape.kind)
    mine = facts.window.holds(facts.run.requests.first_token)
    tokens = prompt_tokens(facts.run.requests)[mine].astype(np.float64)
    spent = phases.time_in(facts.window.warmup_end, facts.window.throughput_end)
    measured = (spent["prefill_only"] + spent["mixed"]) / 1e6
    if peak is None or not tokens.size or measured <= 0:
        reason = "no prompt was prefilled in the window" if peak is not None else f"no peak for {shape.kind} is known"
        return {"reason": reason, **dict.fromkeys(_PREFILL), "formula": PREFILL}
    flops = prefill_flops(shape, tokens)
    floor = 1e3 * flops / (found.count * peak)
    values = (flops, floor, measured, floor / measured, int(tokens.sum()), int(tokens.size))
    return {"reason": None, **{k: rounded(v) for k, v in zip(_PREFILL, values, strict=True)}, "formula": PREFILL}


_PREFILL = ("flops", "floor_ms", "measured_ms", "achieved_share", "tokens", "prompts")


def prefill_flops(shape: ModelShape, tokens: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """FLOPs to prefill prompts of so many tokens: two a weight and token, and causal attention."""
    attention = 2.0 * shape.layers * shape.heads * shape.head_dim
    return float((2.0 * shape.parameters * tokens + attention * tokens**2).sum())


def server(facts: Facts, shape: ModelShape, found: Machine) -> Document:
    """What the server itself estimates that it computed and read, against one GPU's peaks."""
    seconds, peak = facts.window.seconds, found.peaks.at(shape.kind)
    flops, read = (growth(facts, name).window for name in ("estimated_flops", "estimated_read_bytes"))
    if not flops or not read or seconds <= 0:  # counters that stay at 0 are there without the flag, too
        reason = "the server does not estimate its FLOPs and bytes (vLLM: --enable-mfu-metrics)"
        return {"reason": reason, **dict.fromkeys(_SERVER), "formula": SERVER}
    values = (
        flops / seconds,
        flops / seconds / peak if peak else None,
        read / seconds,
        read / seconds / found.peaks.bandwidth,
    )
    return {"reason": None, **{k: rounded(v) for k, v in zip(_SERVER, values, strict=True)}, "formula": SERVER}


_SERVER = ("flops_per_s", "flops_share", "read_bytes_per_s", "bandwidth_share")
