"""The time in which a device did nothing: each gap, how long, and why.

Causes, the first that applies:

- `no_request`: for most of the gap the client had no request at the server.
- `copy_or_sync`: the next work was not launched before the gap, and for most of the gap a call of its process that
  waits for the device, or copies, was running before that launch: the host was held up there.
- `host_late`: the call that launched the next work began only after the device had run dry.
- `copy_or_sync`: a copy ended where the gap begins, or begins where it ends; unless nothing more comes.
- `dependency`: the next work had been launched before; the device itself waited, for a stream, an event or a peer. That
  the host waits, too, for what it has launched already is not a cause.
- `unknown`: the capture does not tell what launched the next work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.profile.figures import microseconds, share
from servebench.analysis.profile.occupancy import Bools, Occupancy, is_copy
from servebench.analysis.rounding import milliseconds
from servebench.profile import intervals
from servebench.profile.intervals import Ints, Spans
from servebench.profile.timeline import NONE, Kind, Timeline

if TYPE_CHECKING:
    from servebench.analysis.phases import Phases

CAUSES = ("host_late", "dependency", "copy_or_sync", "no_request", "unknown")
HOST_LATE, DEPENDENCY, COPY_OR_SYNC, NO_REQUEST, UNKNOWN = range(len(CAUSES))
TEXTS = {
    "host_late": "the call that launched the next work began only after the device had run dry",
    "dependency": "the next work was launched in time; the device waited for a stream, an event or a peer",
    "copy_or_sync": "beside a copy, or the host was held in a call that waits or copies",
    "no_request": "the client had no request at the server",
    "unknown": "the capture does not tell what launched the next work",
}
EDGES = (0, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)  # ns; decode steps take 5 to 50 ms
TURNAROUND_NS = 5_000
LONGEST = 10


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of a device within a window, in order of time; all arrays have one length.

    Attributes:
        spans: when.
        cause: int8, index into `CAUSES`.
        held: whether a call of the next work's process that waits for a device, or copies, was running as it began;
            looked for only where the next work was not launched before.
        before, after: int32, the row that ended last before, and the one that came next: index into the timeline's
            names; `NONE` where the capture has none.
    """

    spans: Spans
    cause: NDArray[np.int8]
    held: Bools
    before: NDArray[np.int32]
    after: NDArray[np.int32]


def find_gaps(device: Occupancy, phases: Phases | None) -> Gaps:
    """The gaps of a device, from the window's start to its end."""
    spans = intervals.gaps(device.busy, device.start, device.end)
    after = np.searchsorted(device.starts, spans.ends).astype(np.int32)  # the row after the window, if it is past all
    before = _latest(device)[after]  # NONE for the row before the window
    call = device.launched_by[after]
    late = _late(device, spans, before, call)
    cause = np.full(after.size, DEPENDENCY, np.int8)
    cause[call == NONE] = UNKNOWN
    cause[_beside_copy(device, before, after)] = COPY_OR_SYNC
    cause[late] = HOST_LATE
    most, held = _held(device, spans, after, call, np.flatnonzero(late | (call == NONE)))
    cause[most] = COPY_OR_SYNC
    if phases is not None:
        idle = intervals.covered(*spans, _no_request(phases, device))
        cause[2 * idle > spans.lengths] = NO_REQUEST
    return Gaps(spans, cause, held, _names(device, before, device.preceding), _names(device, after, device.following))


def describe(device: Occupancy, gaps: Gaps, phases: Phases | None) -> dict[str, Any]:
    """The `idle` section; `short_n` and `short_ms` are of a cause's gaps that are shorter than `TURNAROUND_NS`."""
    lengths = gaps.spans.lengths
    total = int(lengths.sum())
    known = [cause for cause in CAUSES if cause != "no_request" or phases is not None]
    return {
        "ms": milliseconds(total),
        "share": share(total, device.length),
        "sizes": _sizes(lengths),
        "causes": [_cause(gaps, cause) for cause in known],
        "longest": _longest(device, gaps),
    }


def _sizes(lengths: Ints) -> list[dict[str, Any]]:
    edges = np.array(EDGES)
    size = np.searchsorted(edges, lengths, side="right") - 1
    number = np.bincount(size, minlength=edges.size)
    time = np.bincount(size, weights=lengths, minlength=edges.size)
    upper = [microseconds(edge) for edge in EDGES[1:]] + [None]
    return [
        {"from_us": microseconds(low), "to_us": high, "n": int(n), "ms": milliseconds(ns)}
        for low, high, n, ns in zip(EDGES, upper, number, time, strict=True)
    ]


def _cause(gaps: Gaps, cause: str) -> dict[str, Any]:
    own = gaps.cause == CAUSES.index(cause)
    text = TEXTS[cause]
    lengths = gaps.spans.lengths[own]
    if cause == "host_late" and (held := int(np.count_nonzero(gaps.held & own))):
        text += f"; in {held} of them the host was still in a call that waits or copies as the gap began"
    if cause == "dependency" and bool((lengths < TURNAROUND_NS).any()):
        text += "; the short ones are what a device takes from one kernel to the next anyway"
    brief = lengths[lengths < TURNAROUND_NS]
    return {
        "cause": cause,
        "n": int(lengths.size),
        "ms": milliseconds(int(lengths.sum())),
        "short_n": int(brief.size),
        "short_ms": milliseconds(int(brief.sum())),
        "text": text,
    }


