"""Answers of a profile window as the analysis writes them, for tests of what is said of them."""

from __future__ import annotations

from typing import Any

KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)


def kernel(name: str, n: int, total: float, exposed: float, share: float) -> dict[str, Any]:
    return {
        "name": name,
        "n": n,
        "total_ms": total,
        "exposed_ms": exposed,
        "exposed_share": share,
        "mean_us": 1000 * total / n,
        "p50_us": 900 * total / n,
        "p99_us": 2000 * total / n,
    }


def device() -> dict[str, Any]:
    return {
        "device": 0,
        "name": "NVIDIA H200",
        "busy": {
            "ms": 3009.2,
            "share": 0.6018,
            "compute_ms": 2874.0,
            "communication_ms": 120.5,
            "copy_ms": 14.6,
            "fill_ms": 0.1,
            "summed_ms": 3391.0,
        },
        "idle": {
            "ms": 1990.8,
            "share": 0.3982,
            "sizes": [
                {"from_us": 0.0, "to_us": 10.0, "n": 9120, "ms": 21.0},
                {"from_us": 10.0, "to_us": 100.0, "n": 812, "ms": 40.1},
                {"from_us": 1000.0, "to_us": 10000.0, "n": 421, "ms": 1929.7},
                {"from_us": 10000.0, "to_us": None, "n": 0, "ms": 0.0},
            ],
            "causes": [
                {
                    "cause": "host_late",
                    "n": 430,
                    "ms": 1780.0,
                    "short_n": 0,
                    "short_ms": 0.0,
                    "text": "the launch came after the device had run dry",
                },
                {
                    "cause": "copy_or_sync",
                    "n": 500,
                    "ms": 160.8,
                    "short_n": 0,
                    "short_ms": 0.0,
                    "text": "a copy or a synchronisation",
                },
                {
                    "cause": "no_request",
                    "n": 1,
                    "ms": 50.0,
                    "short_n": 0,
                    "short_ms": 0.0,
                    "text": "no request was in flight",
                },
            ],
            "longest": [
                {
                    "start_ms": 1203.4,
                    "ms": 50.0,
                    "cause": "no_request",
                    "before": KERNEL,
                    "after": "ampere_fp16_s16816gemm[tn]",
                }
            ],
        },
        "kernels": [
            kernel("ampere_fp16_s16816gemm[tn]", 9000, 1500.0, 1490.0, 0.298),
            kernel(KERNEL, 4500, 601.25, 420.5, 0.0841),
            kernel("[bold]odd[/bold]", 12, 0.9, 0.0, 0.0),
        ],
        "kernels_n": 143,
        "tiny": {"below_us": 10, "n": 9001, "share": 0.4321, "ms": 27.0},
        "launches": {"n": 18200, "p50_us": 8.1, "p99_us": 210.0, "min_us": -1.2, "negative": 2},
        "copies": [
            {
                "direction": "host to device",
                "n": 840,
                "bytes": 33_600_000,
                "ms": 9.6,
                "exposed_ms": 8.0,
                "overlapped_share": 0.1667,
                "gb_per_s": 3.5,
            }
        ],
        "communication": {
            "ms": 120.5,
            "exposed_ms": 90.1,
            "hidden_share": 0.2523,
            "kernels": [kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 840, 120.5, 90.1, 0.018)],
        },
        "graphs": {"replays": 420, "kernels_in_graphs": 15_000},
    }


def step_kind(kind: str, n: int, p50: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "n": n,
        "mean": p50 * 1.02,
        "p50": p50 * 0.5,
        "p95": p50 * 0.6,
        "max": p50,
        "period": {"n": n - 1, "mean": p50 * 1.02, "p50": p50, "p95": p50 * 1.2, "max": p50 * 2},
        "busy_p50": p50 * 0.6,
        "idle_p50": p50 * 0.4,
        "context_tokens_mean": 0.0 if kind == "decode_only" else 812.5,
        "generation_requests_mean": 8.0,
    } | more


def decode() -> dict[str, Any]:
    """A decode window of a GPU server, with something in every part."""
    return {
        "name": "decode",
        "kind": "decode",
        "tool": "nsys",
        "version": "2024.5.1",
        "source": "nsys",
        "window": {"start_ns": 1_780_000_000_000_000_000, "end_ns": 1_780_000_005_000_000_000, "ms": 5000.0},
        "empty": False,
        "reason": None,
        "alignment": {
            "method": "the session's start as the file states it",
            "offset_us": 0.0,
            "residual_us": 212.0,
            "reason": None,
        },
        "traffic": {
            "shares": {"idle": 0.01, "prefill_only": 0.0, "decode_only": 0.97, "mixed": 0.02},
            "in_flight": {"mean": 7.9, "max": 8},
            "requests": 24,
            "as_meant": True,
            "reason": None,
        },
        "devices": [device()],
        "no_device": None,
        "skew": None,
        "steps": {
            "found_by": "names",
            "reason": None,
            "n": 421,
            "truncated": 1,
            "kinds": [step_kind("decode_only", 419, 11.8), step_kind("mixed", 2, 48.1)],
        },
        "operators": {
            "thread": "4711",
            "rows": [
                {"name": "aten::mm", "n": 9000, "self_ms": 410.2, "total_ms": 433.0, "share": 0.31},
                {"name": "aten::[odd]", "n": 3, "self_ms": 1.5, "total_ms": 2.0, "share": 0.001},
            ],
        },
        "system": [{"name": "poll", "n": 1200, "ms": 3100.0}],
        "amdahl": [
            {
                "what": "ampere_fp16_s16816gemm[tn]",
                "where": "device",
                "share": 0.2,
                "change": "-30 %",
                "factor": 0.7,
                "step_ratio": 0.94,
                "step_ms": [11.8, 11.092],
                "tpot_ms": [12.4, 11.692],
            },
            {
                "what": "ampere_fp16_s16816gemm[tn]",
                "where": "device",
                "share": 0.2,
                "change": "2x",
                "factor": 0.5,
                "step_ratio": 0.9,
                "step_ms": [11.8, 10.62],
                "tpot_ms": None,
            },
        ],
        "counts": {
            "kernels": 20831,
            "kernels_per_step": 49.5,
            "graph_replays": 420,
            "api_calls": 31_000,
            "peak_memory_bytes": 71_000_000_000,
        },
        "hot": None,
        "kernel_replay": None,
        "sanitizer": None,
        "accelerator_profile": None,
        "overhead": {
            "rows": [{"metric": "itl p50", "plain": 11.9, "captured": 12.4, "ratio": 1.042}],
            "text": "the capture made the median ITL 4.2 % longer",
        },
        "findings": [
            {
                "code": "host_late",
                "sentence": "decode step 11.8 ms, GPU busy 7.1 ms, 4.2 ms host-late gaps",
                "evidence": {"gaps": 430},
                "next": "try CUDA graphs or async scheduling",
            },
            {
                "code": "hot_kernel",
                "sentence": "ampere_fp16_s16816gemm[tn] is exposed for 20 % of a step",
                "evidence": {},
                "next": "profile it with --profile ncu",
            },
        ],
        "notes": ["3 events were dropped by the tool"],
    }


