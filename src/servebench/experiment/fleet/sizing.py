"""How many replicas carry a demand: pure arithmetic, every step of it kept as a line that a reader can follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servebench.errors import UsageError
from servebench.experiment.fleet.arithmetic import Line, ceiling, plain
from servebench.experiment.fleet.demand import Demand
from servebench.experiment.fleet.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Policy:
    """How a fleet is to be sized.

    Attributes:
        headroom: share that is added to the peak, 0.2 for 20 %.
        spare: replicas beyond those that the demand needs; 1 is N+1.
        gpu_hour: price of one GPU for an hour by deployment name; the name "" is that of all others.
        gpus_per_replica: the same for how many GPUs a replica takes, where it is not to be found in the result.
    """

    headroom: float = 0.2
    spare: int = 1
    gpu_hour: Mapping[str, float] = field(default_factory=dict)
    gpus_per_replica: Mapping[str, float] = field(default_factory=dict)

    def price(self, name: str) -> float | None:
        return self.gpu_hour.get(name, self.gpu_hour.get(""))

    def gpus(self, name: str) -> int | None:
        found = self.gpus_per_replica.get(name, self.gpus_per_replica.get(""))
        return None if found is None else int(found)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A deployment sized for a demand.

    Attributes:
        deployment, demand, policy: what it was sized from.
        serving: replicas that carry the peak with its headroom.
        per_replica: GPUs of a replica.
        per_replica_from: what says so.
        lines: the calculation so far.
    """

    deployment: Deployment
    demand: Demand
    policy: Policy
    serving: int
    per_replica: int
    per_replica_from: str
    lines: tuple[Line, ...]

    @property
    def sustained(self) -> float:
        """Requests per second that a replica carries."""
        assert self.deployment.sustained is not None
        return self.deployment.sustained

    @property
    def replicas(self) -> int:
        return self.serving + self.policy.spare

    @property
    def gpus(self) -> int:
        return self.replicas * self.per_replica

    @property
    def price(self) -> float | None:
        """Of a GPU hour."""
        return self.policy.price(self.deployment.name)


def serving(rate: float, headroom: float, sustained: float) -> int:
    """Replicas that carry `rate` requests per second plus headroom, at least one, without spares."""
    return max(1, ceiling(rate * (1 + headroom) / sustained))


def size(deployment: Deployment, demand: Demand, policy: Policy) -> Fleet:
    """The smallest fleet of `deployment` that carries the demand's peak, headroom and spares included.

    Raises:
        UsageError: the capacity test found no rate that the deployment sustains.
    """
    if deployment.sustained is None:
        raise UsageError(f"{deployment.path}: no rate was sustained, so no number of replicas meets the SLO")
    need = demand.peak * (1 + policy.headroom)
    least = serving(demand.peak, policy.headroom, deployment.sustained)
    gpus, source = _per_replica(deployment, policy)
    total = least + policy.spare
    lines = (
        *demand.lines,
        Line("peak with headroom", f"{plain(demand.peak)} /s × (1 + {plain(policy.headroom)})", need, "/s"),
        Line("replicas for that", f"{plain(need)} /s ÷ {plain(deployment.sustained)} /s", need / deployment.sustained),
        Line("whole replicas", f"{plain(need / deployment.sustained)} rounded up", least),
        Line("replicas in all", f"{least} + {policy.spare} spare", total),
        Line("GPUs", f"{total} × {gpus} per replica", total * gpus),
    )
    return Fleet(deployment, demand, policy, least, gpus, source, lines)


def _per_replica(deployment: Deployment, policy: Policy) -> tuple[int, str]:
    given = policy.gpus(deployment.name)
    if given is not None:
        return given, "--gpus-per-replica"
    if deployment.gpus is not None:
        return deployment.gpus, deployment.gpus_from
    return 1, "assumed, as nothing says it; --gpus-per-replica does"


def breaks_first(fleet: Fleet) -> dict[str, Any]:
    """Which objective gives way, and how full the replicas are at the peak with all of them, and with one lost.

    Utilisations are shares of the sustained rate; above 1 the SLO does not hold, at or above `fails_at` it was seen to.
    """
    left = fleet.replicas - 1
    return {
        "objective": fleet.deployment.binding,
        "utilisation": fleet.demand.peak / (fleet.replicas * fleet.sustained),
        "one_lost": fleet.demand.peak / (left * fleet.sustained) if left else None,
        "survives_one": left > 0 and fleet.demand.peak <= left * fleet.sustained,
        "fails_at": fleet.deployment.failed / fleet.sustained if fleet.deployment.failed else None,
        "carries_per_s": fleet.replicas * fleet.sustained,
    }


def at_failed_end(fleet: Fleet) -> int | None:
    """Replicas in all if a replica carried the failed end of its bracket: fewer than this is certainly too few."""
    failed = fleet.deployment.failed
    if not failed:
        return None
    return serving(fleet.demand.peak, fleet.policy.headroom, failed) + fleet.policy.spare


def comparable(deployments: Sequence[Deployment]) -> dict[str, str]:
    """For those that answer another question than the first deployment: by name, what differs."""
    first = deployments[0]
    found = {}
    for other in deployments[1:]:
        keys = [k for k in {**first.asked, **other.asked} if first.asked.get(k) != other.asked.get(k)]
        if keys:
            found[other.name] = f"not comparable with {first.name}: another {' and another '.join(keys)}"
    return found
