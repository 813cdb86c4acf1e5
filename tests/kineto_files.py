"""Traces as torch's profiler writes them: each time origin, layout and oddity, with known content."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOST_PID = 4321
Document = dict[str, Any]


def span(
    cat: str, name: str, begin_us: float, dur_us: float | None, pid: Any = HOST_PID, tid: Any = 11, **args: Any
) -> Document:
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": begin_us, "dur": dur_us, "args": args}
    return {key: value for key, value in event.items() if value is not None}


def kernel(name: str, begin_us: float, dur_us: float, *, device: int = 0, stream: int = 7, **args: Any) -> Document:
    args = {"device": device, "context": 1, "stream": stream, "grid": [8, 1, 1], **args}
    return span("kernel", name, begin_us, dur_us, device, stream, **args)


def memcpy(direction: str, begin_us: float, dur_us: float, size: int, **args: Any) -> Document:
    name = f"Memcpy {direction} (Pageable -> Device)"
    return span("gpu_memcpy", name, begin_us, dur_us, 0, 20, **{"device": 0, "stream": 20, "bytes": size, **args})


def step(begin_us: float, dur_us: float, name: str = "execute_context_0(0)_generation_4(4)") -> Document:
    return span("user_annotation", name, begin_us, dur_us)


def decode_steps(number: int, begin_us: float = 0.0, step_us: float = 10_000.0) -> list[Document]:
    """Steps of four requests, back to back; each launches one kernel of half the step, 100 µs after its begin."""
    events = []
    for index in range(number):
        at = begin_us + index * step_us
        events.append(step(at, step_us - 500))
        events.append(span("cpu_op", "aten::mm", at + 50, 200.0))
        events.append(span("cuda_runtime", "cudaLaunchKernel", at + 100, 10.0, correlation=100 + index))
        events.append(kernel("gemm_kernel", at + 150, step_us / 2, correlation=100 + index))
    return events


def document(
    events: Sequence[Document],
    *,
    base_ns: int | None = None,
    stated: tuple[float, float] | None = None,
    rank: int = 0,
    ranks: int = 1,
    devices: Sequence[str] = ("NVIDIA H100",),
    **more: Any,
) -> Document:
    """A whole trace; `stated` is the profiler's own begin and end in µs."""
    trace = list(events)
    if stated is not None:
        begin, end = stated
        trace.append(span("Trace", "PyTorch Profiler (0)", begin, end - begin, "Spans", "PyTorch Profiler"))
        trace.append({"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end + 5000})
    label = {
        "ph": "M",
        "name": "process_name",
        "ts": 0,
        "pid": HOST_PID,
        "tid": 0,
        "args": {"name": "VLLM::EngineCore"},
    }
    head: Document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": number, "name": name} for number, name in enumerate(devices)],
        "distributedInfo": {"rank": rank, "world_size": ranks, "pg_config": [{"ranks": [rank]}]},
        "vllm_version": "0.32.0",
        **more,
    }
    if base_ns is not None:
        head["baseTimeNanoseconds"] = base_ns
    return {**head, "traceEvents": [label, *trace], "traceName": "trace.json"}


def text(trace: Document, indent: int | None = 2) -> bytes:
    return json.dumps(trace, indent=indent).encode()


def write(path: Path, trace: Document | bytes, *, written_ns: int | None = None, indent: int | None = 2) -> Path:
    """Write it, gzipped where the name ends so, and dated `written_ns`."""
    data = trace if isinstance(trace, bytes) else text(trace, indent)
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    if written_ns is not None:
        os.utime(path, ns=(written_ns, written_ns))
    return path