def without_device() -> dict[str, Any]:
    """A torch window of vLLM on the CPU: steps and operators, no GPU."""
    return decode() | {
        "tool": "torch",
        "version": "2.11.0",
        "source": "torch",
        "devices": [],
        "no_device": "no GPU activity: the server runs on the CPU",
        "amdahl": [
            {
                "what": "aten::mm",
                "where": "host",
                "share": 0.31,
                "change": "2x",
                "factor": 0.5,
                "step_ratio": 0.845,
                "step_ms": [160.0, 135.2],
                "tpot_ms": None,
            }
        ],
        "system": [],
        "findings": [],
        "overhead": None,
        "notes": [],
    }


def empty() -> dict[str, Any]:
    """A window that its traffic missed."""
    return without_device() | {
        "empty": True,
        "reason": "no step ran between the start and the stop",
        "window": {"start_ns": None, "end_ns": None, "ms": None},
        "alignment": {"method": "none", "offset_us": None, "residual_us": None, "reason": "no anchor in the file"},
        "traffic": {
            "shares": {"idle": 1.0, "prefill_only": 0.0, "decode_only": 0.0, "mixed": 0.0},
            "in_flight": {"mean": 0.0, "max": 0},
            "requests": 0,
            "as_meant": False,
            "reason": "no request was in flight",
        },
        "steps": {"found_by": "none", "reason": "no range looks like a step", "n": 0, "truncated": 0, "kinds": []},
        "operators": None,
        "amdahl": [],
        "no_device": "no GPU activity: the file holds none",
        "counts": {
            "kernels": 0,
            "kernels_per_step": None,
            "graph_replays": 0,
            "api_calls": 0,
            "peak_memory_bytes": None,
        },
    }


def replayed() -> dict[str, Any]:
    """What Nsight Compute says of one kernel."""
    row = {
        "kernel": "void gemm<float>[tn](int)",
        "launches": 3,
        "duration_ms": 1.25,
        "compute_percent": 22.5,
        "memory_percent": 91.0,
        "dram_percent": 90.0,
        "gb_per_s": 3600.0,
        "peak_gb_per_s": 4000.0,
        "flop_per_byte": None,
        "occupancy_percent": 61.2,
        "roof": "bandwidth",
        "reading": "near the bandwidth roof (90 %): move fewer bytes",
    }
    nothing = {"empty": False, "reason": None, "traffic": None, "alignment": None, "no_device": None}
    return empty() | nothing | {"tool": "ncu", "source": "ncu", "kernel_replay": {"kernel": "gemm", "rows": [row]}}


def checked(passed: bool | None) -> dict[str, Any]:
    """What Compute Sanitizer says."""
    finding = {
        "kind": "invalid global write",
        "severity": "error",
        "kernel": "write[k](int *)",
        "place": "kernels.cu:12",
        "example": "Invalid __global__ write of size 4 bytes",
        "count": 7,
        "bytes": None,
    }
    found = {
        "check": "memcheck",
        "passed": passed,
        "reason": "the log has no summary" if passed is None else None,
        "errors": {True: 0, False: 7, None: None}[passed],
        "leaked_bytes": None,
        "findings": [finding] if passed is False else [],
        "not_printed": 0,
    }
    return replayed() | {"tool": "sanitizer", "source": "sanitizer", "kernel_replay": None, "sanitizer": found}


def perf() -> dict[str, Any]:
    """A perf window: samples and functions only."""
    return empty() | {
        "tool": "perf",
        "version": "6.1",
        "source": "perf",
        "empty": False,
        "reason": None,
        "traffic": None,
        "alignment": None,
        "window": {"start_ns": 1_780_000_000_000_000_000, "end_ns": 1_780_000_005_000_000_000, "ms": 5000.0},
        "no_device": None,
        "hot": {
            "samples": 4321,
            "functions": [
                {
                    "name": "at::native::cpublas::gemm<float>[clone]",
                    "share": 0.61,
                    "self_share": 0.55,
                    "module": "libtorch_cpu.so",
                },
                {"name": "_PyEval_EvalFrameDefault", "share": 0.9, "self_share": 0.07, "module": None},
            ],
            "counters": {"instructions": 1.2e12, "cycles": None},
            "flame_graph": "flame.svg",
        },
    }
