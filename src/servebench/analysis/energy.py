"""Energy of the GPUs that the server used, over the measured window: by their counters, checked by their power.

Shape of `energy` in summary.json::

    {"valid": true, "reason": str | null,       # why the J per token below are null; the first of `reasons`
     "reasons": [str],
     "window_ms": 60000.0,
     "energy_j": 24310.2 | null,                # of the used GPUs together
     "basis": "counter" | "integral" | null,    # of energy_j; the integral only where a driver has no counter
     "mean_w": 405.2 | null, "idle_w": 118.4 | null, "above_idle_j": 17206.0 | null,
     "output_tokens": 81234, "requests": 402,   # arrived (the last token of ok requests) inside the window
     "j_per_output_token": 0.299 | null, "j_per_request": 60.5 | null, "j_per_output_token_above_idle": ... | null,
     "gpus": [{"source", "device", "uuid", "name", "used": bool | null, "how": "manifest|processes|assumed" | null,
               "why": str | null,                # the sampler's reason
               "counter_j": float | null, "counter_reason": str | null,
               "power_name": "power_w" | "power_avg_w" | null, "integral_j": float | null, "integral_reason",
               "difference_share": 0.0004 | null,           # (integral − counter)/counter
               "mean_w", "limit_w", "samples": 1200, "longest_gap_ms": 61.0, "limit_gap_ms": 1000.0,
               "idle": {"n", "mean", "p50", "p95"}}],        # power in W while the server was idle, whole run
     "definition": str, "population": str, "unit": "J"}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.analysis.data import Ints, Series
from servebench.analysis.facts import Facts
from servebench.analysis.gpus import Gpu, find
from servebench.analysis.join import Level
from servebench.analysis.phases import PHASES, Phases
from servebench.analysis.rounding import milliseconds, rounded
from servebench.analysis.sampling import absent, covers, longest_gap, value_at

LEAST_GAP_NS, GAP_PERIODS = 1_000_000_000, 3  # a gap may last as long as the longer of these allows
POWER = ("power_w", "power_avg_w")  # the instant reading first
DEFINITION = (
    "counter: difference of the driver's total-energy counter, interpolated at both edges of the window; integral: "
    "trapezoids over the power samples; idle: power samples while no request was in prefill or decode, of the whole run"
)
POPULATION = "the GPUs that the server used, inside the measured window; tokens and requests: all that arrived in it"


@dataclass(frozen=True, slots=True)
class Consumption:
    """Energy of one GPU over the window.

    Attributes:
        gpu: whose.
        counter, integral: J; None with the reason beside it.
        power_name: series of the integral.
        samples: of the counter (else of the power) in the window; `gap` the longest time without one, ns, of
            `gap_limit` allowed.
        idle: power while idle, W.
        limit: enforced power limit, W.
    """

    gpu: Gpu
    counter: float | None
    counter_reason: str | None
    integral: float | None
    integral_reason: str | None
    power_name: str | None
    samples: int
    gap: int | None
    gap_limit: int
    idle: Level
    limit: float | None

    @property
    def joules(self) -> float | None:
        """By the counter, else by the integral."""
        return self.counter if self.counter is not None else self.integral

    @property
    def difference(self) -> float | None:
        """Integral against counter, as a share of the counter."""
        if self.counter is None or self.integral is None or self.counter <= 0:
            return None
        return (self.integral - self.counter) / self.counter


def counter_difference(series: Series | None, start: int, end: int) -> tuple[float | None, str | None]:
    """J counted between two instants, or why there are none."""
    if series is None:
        return None, "the driver has no energy counter"
    if not covers(series.t, start, end):
        return None, "the samples of the energy counter do not bracket the window"
    if bool(np.any(np.diff(series.value) < 0)):
        return None, "the energy counter went back: the driver was reloaded"
    before, after = value_at(series, start), value_at(series, end)
    assert before is not None and after is not None
    return after - before, None


def power_integral(series: Series | None, start: int, end: int) -> tuple[float | None, str | None]:
    """J under the power samples (trapezoids, the edges interpolated) between two instants, or why there are none."""
    if series is None:
        return None, "no power was sampled"
    if not covers(series.t, start, end):
        return None, "the power samples do not bracket the window"
    before, after = value_at(series, start), value_at(series, end)
    inside = series.within(start + 1, end)
    spans = np.diff(np.concatenate([[start], inside.t, [end]])) / 1e9
    watts = np.concatenate([[before], inside.value, [after]])
    return float(np.dot((watts[1:] + watts[:-1]) / 2, spans)), None


def measure(facts: Facts, phases: Phases) -> tuple[Consumption, ...]:
    """The consumption of each sampled GPU, used or not."""
    return tuple(_consumption(facts, phases, gpu) for gpu in find(facts, phases))


def _consumption(facts: Facts, phases: Phases, gpu: Gpu) -> Consumption:
    start, end = facts.window.warmup_end, facts.window.throughput_end
    name = next((n for n in POWER if gpu.series(facts.run, n) is not None), None)
    power = gpu.series(facts.run, name) if name else None
    energy, limit = gpu.series(facts.run, "energy_j"), gpu.series(facts.run, "power_limit_w")
    counter, no_counter = counter_difference(energy, start, end)
    integral, no_integral = power_integral(power, start, end)
    basis = power if counter is None or energy is None else energy
    t = basis.t if basis is not None else np.empty(0, np.int64)
    idle = power.value[phases.at(power.t) == PHASES.index("idle")] if power is not None else np.empty(0)
    return Consumption(
        gpu=gpu,
        counter=counter,
        counter_reason=no_counter,
        integral=integral,
        integral_reason=no_integral,
        power_name=name,
        samples=int(((t >= start) & (t < end)).sum()),
        gap=longest_gap(t, start, end),
        gap_limit=_gap_limit(t),
        idle=Level.of(idle),
        limit=float(limit.value[-1]) if limit is not None else None,
    )


def refusals(facts: Facts, found: tuple[Consumption, ...]) -> list[str]:
    """Why no J per token can be given; empty when it can."""
    if not found:
        return [absent(facts.run, "nvml", "no GPU was sampled")]
    used = [c for c in found if c.gpu.used]
    if not used:
        none = all(c.gpu.used is False for c in found)
        return ["the server used none of the sampled GPUs" if none else "it is not known which GPUs the server used"]
    reasons = [] if facts.window.throughput_end > facts.window.warmup_end else ["the measured window is empty"]
    for each in used:
        if each.joules is None:
            reasons.append(f"{each.gpu.device}: {each.counter_reason}, {each.integral_reason}")
        if each.gap is not None and each.gap > each.gap_limit:
            reasons.append(
                f"{each.gpu.device}: {each.gap / 1e6:.0f} ms without a sample in the window, "
                f"of {each.gap_limit / 1e6:.0f} ms allowed"
            )
    return reasons


def _gap_limit(t: Ints) -> int:
    """The longest time without a sample that energy may be told over, ns."""
    usual = float(np.median(np.diff(t))) if t.size > 1 else 0.0
    return max(LEAST_GAP_NS, round(GAP_PERIODS * usual))


def describe(facts: Facts, phases: Phases) -> dict[str, Any]:
    """The `energy` section of summary.json."""
    found = measure(facts, phases)
    reasons = refusals(facts, found)
    used = [c for c in found if c.gpu.used]
    seconds = facts.throughput.seconds
    joules, idle = _sum([c.joules for c in used]), _sum([c.idle.mean for c in used])
    above = joules - idle * seconds if joules is not None and idle is not None else None
    tokens, requests = facts.throughput.output_tokens, facts.throughput.requests

    def per(total: float | None, number: int) -> float | None:
        return rounded(total / number) if total is not None and number and not reasons else None

    return {
        "valid": not reasons,
        "reason": reasons[0] if reasons else None,
        "reasons": reasons,
        "window_ms": rounded(1e3 * seconds),
        "energy_j": rounded(joules),
        "basis": _basis(used) if joules is not None else None,
        "mean_w": rounded(joules / seconds) if joules is not None and seconds > 0 else None,
        "idle_w": rounded(idle),
        "above_idle_j": rounded(above),
        "output_tokens": tokens,
        "requests": requests,
        "j_per_output_token": per(joules, tokens),
        "j_per_request": per(joules, requests),
        "j_per_output_token_above_idle": per(above, tokens),
        "gpus": [_document(c, seconds) for c in found],
        "definition": DEFINITION,
        "population": POPULATION,
        "unit": "J",
    }


def _sum(values: list[float | None]) -> float | None:
    """Sum of the values; None when one is missing, or all."""
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def _basis(used: list[Consumption]) -> str:
    return "counter" if all(c.counter is not None for c in used) else "integral"


def _document(found: Consumption, seconds: float) -> dict[str, Any]:
    gpu = found.gpu
    return {
        "source": gpu.source,
        "device": gpu.device,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "used": gpu.used,
        "how": gpu.how,
        "why": gpu.why,
        "counter_j": rounded(found.counter),
        "counter_reason": found.counter_reason,
        "power_name": found.power_name,
        "integral_j": rounded(found.integral),
        "integral_reason": found.integral_reason,
        "difference_share": rounded(found.difference),
        "mean_w": rounded(found.joules / seconds) if found.joules is not None and seconds > 0 else None,
        "limit_w": rounded(found.limit),
        "samples": found.samples,
        "longest_gap_ms": milliseconds(found.gap),
        "limit_gap_ms": milliseconds(found.gap_limit),
        "idle": found.idle.document(),
    }
