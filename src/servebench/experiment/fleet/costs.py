"""What a fleet costs and consumes, at its peak and over the demand's day, as the lines of the calculation."""

from __future__ import annotations

from collections.abc import Iterator

from servebench.experiment.fleet.arithmetic import Line, plain
from servebench.experiment.fleet.demand import DAY
from servebench.experiment.fleet.sizing import Fleet, serving

HOUR = 3600
MILLION = 1_000_000
JOULES_PER_KWH = 3_600_000
NO_PRICE = "no price: --gpu-hour was not given"
NO_SHAPE = "no daily shape was given (--daily or --trace)"
NO_TOKENS = "the capacity result does not say how many tokens a request has"

PER_MILLION = [f"per_million_{kind}_{when}" for kind in ("output", "total") for when in ("peak", "static", "following")]
COSTS = ("per_hour", "day_static", "day_following", "gpu_hours_following", *PER_MILLION)
ENERGY = ("kwh_per_hour_at_peak", "kwh_per_day")


def costs(fleet: Fleet) -> Iterator[Line]:
    """Money an hour, a day and per million tokens, in the currency of the price; no line without a price.

    static: the fleet that the peak needs, all day; following: one that changes its size with the shape.
    """
    if fleet.price is None:
        return
    per_hour = fleet.gpus * fleet.price
    yield Line("cost an hour", f"{fleet.gpus} GPUs × {plain(fleet.price)}", per_hour, key="per_hour")
    yield from _millions(fleet, fleet.demand.peak, 1)
    yield from _each(fleet, "peak", per_hour, fleet.demand.peak, 1)
    if fleet.demand.mean is not None:
        yield from _day(fleet, fleet.price, per_hour, fleet.demand.mean)


def _day(fleet: Fleet, price: float, per_hour: float, mean: float) -> Iterator[Line]:
    static, gpu_hours = per_hour * DAY, gpu_hours_following(fleet)
    follow = gpu_hours * price
    yield Line("cost a day, static", f"{plain(per_hour)} × 24 h", static, key="day_static")
    yield from _millions(fleet, mean, DAY)
    yield from _each(fleet, "static", static, mean, DAY)
    yield Line("GPU hours a day, following", _following_words(fleet), gpu_hours, key="gpu_hours_following")
    yield Line("cost a day, following", f"{plain(gpu_hours)} × {plain(price)}", follow, key="day_following")
    yield from _each(fleet, "following", follow, mean, DAY)


def _tokens(fleet: Fleet) -> list[tuple[str, str, float]]:
    """Kind, its name and tokens of a request; nothing when the capacity result does not say it."""
    output, total = fleet.deployment.output_tokens, fleet.deployment.total_tokens
    return [("output", "output", output), ("total", "input+output", total)] if output and total else []


def _millions(fleet: Fleet, rate: float, hours: float) -> Iterator[Line]:
    """Millions of tokens in an hour or a day at a mean of `rate` requests per second."""
    span, words = (f" × {plain(hours)} h", "a day") if hours > 1 else ("", "an hour")
    for _, name, each in _tokens(fleet):
        expression = f"{plain(rate)} /s × {plain(each)} × 3600{span} ÷ 1,000,000"
        yield Line(f"million {name} tokens {words}", expression, rate * each * HOUR * hours / MILLION)


def _each(fleet: Fleet, when: str, cost: float, rate: float, hours: float) -> Iterator[Line]:
    """Cost per million tokens, of those written and of all, of which `_millions` says how many there are."""
    for kind, name, each in _tokens(fleet):
        millions = rate * each * HOUR * hours / MILLION
        expression = f"{plain(cost)} ÷ {plain(millions)}"
        yield Line(f"cost per million {name}, {when}", expression, cost / millions, key=f"per_million_{kind}_{when}")


def replicas_by_step(fleet: Fleet) -> list[tuple[float, int]]:
    """Hours and replicas of each step of the shape for a fleet that follows it, spares included."""
    spare, headroom = fleet.policy.spare, fleet.policy.headroom
    return [(s.hours, serving(s.peak, headroom, fleet.sustained) + spare) for s in fleet.demand.steps]


def gpu_hours_following(fleet: Fleet) -> float:
    """GPU hours of a day for a fleet that follows the shape."""
    hours = sum(h * n for h, n in replicas_by_step(fleet))
    return hours * fleet.per_replica * fleet.demand.day_factor


def _following_words(fleet: Fleet) -> str:
    """``(9 h × 2 + 15 h × 4) × 1 per replica``, the steps of equal size taken together."""
    hours: dict[int, float] = {}
    for h, n in replicas_by_step(fleet):
        hours[n] = hours.get(n, 0.0) + h
    terms = " + ".join(f"{plain(h)} h × {n}" for n, h in sorted(hours.items()))
    scale = f" × {plain(fleet.demand.day_factor)}" if abs(fleet.demand.day_factor - 1) > 1e-9 else ""
    return f"({terms}) × {fleet.per_replica} per replica{scale}"


def no_cost(fleet: Fleet) -> str | None:
    """Why some costs are unknown; None when all are known."""
    if fleet.price is None:
        return NO_PRICE
    return NO_TOKENS if not _tokens(fleet) else NO_SHAPE if fleet.demand.mean is None else None


def energy(fleet: Fleet) -> Iterator[Line]:
    """kWh an hour at the peak and a day, from J per output token; no line where that was not measured."""
    each, tokens = fleet.deployment.energy, fleet.deployment.output_tokens
    if each is None or not tokens:
        return
    spans = [("an hour at the peak", fleet.demand.peak, 1.0), ("a day", fleet.demand.mean, DAY)]
    for (words, rate, hours), key in zip(spans, ENERGY, strict=True):
        if rate is not None:
            span = f" × {plain(hours)} h" if hours > 1 else ""
            expression = f"{plain(rate)} /s × {plain(tokens)} × 3600{span} × {plain(each)} J ÷ 3,600,000"
            yield Line(f"energy {words}", expression, rate * tokens * HOUR * hours * each / JOULES_PER_KWH, "kWh", key)


def no_energy(fleet: Fleet) -> str | None:
    """Why some energy is unknown; None when all is known."""
    if fleet.deployment.energy is None:
        return fleet.deployment.no_energy
    return NO_TOKENS if not fleet.deployment.output_tokens else NO_SHAPE if fleet.demand.mean is None else None
