"""How far the clock of a torch trace can be off: its begin and end lie within the requests that asked for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from servebench.profile.timeline import Alignment, Timeline


@dataclass(slots=True)
class Instants:
    """When a capture was asked for and when the answer came, CLOCK_REALTIME ns; 0 where it did not come to that."""

    start_asked: int = 0
    started: int = 0
    stop_asked: int = 0
    stopped: int = 0

    @property
    def start_s(self) -> float:
        """How long the start took."""
        return (self.started - self.start_asked) / 1e9

    @property
    def stop_s(self) -> float | None:
        """How long the stop took, the storing of the trace included; None when it was not answered."""
        return (self.stopped - self.stop_asked) / 1e9 if self.stopped else None


def bounded(timeline: Timeline, instants: Instants, by_steps: bool) -> Timeline:
    """Give an aligned timeline the residual that the requests leave to its clock.

    The profiler stamps its begin while the start request is served, and its end while the stop request is, or earlier
    where it counts steps. If the trace's clock were e late, e ∈ [asked − begin, answered − begin], and likewise for
    the end. Without such an e the clock is not this machine's, or was set.

    Args:
        by_steps: the profiler may have ended by itself.
    """
    alignment = timeline.alignment
    if alignment is None or not instants.stopped:
        return timeline
    begin, end = timeline.span
    low, high = instants.start_asked - begin, min(instants.started - begin, instants.stopped - end)
    if not by_steps:
        low = max(low, instants.stop_asked - end)
    return replace(timeline, alignment=_judged(alignment, low, high))


def _judged(alignment: Alignment, low: int, high: int) -> Alignment:
    if low <= 0 <= high:
        method = f"{alignment.method}; its begin and end lie within the requests that asked for them"
        return replace(alignment, method=method, residual_ns=max(-low, high), reason=None)
    off = max(low, -high) / 1e6
    reason = f"the trace's begin and end lie {off:.1f} ms or more outside of the requests that asked for them"
    return replace(alignment, residual_ns=None, reason=reason)
