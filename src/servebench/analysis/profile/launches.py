"""From the call that launched something to the device's start at it: which call it was, and how long that took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.profile.figures import P50, P99, at_rank, microseconds
from servebench.profile.intervals import BLOCK, Ints
from servebench.profile.timeline import NONE, Kind, Timeline

if TYPE_CHECKING:
    from servebench.analysis.profile.occupancy import Occupancy


def find_calls(timeline: Timeline, rows: NDArray[np.integer]) -> NDArray[np.int32]:
    """Find the call that launched each device row: the earliest of the same process with the same correlation.

    Correlations repeat across processes, so each process is joined by itself.

    Args:
        rows: of the timeline.

    Returns:
        int32, rows of the timeline; `NONE` where the capture holds no such call.
    """
    found = np.full(rows.size, NONE, np.int32)
    call = timeline.of_kind(Kind.API, Kind.SYNC) & (timeline.correlation != NONE)
    for process in np.unique(timeline.process[call]):
        calls, keys = _by_correlation(timeline, call & (timeline.process == process))
        for first in range(0, rows.size, BLOCK):
            block = rows[first : first + BLOCK]
            wanted = timeline.correlation[block]
            at = np.searchsorted(keys, wanted)
            at[at == keys.size] = 0
            joined = (keys[at] == wanted) & (timeline.process[block] == process)
            found[first : first + BLOCK][joined] = calls[at[joined]]
    return found


def describe(device: Occupancy) -> dict[str, Any] | None:
    """The `launches` section: from the start of each call to the start of the first thing that it launched.

    The other kernels of a replayed graph wait for those before them, which is no latency. `p50_us` and `p99_us` count
    from the call's start. `min_us` and `negative` tell of starts before the call had *returned*, which is normal: the
    call still has something to do when the device already works. None where no call is known.
    """
    calls, rows = _first_rows(device)
    if not calls.size:
        return None
    start = device.timeline.start[device.rows[rows]]
    latency, after = start - device.timeline.start[calls], start - device.timeline.end[calls]
    return {
        "n": int(calls.size),
        "p50_us": microseconds(at_rank(latency, P50)),
        "p99_us": microseconds(at_rank(latency, P99)),
        "min_us": microseconds(int(after.min())),
        "negative": int(np.count_nonzero(after < 0)),
    }


def describe_doubt(device: Occupancy) -> str | None:
    """What starts before the call that launched it was made shows that the clocks of device and host disagree."""
    calls, rows = _first_rows(device)
    ahead = device.timeline.start[calls] - device.timeline.start[device.rows[rows]]
    number = int(np.count_nonzero(ahead > 0))
    if not number:
        return None
    return (
        f"device {device.device}: {number} of {calls.size} launches begin on the device before the call that launched "
        f"them, by up to {ahead.max() / 1e3:.1f} us: the clocks of device and host are that far apart"
    )


def _first_rows(device: Occupancy) -> tuple[NDArray[np.int32], Ints]:
    """Each call that launched something of the window, and the first row that it launched."""
    launched = device.launched_by[:-1]
    known = np.flatnonzero(launched != NONE)
    first = np.zeros(len(device.timeline), np.int32)
    first[launched[known[::-1]]] = known[::-1]  # of several the last assignment counts, hence backwards
    rows = known[first[launched[known]] == known]
    return launched[rows], rows


def _by_correlation(timeline: Timeline, calls: NDArray[np.bool_]) -> tuple[NDArray[np.int32], Ints]:
    """Rows of the calls and their correlations, in ascending order of these."""
    rows = np.flatnonzero(calls).astype(np.int32)
    keys = timeline.correlation[rows]
    if bool((keys[1:] < keys[:-1]).any()):
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
    return rows, keys
