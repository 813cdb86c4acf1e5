"""The parts of the steps that Amdahl's law is told for: exposed time of kernels, own time of operators."""

from __future__ import annotations

from collections import Counter

import numpy as np

from servebench.analysis.profile.amdahl import Part
from servebench.analysis.profile.occupancy import Occupancy, numbers
from servebench.analysis.profile.operators import Operators
from servebench.analysis.profile.stepping import Steps
from servebench.profile.intervals import Spans, alone_in_blocks, clip, covered, union
from servebench.profile.timeline import Timeline


def kernels(timeline: Timeline, steps: Steps, start: int, end: int) -> tuple[list[Part], int]:
    """Exposed time of each kernel (or copy) of all devices within the steps, the largest first.

    The steps of a device are those of the processes that launched on it. Without any step the whole window counts.

    Returns:
        the parts, and the time of the steps, ns, both summed over devices.
    """
    exposed: Counter[str] = Counter()
    total = 0
    for number in numbers(timeline):
        device = Occupancy.of(timeline, number, start, end)
        within = clip(_spans(device, steps), start, end)
        total += within.total
        exposed.update(_exposed(device, within))
    ranked = sorted(exposed.items(), key=lambda item: (-item[1], item[0]))
    return [Part(name, "device", ns) for name, ns in ranked], total


def of_operators(found: Operators | None) -> tuple[list[Part], int]:
    """Own time of each operator of the thread that works most, the largest first; and the time that was looked at."""
    if found is None:
        return [], 0
    parts = [Part(name, "host", int(ns)) for name, ns in zip(found.names, found.own, strict=True)]
    return parts, found.within.total


def _spans(device: Occupancy, steps: Steps) -> Spans:
    if not len(steps):
        return Spans(np.array([device.start], np.int64), np.array([device.end], np.int64))
    mine = np.isin(steps.process, np.unique(device.column("process")))
    chosen = steps.of(mine) if mine.any() else steps
    return union(chosen.start, chosen.start + chosen.time)


def _exposed(device: Occupancy, within: Spans) -> dict[str, int]:
    time = np.zeros(len(device.names), np.int64)
    for pieces, owners in alone_in_blocks(device.starts, device.ends, device.name):
        inside = covered(pieces.starts, pieces.ends, within)
        time += np.bincount(owners, weights=inside, minlength=time.size).astype(np.int64)
    return {name: int(ns) for name, ns in zip(device.names, time, strict=True) if ns}
