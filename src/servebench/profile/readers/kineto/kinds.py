"""What an event is: from its category, and within a category from its name."""

from __future__ import annotations

from enum import IntEnum, auto

import numpy as np
from numpy.typing import NDArray

from servebench.profile.readers.collectives import is_collective
from servebench.profile.timeline import Kind


class Category(IntEnum):
    """The categories that become rows."""

    OPERATOR = 0
    RANGE = auto()
    CALL = auto()
    KERNEL = auto()
    COPY = auto()
    FILL = auto()
    DEVICE_RANGE = auto()
    OVERHEAD = auto()


# as Kineto writes them now, then as its first versions did, then those of other accelerators
CATEGORIES = {
    "cpu_op": Category.OPERATOR,
    "user_annotation": Category.RANGE,
    "cuda_runtime": Category.CALL,
    "cuda_driver": Category.CALL,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.COPY,
    "gpu_memset": Category.FILL,
    "gpu_user_annotation": Category.DEVICE_RANGE,
    "overhead": Category.OVERHEAD,
    "Operator": Category.OPERATOR,
    "Runtime": Category.CALL,
    "Kernel": Category.KERNEL,
    "Memcpy": Category.COPY,
    "Memset": Category.FILL,
    "hip_runtime": Category.CALL,
    "xpu_runtime": Category.CALL,
    "xpu_driver": Category.CALL,
    "privateuse1_runtime": Category.CALL,
    "privateuse1_driver": Category.CALL,
}
ON_DEVICE = (Category.KERNEL, Category.COPY, Category.FILL, Category.DEVICE_RANGE)

PLAIN = {
    Category.OPERATOR: Kind.OPERATOR,
    Category.RANGE: Kind.RANGE,
    Category.FILL: Kind.FILL,
    Category.DEVICE_RANGE: Kind.RANGE,
    Category.OVERHEAD: Kind.OVERHEAD,
}
COPIES = (("HtoD", Kind.COPY_HTOD), ("DtoH", Kind.COPY_DTOH), ("PtoP", Kind.COPY_PEER), ("DtoD", Kind.COPY_DTOD))


def kinds_of(category: NDArray[np.int8], name: NDArray[np.int32], names: tuple[str, ...]) -> NDArray[np.int8]:
    """Return the `Kind` of each row."""
    by_name = {
        Category.KERNEL: [_kernel(each) for each in names],
        Category.COPY: [_copy(each) for each in names],
        Category.CALL: [_call(each) for each in names],
    } | {each: [kind] * len(names) for each, kind in PLAIN.items()}
    table = np.array([by_name[each] for each in Category], np.int8).reshape(len(Category), len(names))
    kinds: NDArray[np.int8] = table[category, name]
    return kinds


def replays_graph(name: str) -> bool:
    """Whether a call of this name launches a CUDA graph."""
    return "GraphLaunch" in name


def _kernel(name: str) -> Kind:
    return Kind.COMMUNICATION if is_collective(name) else Kind.COMPUTE


def _call(name: str) -> Kind:
    """Of a call; one that makes a stream wait for an event does not itself wait."""
    return Kind.SYNC if "Synchronize" in name else Kind.API


def _copy(name: str) -> Kind:
    """Of a copy, named as in "Memcpy HtoD (Pageable -> Device)"."""
    if "HtoH" in name:
        return Kind.COPY_HTOH
    return next((kind for word, kind in COPIES if word in name), Kind.COPY_OTHER)
