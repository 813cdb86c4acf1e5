"""Brings a timeline onto the client's clock, and says how far it may still be off.

A profiler states when its session began on CLOCK_REALTIME, but not how exactly. The client's own stamps bound it:

* On one machine the kernel stamps a chunk while the server's send call hands it over, so the chunk's stamp lies within
  the call. Needs the timeline's OS-runtime calls; good to some microseconds.
* A chunk arrives after the step that made it ended, and within `QUICK_NS`; good to about that.
* All rows lie between the instants at which the capture was asked to begin and was known to have ended.

The first that the timeline allows is taken.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servebench.analysis.profile.clock_offset import Offset, vote
from servebench.profile.intervals import Ints, Spans, union
from servebench.profile.timeline import Alignment, Kind, Timeline

SENDS = ("send", "sendto", "sendmsg", "sendmmsg", "write", "writev")
SEARCH_NS = 100_000_000  # how wrong a profiler's own statement may be; in a short capture a fifth of it
QUICK_NS = 2_000_000  # from the end of a step to the client: detokenising, encoding, sending
LEAST_CHUNKS = 20  # fewer could fit by chance
LEAST_FITTING = 0.8  # of the chunks of a piece
LEAST_PIECES = 0.75  # some may have met a kernel that delivered late
SLACKS_NS = (0, 20_000, 200_000)  # around a call, for a kernel that delivers after it, and for drift within a piece
PIECES = 8  # of the window, to see whether one clock runs faster
PIECE_CHUNKS = 50
STATED = "the session's start as the file states it"


def align(
    timeline: Timeline,
    arrivals: Ints,
    *,
    loopback: bool = True,
    step_ends: Ints | None = None,
    bracket: tuple[int, int] | None = None,
) -> Timeline:
    """Return the timeline on the client's clock, its alignment with a residual, or with the reason for none.

    Args:
        timeline: its instants are CLOCK_REALTIME to within `SEARCH_NS`, as its own alignment says. One without an
            alignment is returned as it is: its clock is unknown.
        arrivals: int64 ns, CLOCK_REALTIME of the client, the kernel's stamp of each chunk; any order.
        loopback: whether client and server share the machine, and so its clock.
        step_ends: int64 ns, ends of the engine's steps on the timeline's clock.
        bracket: when the capture was asked to begin and when it was known to be over, ns of CLOCK_REALTIME.
    """
    if timeline.alignment is None:
        return timeline
    if not loopback:
        return _unbounded(timeline, "client and server are on different machines, whose clocks nothing here compares")
    search = _search(timeline, bracket)
    within = _within(timeline, arrivals, search)
    reasons = []
    for method in (_by_sends, _by_steps):
        found = method(timeline, within, search, step_ends)
        if isinstance(found, Timeline):
            return found
        reasons.append(found)
    bounds = None if bracket is None else _bracketed(timeline, bracket)
    if bounds is None or bounds.low > bounds.high:
        return _unbounded(timeline, "; ".join(reasons))
    return _stated(timeline, bounds, "bounded only by when the capture began and ended")


def _by_sends(timeline: Timeline, arrivals: Ints, search: Offset, _: Ints | None) -> Timeline | str:
    calls = send_calls(timeline)
    if not calls.starts.size:
        return "the timeline has no send calls of the server (trace OS-runtime calls for them)"
    if arrivals.size < LEAST_CHUNKS:
        return f"only {arrivals.size} chunks arrived during the capture"
    found = [_voted(calls, piece, search) for piece in _pieces(arrivals)]
    fitting = [(middle, offset) for middle, offset in found if offset.fitting >= LEAST_FITTING]
    if len(fitting) < LEAST_PIECES * len(found):
        share = float(np.median([offset.fitting for _, offset in found]))
        return f"only {share:.0%} of the chunks fit into send calls of the server under one offset"
    middles, offsets = zip(*fitting, strict=True)
    return _moved(timeline, np.array(middles), list(offsets), arrivals.size)


def _voted(calls: Spans, piece: Ints, search: Offset) -> tuple[int, Offset]:
    """The middle of a piece, and the offset that its chunks vote for with the least slack under which they agree."""
    found = None
    for slack in SLACKS_NS:
        found = vote(union(calls.starts - slack, calls.ends + slack), piece, search)
        if found is not None and found.fitting >= LEAST_FITTING:
            break
    return (int(piece[0]) + int(piece[-1])) // 2, found or Offset(search.low, search.high, 0.0)


def _by_steps(timeline: Timeline, arrivals: Ints, search: Offset, step_ends: Ints | None) -> Timeline | str:
    if step_ends is None or not step_ends.size:
        return "the timeline shows no steps"
    if arrivals.size < LEAST_CHUNKS:
        return f"only {arrivals.size} chunks arrived during the capture"
    ends = np.sort(step_ends)
    # Steps follow one another like a clock's ticks: off by a whole step all would fit as well. So what the file states
    # is taken to be right to half a step.
    half = int(np.median(np.diff(ends))) // 2 if ends.size > 1 else QUICK_NS
    quick, search = min(QUICK_NS, half), Offset(max(search.low, -half), min(search.high, half))
    found = vote(union(ends, ends + quick), arrivals, search)
    if found is None or found.fitting < LEAST_FITTING:
        share = 0.0 if found is None else found.fitting
        return f"only {share:.0%} of the chunks arrived within {quick / 1e6:g} ms of a step's end under one offset"
    return _stated(timeline, found, f"checked by {arrivals.size} chunks, each soon after a step's end")


def send_calls(timeline: Timeline) -> Spans:
    """When any thread of the server was in a call that hands bytes to the kernel."""
    wanted = np.isin(timeline.name, [number for number, name in enumerate(timeline.names) if name in SENDS])
    rows = wanted & timeline.of_kind(Kind.SYSTEM)
    return union(timeline.start[rows], timeline.end[rows])


def _search(timeline: Timeline, bracket: tuple[int, int] | None) -> Offset:
    """Where the offset may lie: the bracket narrows it, unless the capture is longer than that."""
    most = min(SEARCH_NS, (timeline.span[1] - timeline.span[0]) // 5)
    if bracket is None:
        return Offset(-most, most)
    bounds = _bracketed(timeline, bracket)
    low, high = max(-most, bounds.low), min(most, bounds.high)
    return Offset(low, high) if low < high else Offset(-most, most)


def _bracketed(timeline: Timeline, bracket: tuple[int, int]) -> Offset:
    return Offset(bracket[0] - timeline.span[0], bracket[1] - timeline.span[1])


def _within(timeline: Timeline, arrivals: Ints, search: Offset) -> Ints:
    """Distinct arrivals, sorted, that fall into the capture whatever the offset."""
    sends = send_calls(timeline)
    first, last = timeline.span
    if sends.starts.size:  # calls may be recorded for a part of the capture only
        first, last = int(sends.starts[0]), int(sends.ends[-1])
    arrivals = np.unique(arrivals)
    return arrivals[(arrivals >= first + max(0, search.high)) & (arrivals <= last + min(0, search.low))]


def _pieces(arrivals: Ints) -> list[Ints]:
    return [part for part in np.array_split(arrivals, max(1, min(PIECES, arrivals.size // PIECE_CHUNKS))) if part.size]


def _moved(timeline: Timeline, middles: Ints, offsets: list[Offset], chunks: int) -> Timeline:
    """Move the timeline by what all pieces allow; where they allow no one offset, by a line through theirs."""
    method = f"the server's send calls around {chunks} chunks of the client"
    low, high = max(offset.low for offset in offsets), min(offset.high for offset in offsets)
    if low <= high:
        common = Offset(low, high).middle
        # that one offset does for all is no proof that there was no drift: each piece bounds its own time only
        return timeline.shifted(common, Alignment(method, common, max(offset.residual(common) for offset in offsets)))
    origin = int(middles[0])
    slope, at_origin = np.polyfit(middles - origin, [offset.middle for offset in offsets], 1)
    fitted = at_origin + slope * (middles - origin)
    residual = max(offset.residual(float(at)) for offset, at in zip(offsets, fitted, strict=True))
    alignment = Alignment(f"{method}; the clocks drift by {slope * 1e6:.1f} µs/s", round(at_origin), residual)
    return _stretched(timeline, origin, float(at_origin), float(slope), alignment)


def _stretched(timeline: Timeline, origin: int, offset: float, slope: float, alignment: Alignment) -> Timeline:
    def moved(instants: Ints) -> Ints:
        shifted: Ints = instants + np.rint(offset + slope * (instants - origin)).astype(np.int64)
        return shifted

    first, last = moved(np.array(timeline.span, np.int64)).tolist()
    start, end = moved(timeline.start), moved(timeline.end)
    return replace(timeline, start=start, end=end, span=(first, last), alignment=alignment)


def _stated(timeline: Timeline, found: Offset, how: str) -> Timeline:
    """Keep what the file states where that is possible: it is mostly better than what bounds it loosely."""
    offset = 0 if found.low <= 0 <= found.high else found.middle
    stated = timeline.alignment.method if timeline.alignment else STATED
    return timeline.shifted(offset, Alignment(f"{stated}, {how}", offset, found.residual(offset)))


def _unbounded(timeline: Timeline, reason: str) -> Timeline:
    stated = timeline.alignment.method if timeline.alignment else STATED
    return replace(timeline, alignment=Alignment(stated, reason=reason))
