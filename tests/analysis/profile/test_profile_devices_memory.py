"""A capture may fill most of the memory: what is computed from it must not need as much again."""

import tracemalloc

import numpy as np
import pytest

from servebench.analysis.profile.devices import survey
from servebench.profile.timeline import NONE, Kind, Timeline

KERNELS = 400_000
ROW = sum(np.dtype(kind).itemsize for kind in (np.int64,) * 5 + (np.int32,) * 4 + (np.int16, np.int8))


def capture(longest: int) -> Timeline:
    """As many calls as kernels, which take up to `longest` ns every 1500."""
    random = np.random.default_rng(5)
    start = 1_500 * np.arange(KERNELS) + 30_000
    both = {
        "start": (start, start - random.integers(1_000, 30_000, KERNELS)),
        "kind": (np.full(KERNELS, Kind.COMPUTE), np.full(KERNELS, Kind.API)),
        "device": (np.zeros(KERNELS, np.int64), np.full(KERNELS, NONE)),
        "correlation": (np.arange(KERNELS),) * 2,
        "name": (random.integers(0, 100, KERNELS), np.full(KERNELS, 100)),
    }
    columns = {key: np.concatenate(pair) for key, pair in both.items()}
    columns["end"] = columns["start"] + np.append(random.integers(1, longest, KERNELS), np.full(KERNELS, 700))
    return Timeline.of_columns("nsys", tuple(f"name {number}" for number in range(101)), columns)


@pytest.mark.parametrize("longest", [1_500, 3_000], ids=["one stream", "overlapping"])
def test_less_than_the_rows_themselves(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("servebench.profile.intervals", "servebench.analysis.profile.launches"):
        monkeypatch.setattr(f"{module}.BLOCK", KERNELS // 8)  # as it is to a large capture
    timeline = capture(longest)
    tracemalloc.start()
    try:
        ((device,), _) = survey(timeline, 0, int(timeline.end.max()), None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert device["launches"]["n"] == KERNELS
    assert peak < ROW * 2 * KERNELS
