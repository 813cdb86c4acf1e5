"""The identities that hold in every sound run (DESIGN §3.2, §3.4), computed from it each time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servebench.analysis.data import MISSING, SOURCES, Bools, Ints, RunData
from servebench.analysis.outcomes import Outcomes
from servebench.analysis.steps import in_flight
from servebench.analysis.window import Window
from servebench.record.columns import TokenSource


@dataclass(frozen=True, slots=True)
class Identity:
    """An equation and its two sides.

    Attributes:
        name: its key in summary.json.
        text: the equation.
        left, right: the sums of the two sides.
        violations: requests (or totals) for which the sides differ.
    """

    name: str
    text: str
    left: int
    right: int
    violations: int

    @property
    def ok(self) -> bool:
        """Whether it holds, exactly."""
        return self.violations == 0


def check(run: RunData, window: Window, whole: Outcomes, cohort: Outcomes) -> tuple[Identity, ...]:
    """All identities of a run."""
    return (
        outcomes_add_up("planned", "planned = ok + failed + dropped + in_flight + unrecorded", whole),
        outcomes_add_up("offered", "offered = ok + failed + dropped + in_flight + unrecorded", cohort),
        gaps_span_decode(run),
        tokens_equal_usage(run),
        chunks_counted(run),
        occupancy(run, window),
    )


def outcomes_add_up(name: str, text: str, numbers: Outcomes) -> Identity:
    """Every request has exactly one outcome."""
    parts = numbers.ok + numbers.failed + numbers.dropped + numbers.in_flight + numbers.unrecorded
    return Identity(name, text, numbers.planned, parts, int(numbers.planned != parts))


def gaps_span_decode(run: RunData) -> Identity:
    """e2e_service − ttft_service = Σ icl for each ok request: the chunks begin and end where the request says."""
    chunks, requests = run.chunks, run.requests
    span = chunks.arrival[chunks.starts[1:] - 1] - chunks.arrival[chunks.starts[:-1]]
    mine = (requests.last_token - requests.first_token)[chunks.rows]
    ok = requests.ok[chunks.rows]
    text = "e2e_service − ttft_service = Σ icl, each ok request (ns)"
    return Identity("gaps", text, int(mine[ok].sum()), int(span[ok].sum()), int((mine != span)[ok].sum()))


def tokens_equal_usage(run: RunData) -> Identity:
    """Σ tokens of the chunks = the output tokens of each ok request, unless the chunks were counted by themselves."""
    got = received_tokens(run)
    known = run.requests.ok & (run.requests.output_tokens != MISSING) & ~counted_per_chunk(run)
    wanted = run.requests.output_tokens
    different = int((got != wanted)[known].sum())
    text = "Σ tokens of the chunks = usage, each ok request"
    return Identity("tokens", text, int(got[known].sum()), int(wanted[known].sum()), different)


def counted_per_chunk(run: RunData) -> Bools:
    """Requests whose chunks state their own tokens, which a server's `usage` may contradict (`stats.usage`)."""
    return np.isin(
        run.requests.token_source, [SOURCES.index(s) for s in (TokenSource.CHUNK_USAGE, TokenSource.TOKEN_IDS)]
    )


def received_tokens(run: RunData) -> Ints:
    """Tokens of all chunks of each request."""
    got = np.zeros(len(run.requests), np.int64)
    got[run.chunks.rows] = run.chunks.sum_tokens()
    return got


def chunks_counted(run: RunData) -> Identity:
    """The rows in chunks.parquet of each request are as many as its record says."""
    rows = np.zeros(len(run.requests), np.int64)
    rows[run.chunks.rows] = run.chunks.lengths
    stated = run.requests.chunks
    text = "chunk rows = chunks of the record, each request"
    return Identity("chunks", text, int(rows.sum()), int(stated.sum()), int((rows != stated).sum()))


def occupancy(run: RunData, window: Window) -> Identity:
    """Little's law in its exact form: ∫ in-flight dt over the whole run = Σ time in the system."""
    requests = run.requests
    sent = requests.sent != MISSING
    end = np.where(requests.end == MISSING, window.end, requests.end)
    stay = int(np.maximum(end - requests.sent, 0)[sent].sum())
    steps = in_flight(requests, window.end)
    area = int(steps.area(steps.t[-1:])[0]) if steps.t.size else 0
    return Identity("littles_law", "∫ concurrency dt = Σ (end − sent), whole run (ns)", area, stay, int(area != stay))