def _longest(device: Occupancy, gaps: Gaps) -> list[dict[str, Any]]:
    lengths, names = gaps.spans.lengths, device.timeline.names
    top = np.argpartition(-lengths, LONGEST)[:LONGEST] if lengths.size > LONGEST else np.arange(lengths.size)
    top = top[np.lexsort((top, -lengths[top]))]
    return [
        {
            "start_ms": milliseconds(int(gaps.spans.starts[row]) - device.start),
            "ms": milliseconds(int(lengths[row])),
            "cause": CAUSES[gaps.cause[row]],
            "before": None if gaps.before[row] == NONE else names[gaps.before[row]],
            "after": None if gaps.after[row] == NONE else names[gaps.after[row]],
        }
        for row in top
    ]


def _latest(device: Occupancy) -> NDArray[np.int32]:
    """Before each row, and after the last: the row that ended last of all that began before it; `NONE` if none did."""
    latest = np.full(device.size + 1, NONE, np.int32)
    reached = np.maximum.accumulate(device.ends) == device.ends
    np.maximum.accumulate(np.where(reached, np.arange(device.size, dtype=np.int32), NONE), out=latest[1:])
    return latest


def _late(device: Occupancy, spans: Spans, before: NDArray[np.int32], call: NDArray[np.int32]) -> Bools:
    """Whether the call that launched the next work began in the gap, or later."""
    late: Bools = (call != NONE) & (device.timeline.start[call] >= spans.starts)
    if before.size and before[0] == NONE and call[0] != NONE and device.preceding is not None:
        # the window cuts this gap off: it began when the row before the window ended
        late[0] = device.timeline.start[call[0]] >= device.timeline.end[device.preceding]
    return late


def _beside_copy(device: Occupancy, before: NDArray[np.int32], after: NDArray[np.int32]) -> Bools:
    """Whether a copy ran last before the gap, or runs next."""
    copy = np.append(is_copy(device.kind), [_is_copy(device, device.following), _is_copy(device, device.preceding)])
    mask: Bools = copy[after] | copy[before]  # NONE is the last
    # where nothing more comes, such as at the end of a program, that a copy was the last says nothing
    return mask if device.following is not None else mask & (after < device.size)


def _is_copy(device: Occupancy, row: int | None) -> bool:
    return row is not None and bool(is_copy(device.timeline.kind[[row]])[0])


def _held(
    device: Occupancy, spans: Spans, after: NDArray[np.int32], call: NDArray[np.int32], which: Ints
) -> tuple[Bools, Bools]:
    """Whether calls that wait or copy, of the process of the next work, cover most of a gap; and whether its begin.

    What the host waits for once it has launched the next work held nothing up, and does not count.

    Args:
        which: the gaps of interest, as indices; the others count as not held.
    """
    most, begin = np.zeros(after.size, np.bool_), np.zeros(after.size, np.bool_)
    following = NONE if device.following is None else device.timeline.process[device.following]
    process = np.append(device.column("process"), following)[after[which]]
    for each in np.unique(process):
        own = which[process == each]
        starts, ends, waits = spans.starts[own], spans.ends[own], _waits(device.timeline, each)
        launch = np.where(call[own] == NONE, ends, np.clip(device.timeline.start[call[own]], starts, ends))
        most[own] = 2 * intervals.covered(starts, launch, waits) > ends - starts
        begin[own] = intervals.covered(starts, starts + 1, waits) > 0
    return most, begin


def _waits(timeline: Timeline, process: int) -> Spans:
    """The time in which a call of the process waits for a device, or copies."""
    blocking = timeline.of_kind(Kind.SYNC) | (timeline.of_kind(Kind.API) & _copies_by_name(timeline))
    rows = blocking & (timeline.process == process)
    return intervals.union(timeline.start[rows], timeline.end[rows])


def _copies_by_name(timeline: Timeline) -> Bools:
    named = np.array([*("memcpy" in name.lower() for name in timeline.names), False], np.bool_)  # the last is for NONE
    mask: Bools = named[timeline.name]
    return mask


def _no_request(phases: Phases, device: Occupancy) -> Spans:
    """The time of the window in which the client had no request at the server."""
    starts = np.concatenate([[device.start], phases.t]).astype(np.int64)
    ends = np.concatenate([phases.t, [device.end]]).astype(np.int64)
    idle = np.concatenate([[True], phases.code == 0])
    return intervals.clip(intervals.union(starts[idle], ends[idle]), device.start, device.end)


def _names(device: Occupancy, rows: NDArray[np.int32], outside: int | None) -> NDArray[np.int32]:
    """Names of the rows; a row that is not in the window is `outside`."""
    other = NONE if outside is None else device.timeline.name[outside]
    named = np.append(device.name_ids[device.name], other)
    return named[np.where(rows == NONE, device.size, rows)].astype(np.int32)
