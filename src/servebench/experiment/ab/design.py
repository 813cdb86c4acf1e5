"""The design of an A/B experiment: which arms run when, so that neither drift nor order is mistaken for an effect.

Within a repeat every arm runs once, all of them with one plan (the repeat's own seed). The order within the repeats is
random but balanced: each round of as many repeats as there are arms is a Latin square, in which every arm has every
place once, and every second round runs the one before backwards, so that whoever came after another comes before it.
Two arms run AB and BA equally often.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from servebench.errors import UsageError
from servebench.experiment.arms import HOOK, TOLD, Arm, check_arms, keys_of, told_as
from servebench.experiment.cell import Cell
from servebench.experiment.comparison.effect import PRIMARY, SECONDARY
from servebench.experiment.comparison.effects import DIFFERENCES
from servebench.experiment.comparison.family import runs_wanted

if TYPE_CHECKING:
    from servebench.scenario.schema import Scenario

AGAIN = "base-again"
LEAST_REPEATS = 6
BASE, CANDIDATE, AGAIN_ROLE = "base", "candidate", "again"


@dataclass(frozen=True, slots=True)
class Design:
    """What is compared, how often, in which order, and how it is judged; all of it said before the first run.

    Attributes:
        arms: the first is the base.
        family: figures that are tested, the primary first.
        repeats: of every arm.
        seed: of the plans: repeat 1 takes the next one, repeat 2 the one after it, and so on.
        order_seed: of the order within the repeats.
        alpha: level of the tests.
        min_effect: the size that matters, 0.03 for 3 %.
        aa: whether the base runs a second time in every repeat, as an arm of its own, to measure the noise.
        hypothesis: what is expected, in the words of whoever asks.
        prepare: a shell command before each run, which reconfigures the server for the arm.

    Raises:
        UsageError: fewer than two arms, arms that are the same or take a reserved name, no repeat, a level or a size
            that is none, a figure that cannot be tested, or arms that differ only for a hook that is not there.
    """

    arms: tuple[Arm, ...]
    family: tuple[str, ...]
    repeats: int
    seed: int = 1
    order_seed: int = 1
    alpha: float = 0.05
    min_effect: float = 0.03
    aa: bool = False
    hypothesis: str | None = None
    prepare: str | None = None

    def __post_init__(self) -> None:
        check_arms(self.arms)
        if any(arm.name == AGAIN for arm in self.arms):
            raise UsageError(f"{AGAIN} is the name of the arm that --aa adds; choose another")
        if self.repeats < 1:
            raise UsageError(f"--repeats {self.repeats}: every arm runs once at least")
        check_rules(self.family, self.alpha, self.min_effect)
        self._check_hook()

    def _check_hook(self) -> None:
        for arm in self.candidates if self.prepare is None else ():
            if told := [name for name in self.variables(arm.name) if name.startswith(HOOK)]:
                raise UsageError(
                    f"the arms {self.base.name!r} and {arm.name!r} differ in {', '.join(told)}, which only a --hook "
                    "command is told, and there is none"
                )

    @property
    def base(self) -> Arm:
        """What the others are compared with."""
        return self.arms[0]

    @property
    def candidates(self) -> tuple[Arm, ...]:
        """All but the base."""
        return self.arms[1:]

    @property
    def running(self) -> tuple[Arm, ...]:
        """Every arm that runs, the second base included."""
        if not self.aa:
            return self.arms
        hook = {"SERVEBENCH_ARM": self.base.name, **self.base.environ}  # it must not see that it is another arm
        return (*self.arms, replace(self.base, name=AGAIN, environ=hook))

    def role(self, arm: str) -> str:
        """The part of an arm: "base", "candidate" or "again"."""
        if arm == self.base.name:
            return BASE
        return AGAIN_ROLE if arm == AGAIN else CANDIDATE

    def variables(self, arm: str) -> tuple[str, ...]:
        """The keys that this arm and the base set differently."""
        other = next(each for each in self.running if each.name == arm)
        return _variables(self.base, other)


def check_rules(family: Sequence[str], alpha: float, min_effect: float) -> None:
    """Raise UsageError for a level or a size that is none, or a figure to be tested that may be 0 and has no ratio."""
    if not 0.001 <= alpha < 0.5:
        raise UsageError(f"--alpha {alpha:g}: a level lies between 0.001 and 0.5")
    if not 0 <= min_effect < 1:
        raise UsageError(f"--min-effect {min_effect:g}: give a share from 0 to 1, such as 3%")
    for name in family:
        if name in DIFFERENCES:
            option = "--primary" if name == family[0] else "--metric"
            raise UsageError(f"{option} {name}: it may be 0, so that no ratio can be taken; it is shown, not tested")


def repeats_wanted(candidates: int, family: Sequence[str], alpha: float = 0.05) -> int:
    """Repeats with which every tested figure can be decided; six at least."""
    secondaries = sum(name not in DIFFERENCES for name in family[1:])
    counts = {PRIMARY: candidates, SECONDARY: candidates * secondaries}
    roles = [role for role, number in counts.items() if number]
    return max(LEAST_REPEATS, *(runs_wanted(role, counts, alpha, paired=True) for role in roles))


def orders(design: Design) -> list[list[str]]:
    """The names of the arms in the order in which they run, a list for each repeat."""
    names, chance = [arm.name for arm in design.running], random.Random(design.order_seed)
    found: list[list[str]] = []
    while len(found) < design.repeats:
        first = chance.sample(names, len(names))
        found += [*_square(first, chance), *_square(first[::-1], chance)]
    return found[: design.repeats]


def _square(first: Sequence[str], chance: random.Random) -> list[list[str]]:
    """As many orders as names, in which each name has each place once."""
    shifts = chance.sample(range(len(first)), len(first))
    return [[*first[shift:], *first[:shift]] for shift in shifts]


def cells(design: Design) -> list[Cell]:
    """The runs, in their order. All arms of a repeat have one seed, and so one plan; each run draws its own salt."""
    by_name = {arm.name: arm for arm in design.running}
    return [
        _cell(design, by_name[name], repeat) for repeat, order in enumerate(orders(design), start=1) for name in order
    ]


def _cell(design: Design, arm: Arm, repeat: int) -> Cell:
    return Cell(
        name=cell_name(arm.name, repeat),
        labels={"arm": arm.name, "repeat": repeat, "block": repeat},
        overrides=arm.overrides,
        endpoint=arm.endpoint,
        model=arm.model,
        seed=design.seed + repeat,
        prepare=design.prepare,
        environ={"SERVEBENCH_ARM": arm.name, **arm.environ, "SERVEBENCH_REPEAT": str(repeat)},
    )


def cell_name(arm: str, repeat: int) -> str:
    """Such as ``r01-base``."""
    return f"r{repeat:02d}-{arm}"


def check_plans(scenarios: Mapping[str, Scenario]) -> None:
    """Make the plan of every arm's scenario; raises UsageError when they are not one and the same, before any run."""
    from servebench.workload.planning import make_plan

    hashes = {name: make_plan(scenario).hash for name, scenario in scenarios.items()}
    base, *others = hashes
    for other in others:
        if hashes[other] != hashes[base]:
            raise UsageError(
                f"the arms {base!r} and {other!r} would send different requests: an A/B experiment changes the server, "
                "not the workload; to vary the load, take servebench sweep"
            )


