"""What a plan takes for granted, each a sentence, so that a reader can disagree with one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servebench.experiment.fleet.arithmetic import plain
from servebench.experiment.fleet.demand import Demand
from servebench.experiment.fleet.deployment import Deployment
from servebench.experiment.fleet.sizing import Fleet, Policy


def assumptions(demand: Demand, policy: Policy, fleets: Sequence[Fleet]) -> list[str]:
    """All assumptions behind the fleets, in the order of the calculation."""
    deployments = [fleet.deployment for fleet in fleets]
    return [
        *demand.assumptions,
        *(_traffic(d) for d in deployments),
        *(_bracket(d) for d in deployments),
        *(_reserve(d) for d in deployments if d.marks),
        "Replicas are alike, share no bottleneck and get equal shares: n of them carry n times what one does.",
        f"The headroom of {plain(100 * policy.headroom)} % is for what the peak does not show: bursts shorter than it "
        "was measured over, uneven balancing, growth.",
        *_spares(policy),
        *(f"{f.deployment.name}: GPUs per replica: {f.per_replica} ({f.per_replica_from})." for f in fleets),
        *_money(demand, fleets),
        *_energy(fleets),
        "Sensitivity to prompt length: where only one length was measured, a replica's rate is taken to fall as the "
        "tokens of a request, prompt and answer, grow. A prompt token usually costs less than an answer's, so this is "
        "pessimistic for longer prompts and optimistic for shorter ones; a capacity run at that length says.",
    ]


def _traffic(deployment: Deployment) -> str:
    if deployment.input_tokens is None or deployment.output_tokens is None:
        return f"{deployment.name}: requests look like those of its test, which does not say how many tokens they had."
    tokens = f"{plain(deployment.input_tokens)} prompt and {plain(deployment.output_tokens)} answer tokens"
    return f"{deployment.name}: requests look like those of its test: on average {tokens}, with the same spread."


def _bracket(deployment: Deployment) -> str:
    rate = plain(deployment.sustained or 0)
    carries = f"{deployment.name}: a replica carries {rate} /s, the highest rate that passed"
    if deployment.failed is None:
        return f"{carries}; no rate failed, so it may carry more."
    return f"{carries}; {plain(deployment.failed)} /s failed. What lies between is not counted on."


def _reserve(deployment: Deployment) -> str:
    why = f" ({'; '.join(deployment.doubts)})" if deployment.doubts else ""
    return f"{deployment.name}: the capacity is {', '.join(deployment.marks)}{why}; so is all that comes from it."


def _spares(policy: Policy) -> Iterator[str]:
    if policy.spare:
        yield f"Spare replicas ({policy.spare}) run and take their share of the load; they are there to be lost."
    else:
        yield "There is no spare replica: losing one costs its whole share."


def _money(demand: Demand, fleets: Sequence[Fleet]) -> Iterator[str]:
    if not any(fleet.price is not None for fleet in fleets):
        return
    yield "A GPU is paid for every hour that it is held, busy or not; nothing else (CPU, network, people) is counted."
    if demand.steps:
        yield (
            "A fleet that follows the shape changes its size at each step and is ready in time: a start takes no time "
            "and costs nothing. Headroom and spares are kept at every step."
        )


def _energy(fleets: Sequence[Fleet]) -> Iterator[str]:
    for own in (fleet.deployment for fleet in fleets):
        if own.energy is not None:
            yield (
                f"{own.name}: an output token takes {plain(own.energy)} J, as measured at the sustained rate, GPUs "
                "only; a replica that is less busy needs more for each."
            )
