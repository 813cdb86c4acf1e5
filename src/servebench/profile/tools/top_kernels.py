"""Which kernels of a timeline are worth a closer look, and how a tool finds them again by name."""

from __future__ import annotations

import re

import numpy as np

from servebench.profile.intervals import alone
from servebench.profile.timeline import Kind, Timeline


def longest_kernel(timeline: Timeline) -> str | None:
    """The compute kernel that runs alone on its device for the longest; None where no device computed anything."""
    exposed = np.zeros(len(timeline.names), np.int64)
    on_device = timeline.take(timeline.on_device)
    for device in np.unique(on_device.device):
        rows = on_device.take(on_device.device == device)
        spans, names = alone(rows.start, rows.end, rows.name.astype(np.int64))
        np.add.at(exposed, names, spans.lengths)
    computed = np.unique(timeline.name[timeline.of_kind(Kind.COMPUTE)])
    if not computed.size:
        return None
    return timeline.names[int(computed[exposed[computed].argmax()])]


def function_name(kernel: str) -> str:
    """The name of a kernel's function: without its return type, namespaces, template arguments and parameters.

    This is what Nsight Compute's and Compute Sanitizer's filters compare with.
    """
    name = kernel
    while (stripped := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)) != name:
        name = stripped
    words = name.replace("[clone .kd]", "").split()
    return words[-1].rsplit("::", 1)[-1] if words else kernel