def question(design: Design, scenario: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    """What experiment.json keeps: the design, the scenario as resolved and the endpoint. `read` reads the design."""
    return {
        "scenario": dict(scenario),
        "endpoint": endpoint,
        "arms": [_shown(arm) for arm in design.arms],
        "repeats": design.repeats,
        "primary": design.family[0],
        "family": list(design.family),
        "alpha": design.alpha,
        "min_effect": design.min_effect,
        "hypothesis": design.hypothesis,
        "aa": design.aa,
        "seed": design.seed,
        "order_seed": design.order_seed,
        "prepare": design.prepare,
    }


def _shown(arm: Arm) -> dict[str, Any]:
    return asdict(arm) | {"overrides": list(arm.overrides), "environ": dict(arm.environ)}


def read(asked: Mapping[str, Any]) -> Design:
    """The design of a stored question."""
    arms = tuple(Arm(**{**arm, "overrides": tuple(arm["overrides"])}) for arm in asked["arms"])
    names = ("repeats", "seed", "order_seed", "alpha", "min_effect", "aa", "hypothesis", "prepare")
    return Design(arms, tuple(asked["family"]), **{name: asked[name] for name in names})


def _variables(base: Arm, other: Arm) -> tuple[str, ...]:
    """Keys of overrides and of the hook's own settings whose values differ, and whether model or endpoint do."""
    keys = [key for key in keys_of([base, other]) if _values(base).get(key) != _values(other).get(key)]
    known = {"SERVEBENCH_ARM", *(name for key in keys_of([base, other]) for name in told_as(key))}
    hooks = [
        f"{HOOK}{name.removeprefix(TOLD).lower()}"
        for name in dict.fromkeys([*base.environ, *other.environ])
        if name not in known and base.environ.get(name) != other.environ.get(name)
    ]
    places = [name for name in ("endpoint", "model") if getattr(base, name) != getattr(other, name)]
    return (*keys, *hooks, *places)


def _values(arm: Arm) -> dict[str, str]:
    return dict(override.partition("=")[::2] for override in arm.overrides)
