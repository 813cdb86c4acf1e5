"""Throughput: what arrived inside the measured window, by the instant of each event, over the window's length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servebench.analysis.data import MISSING, Bools, RunData
from servebench.analysis.window import Window

PEAK_NEEDS_S = 5


@dataclass(frozen=True, slots=True)
class Throughput:
    """Events inside the window.

    Attributes:
        seconds: length of the window.
        output_tokens: that arrived, of requests of any outcome.
        input_tokens: prompts (by the server's count) of the requests whose first token arrived; None without a count.
        uncounted_prompts: requests among these for which the server gave no count.
        requests: ok requests whose last token arrived.
        peak_output_tokens_per_s: most output tokens in one whole second of the window; None in a window so short
            that the peak says nothing.
    """

    seconds: float
    output_tokens: int
    input_tokens: int | None
    uncounted_prompts: int
    requests: int
    peak_output_tokens_per_s: int | None


def throughput(run: RunData, window: Window) -> Throughput:
    """Count the events of the window."""
    requests = run.requests
    inside = window.holds(run.chunks.arrival)
    prefilled = window.holds(requests.first_token)
    counted = prefilled & (requests.input_tokens != MISSING)
    known = bool(counted.any()) or not prefilled.any()
    return Throughput(
        seconds=window.seconds,
        output_tokens=int(run.chunks.tokens[inside].sum(dtype=np.int64)),
        input_tokens=int(requests.input_tokens[counted].sum()) if known else None,
        uncounted_prompts=int(prefilled.sum() - counted.sum()),
        requests=int((window.holds(requests.last_token) & requests.ok).sum()),
        peak_output_tokens_per_s=_peak(run, window, inside),
    )


def _peak(run: RunData, window: Window, inside: Bools) -> int | None:
    seconds = int(window.seconds)
    if seconds < PEAK_NEEDS_S:
        return None
    bucket = (run.chunks.arrival[inside] - window.warmup_end) // 1_000_000_000
    return int(np.bincount(bucket, weights=run.chunks.tokens[inside], minlength=seconds)[:seconds].max())
