"""Which kernels move data between devices, by their names."""

from __future__ import annotations

import re

# NCCL's, and RCCL's, which are called so, too; NVSHMEM's; the collectives that servers and compilers bring along
COLLECTIVE = re.compile(
    r"nccl|rccl|nvshmem|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.I
)


def is_collective(name: str) -> bool:
    """Whether a kernel of this name is a collective, or part of one."""
    return COLLECTIVE.search(name) is not None
