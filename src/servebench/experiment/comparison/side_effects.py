"""What an arm costs or changes besides the figures that were asked about: medians over its runs, beside the base's.

Shape of the result (`of`)::

    {"figures": [{"name": "kv_usage_p95", "title": str, "unit": "share",
                  "arms": {NAME: 0.41 | null}, "n": {NAME: 6},             # runs that have it
                  "ratios": {NAME: 1.02 | null},                           # to the base; null too where that is 0
                  "reasons": {NAME: str}}],                                # why there is no value
     "base": NAME, "population": str}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from servebench.experiment.cell import Outcome
from servebench.experiment.figures import at, value_of

POPULATION = "median over the runs of an arm, each over its measured window; not tested"
NOT_TOLD = "the server does not tell it"

Document = dict[str, Any]
Value = tuple[float | None, str]  # of one run, or why it has none


@dataclass(frozen=True, slots=True)
class Figure:
    """A side effect: its name, how it is read, its unit, and where a summary has it."""

    name: str
    title: str
    unit: str
    value: Callable[[Mapping[str, Any]], Value]


def of(outcomes_by_arm: Mapping[str, Sequence[Outcome]], base: str) -> Document:
    """Describe the side effects of each arm.

    Args:
        outcomes_by_arm: cells of each arm; failed ones are left out.
        base: name of the base arm.
    """
    summaries = {
        arm: [outcome.summary for outcome in outcomes if outcome.summary is not None]
        for arm, outcomes in outcomes_by_arm.items()
    }
    return {
        "figures": [_described(figure, summaries, base) for figure in FIGURES],
        "base": base,
        "population": POPULATION,
    }


def _described(figure: Figure, summaries: Mapping[str, Sequence[Document]], base: str) -> Document:
    found = {arm: [figure.value(summary) for summary in runs] for arm, runs in summaries.items()}
    known = {arm: [value for value, _ in values if value is not None] for arm, values in found.items()}
    medians = {arm: median(values) if values else None for arm, values in known.items()}
    return {
        "name": figure.name,
        "title": figure.title,
        "unit": figure.unit,
        "arms": medians,
        "n": {arm: len(values) for arm, values in known.items()},
        "ratios": {arm: _ratio(value, medians.get(base)) for arm, value in medians.items()},
        "reasons": {arm: _reason(found[arm]) for arm, value in medians.items() if value is None},
    }


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _reason(values: Sequence[Value]) -> str:
    return values[0][1] if values else "no run of this arm ended"


def _known(name: str, reason: str = NOT_TOLD, why: str = "") -> Callable[[Mapping[str, Any]], Value]:
    """A figure that runs are compared by, too; the reason as in `_stored`."""
    return lambda summary: (value_of(summary, name), str(at(summary, why) or reason))


def _stored(path: str, reason: str = NOT_TOLD, why: str = "") -> Callable[[Mapping[str, Any]], Value]:
    """A value at a dotted path; its reason is told at the path `why`, or is always the same."""
    return lambda summary: (at(summary, path), str(at(summary, why) or reason))


def _gpu_memory(summary: Mapping[str, Any]) -> Value:
    """p95 of the memory in use, over the GPUs that the server used; all of this machine where that is not known."""
    used = {gpu["device"] for gpu in at(summary, "energy.gpus") or [] if gpu["used"]}
    rows = [row for row in _tables(summary, "mem_used_bytes") if not used or row["device"] in used]
    reason = at(summary, "energy.reason") or "the GPU's memory was not sampled"
    return (sum(row["all"]["p95"] for row in rows) if rows else None), str(reason)


def _kv_usage(summary: Mapping[str, Any]) -> Value:
    shares = [row["all"]["p95"] for row in _tables(summary, "kv_usage")]
    return (max(shares) if shares else None), _server_reason(summary)


def _waiting(summary: Mapping[str, Any]) -> Value:
    depths = [row["all"]["p95"] for row in _tables(summary, "waiting")]
    return (sum(depths) if depths else None), _server_reason(summary)


def _tables(summary: Mapping[str, Any], name: str) -> list[Document]:
    return [row for row in at(summary, "phases_joined.tables") or [] if row["name"] == name]


def _server_reason(summary: Mapping[str, Any]) -> str:
    return str(at(summary, "server_side.reason") or NOT_TOLD)


def _client_cpu(summary: Mapping[str, Any]) -> Value:
    """CPU time of the workers under load, over its length and their number."""
    spent, workers = at(summary, "client.cpu_load_s"), at(summary, "client.workers")
    length = at(summary, "phases.load_end_s")
    known = spent is not None and workers and length
    return (spent / workers / length if known else None), "the workers did not say what they used"


FIGURES = (
    Figure("gpu_memory_p95", "GPU memory in use, p95", "bytes", _gpu_memory),
    Figure("kv_capacity", "KV cache, capacity", "tokens", _stored("server_identity.kv_cache.tokens")),
    Figure("kv_usage_p95", "KV cache in use, p95", "share", _kv_usage),
    Figure("preemptions", "preemptions", "requests", _known("preemptions")),
    Figure("waiting_p95", "waiting in the server, p95", "requests", _waiting),
    Figure("steps_per_s", "engine steps a second", "1/s", _stored("server_side.steps.per_s")),
    Figure(
        "prefix_hit_share",
        "prefix-cache hits",
        "share",
        _known("prefix_hit_share", why="server_side.prefix_cache.reason"),
    ),
    Figure(
        "j_per_output_token",
        "energy per output token",
        "J",
        _known("j_per_output_token", why="energy.reason"),
    ),
    Figure("failed_share", "requests that failed", "share", _known("failed_share", "no request was due")),
    Figure(
        "ready_s",
        "launch to ready",
        "s",
        _stored("cold_start.ready_s", why="cold_start.reason"),
    ),
    Figure("client_cpu", "client CPU, of a core a worker", "share", _client_cpu),
)
