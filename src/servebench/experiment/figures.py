"""The figures of a run that experiments compare: their names, units and directions, and where a summary has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.errors import UsageError, did_you_mean

LATENCIES = {
    "ttft": "time to first token",
    "ttft_service": "time to first token from its sending",
    "ttfv": "time to first visible token",
    "itl": "inter-token latency",
    "icl": "inter-chunk latency",
    "tpot": "time per output token",
    "e2e": "end-to-end latency",
    "e2e_service": "end-to-end latency from its sending",
    "stall": "longest stall",
}
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p99_9")
WITHOUT_OBJECTIVES = ("ttft.p99", "itl.p99")
_QUANTILE = re.compile(r"p(\d{1,2})(?:[._](\d+))?")
_OBJECTIVE = re.compile(r"\s*(p\d{1,2}(?:[._]\d+)?)\s*<")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run.

    Attributes:
        name: ``ttft.p99``, ``output_tokens_per_s``.
        unit: of its values; empty for a pure number.
        better: "lower" or "higher".
        title: as people read it.
    """

    name: str
    unit: str
    better: str
    title: str


# name: where it is in summary.json, unit, what is better, title
_OTHERS: dict[str, tuple[str, str, str, str]] = {
    "output_tokens_per_s": ("throughput.output_tokens_per_s", "tokens/s", "higher", "output tokens per second"),
    "input_tokens_per_s": ("throughput.input_tokens_per_s", "tokens/s", "higher", "input tokens per second"),
    "total_tokens_per_s": ("throughput.total_tokens_per_s", "tokens/s", "higher", "tokens per second, both ways"),
    "requests_per_s": ("throughput.requests_per_s", "requests/s", "higher", "requests finished per second"),
    "goodput_per_s": ("throughput.goodput_per_s", "requests/s", "higher", "requests per second within every SLO"),
    "attainment": ("throughput.attainment", "", "higher", "share of requests within every SLO"),
    "failed_share": ("", "", "lower", "share of requests that did not end well"),
    "j_per_output_token": ("energy.j_per_output_token", "J", "lower", "energy per output token"),
    "j_per_request": ("energy.j_per_request", "J", "lower", "energy per request"),
    "mean_power": ("energy.mean_w", "W", "lower", "mean power of the GPUs"),
    "preemptions": ("server_side.counters.preemptions.window", "requests", "lower", "preemptions in the window"),
    "queue_mean": ("server_side.histograms.queue.window_mean_ms", "ms", "lower", "mean time in the server's queue"),
    "prefix_hit_share": ("server_side.prefix_cache.hit_share", "", "higher", "share of prompt tokens found cached"),
}


def known() -> tuple[str, ...]:
    """The names of all figures; other quantiles of the latencies (``ttft.p97``) are known where an SLO names them."""
    return (*(f"{metric}.{statistic}" for metric in LATENCIES for statistic in STATISTICS), *_OTHERS)


def figure(name: str) -> Figure:
    """The figure of that name; ``ttft.p99.9`` is also understood. Raises UsageError with the nearest name."""
    if name in _OTHERS:
        _, unit, better, title = _OTHERS[name]
        return Figure(name, unit, better, title)
    metric, _, statistic = name.partition(".")
    if metric in LATENCIES and (statistic == "mean" or _QUANTILE.fullmatch(statistic)):
        statistic = statistic.replace(".", "_")
        return Figure(f"{metric}.{statistic}", "ms", "lower", f"{LATENCIES[metric]}, {statistic.replace('_', '.')}")
    raise UsageError(f'no figure "{name}"{did_you_mean(name, known())}; figures are such as {", ".join(known()[:2])}')


def value_of(summary: Mapping[str, Any], name: str) -> float | None:
    """The figure `name` of a run's summary, in the figure's unit; None when this run does not have it.

    Raises:
        UsageError: there is no such figure.
    """
    wanted = figure(name).name
    if wanted == "failed_share":
        return _failed_share(summary)
    if wanted in _OTHERS:
        return _number(at(summary, _OTHERS[wanted][0]))
    metric, _, statistic = wanted.partition(".")
    stored = at(summary, f"metrics.{metric}") or {}
    return _number(stored[statistic]) if statistic in stored else _promised(summary, metric, statistic)


def _failed_share(summary: Mapping[str, Any]) -> float | None:
    """Failed, dropped, unfinished and lost requests of the cohort, over all that were due."""
    planned, ok = _number(at(summary, "cohort.planned")), _number(at(summary, "cohort.ok"))
    return 1 - ok / planned if planned and ok is not None else None


def _promised(summary: Mapping[str, Any], metric: str, quantile: str) -> float | None:
    """A quantile that is not among the reported ones, where an objective asks for it."""
    for objective in at(summary, "slo.objectives") or []:
        if (objective["metric"], objective["quantile"]) == (metric, quantile):
            return _number(objective["value"])
    return None


def at(document: Any, path: str) -> Any:
    """What lies at a dotted path; None where the path ends early."""
    for key in path.split("."):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def family_of(scenario: Mapping[str, Any], primary: str | None, more: Sequence[str] = ()) -> tuple[str, ...]:
    """The figures that are tested; the first is the primary one.

    Args:
        scenario: as resolved; its objectives' figures are the family, in their order, or TTFT and ITL p99 without any.
            A closed loop adds the output token rate.
        primary: named in advance; None takes the first of the family.
        more: further figures to test.

    Raises:
        UsageError: there is no such figure, or no run keeps it.
    """
    promises, named = [figure(name).name for name in _promises(scenario)], [primary] if primary else []
    for name in [*named, *more]:
        _check_kept(figure(name).name, promises)
    names = [*named, *(promises or WITHOUT_OBJECTIVES), *more]
    if "closed" in (scenario.get("load") or {}):
        names.append("output_tokens_per_s")
    return tuple(dict.fromkeys(figure(name).name for name in names))


def _check_kept(name: str, promises: Sequence[str]) -> None:
    """A quantile that no run keeps would be missing after the last one."""
    if name in promises or name in known():
        return
    metric, _, quantile = name.replace("_", ".").rpartition(".p")
    kept = ", ".join(statistic.replace("_", ".") for statistic in STATISTICS)
    raise UsageError(
        f"p{quantile} of {metric} is not kept: runs keep {kept} of each latency, and what the scenario's SLO names"
    )


def _promises(scenario: Mapping[str, Any]) -> list[str]:
    """Names of the objectives' figures: ``{ttft: [p95 < 800ms]}`` is ``ttft.p95``."""
    slo: Mapping[str, Any] = scenario.get("slo") or {}
    written = [(m, text) for m, texts in slo.items() for text in ([texts] if isinstance(texts, str) else texts)]
    return [f"{metric}.{found[1]}" for metric, text in written if (found := _OBJECTIVE.match(text))]
