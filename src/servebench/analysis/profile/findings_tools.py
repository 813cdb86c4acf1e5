"""Findings of the tools that make no timeline: a replayed kernel against its roofs, kernels checked for errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servebench.analysis.profile.finding import Document, experiment, finding

Findings = Iterator[dict[str, Any]]

EXPERIMENTS = {
    "bandwidth": f"{experiment('vllm.kv-cache-dtype=auto,fp8')} or quantised weights: the same GB/s, less time",
    "cache": "larger tiles, or accesses in another order: its share of device memory's peak should rise",
    "compute": f"{experiment('vllm.dtype=float32,bfloat16')}, or tensor cores: its time should fall",
    "latency": f"{experiment('vllm.max-num-seqs=64,256')}: with more work at a time it should take less per token",
}


def sanitizer(answers: Document) -> Findings:
    """The engine's kernels did something wrong: no figure of theirs counts until that is repaired."""
    found = answers["sanitizer"]
    if found is None or found.get("passed") is not False:
        return
    first = next(iter(found["findings"]), None)
    where = "" if first is None else f", first: {first['kind']} in {first['kernel'] or 'an unknown kernel'}"
    yield finding(
        "sanitizer",
        f"Compute Sanitizer ({found['check'] or 'memcheck'}) found {found['errors'] or 0} errors{where}.",
        "repair that before anything is measured: run it again with only that kernel (--profile-option kernels=NAME)",
        errors=found["errors"],
        leaked_bytes=found["leaked_bytes"],
    )


def roofs(answers: Document) -> Findings:
    """How near the kernel that was replayed comes to the peaks of the GPU."""
    for row in (answers["kernel_replay"] or {}).get("rows", ())[:1]:
        if row["roof"] is None:
            continue
        yield finding(
            "roofline",
            f"{row['kernel']}: {row['reading']}.".replace("..", "."),
            EXPERIMENTS[row["roof"]],
            roof=row["roof"],
            memory_percent=row["memory_percent"],
            compute_percent=row["compute_percent"],
            dram_percent=row["dram_percent"],
            occupancy_percent=row["occupancy_percent"],
        )
