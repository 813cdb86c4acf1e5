"""What the runs at one rate amount to, and which run they need next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from servebench.experiment.capacity.probe import Judgement, Rules, judge, overloaded, unusable
from servebench.experiment.capacity.search import Decision, Known
from servebench.experiment.cell import Cell, Outcome

HELD_OUT_SEED = 1000  # so far from the other seeds are those that only confirm
TRIES = 2  # times --runs runs of which none can be used, and a rate is given up
Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """How many runs a rate gets.

    Attributes:
        runs: at first, and with each further look.
        most_runs: of the first length; then come as many of `longer` times that as at first, and no more.
        longer: factor.
    """

    runs: int
    most_runs: int
    longer: float

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of runs at which a rate is judged."""
        return (*range(self.runs, self.most_runs, self.runs), self.most_runs, self.most_runs + self.runs)

    def length(self, run: int) -> float:
        """Of a run, counted from 1, as a multiple of the first length."""
        return 1.0 if run <= self.most_runs else self.longer


@dataclass(slots=True)
class Evidence:
    """All cells at one rate.

    Attributes:
        number: of the probe, 1 for the first rate that was tried.
        rate: per second.
        own: outcomes of the search's seeds, in their order.
        held_out: outcomes of the seeds that confirm.
    """

    number: int
    rate: float
    own: list[Outcome] = field(default_factory=list)
    held_out: list[Outcome] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all cells."""
        return [*self.own, *self.held_out]

    @property
    def usable(self) -> list[Summary]:
        """Summaries of the runs that tell of the server."""
        return _usable(self.outcomes)

    @property
    def seconds(self) -> float:
        """That the cells took, as they are stored."""
        return sum(round(outcome.seconds, 3) for outcome in self.outcomes)

    def judged(self, rules: Rules) -> Judgement | None:
        """By all runs together; None when none is usable."""
        return judge(self.usable, rules) if self.usable else None

    def known(self, rules: Rules, effort: Effort) -> Known:
        """What the search is to know of the rate.

        A rate that passed and does not do so again with held-out seeds is not passed: it is undecided for good.
        """
        found = self.judged(rules)
        if found is None:
            given_up = len(self.own) >= min(TRIES * effort.runs, effort.looks[-1])
            return Known(self.rate, Decision.UNDECIDED, leans_pass=False, exhausted=given_up, blind=given_up)
        exhausted = len(self.own) >= effort.looks[-1]
        again = _usable(self.held_out)
        if found.decision is not Decision.PASS or not again:
            in_vain = not again and len(self.held_out) >= min(TRIES * effort.runs, effort.most_runs)
            return Known(self.rate, found.decision, found.leans_pass, exhausted, unconfirmable=in_vain)
        alone = judge(again, rules)
        if alone.leans_pass and alone.decision is not Decision.FAIL:
            return Known(self.rate, Decision.PASS, leans_pass=True, exhausted=exhausted, confirmed=True)
        if alone.decision is Decision.FAIL or len(self.held_out) >= effort.most_runs:
            return Known(self.rate, Decision.UNDECIDED, leans_pass=False, exhausted=True)
        return Known(self.rate, Decision.PASS, leans_pass=True, exhausted=exhausted)

    def lacks_own(self, rules: Rules, effort: Effort) -> bool:
        """Whether the search's runs are between two looks; a clear overload needs no second run."""
        if len(self.own) == 1 and self.usable and overloaded(self.usable[0], rules):
            return False
        return len(self.own) < effort.looks[-1] and len(self.own) not in effort.looks

    def lacks_held_out(self, effort: Effort) -> bool:
        """Whether the runs that confirm are between two looks."""
        return 0 < len(self.held_out) < effort.most_runs and len(self.held_out) not in effort.looks


def _usable(outcomes: Iterable[Outcome]) -> list[Summary]:
    return [found.summary for found in outcomes if found.summary is not None and unusable(found.summary) is None]


def gather(outcomes: Iterable[Outcome]) -> list[Evidence]:
    """The outcomes of a capacity experiment's cells by rate, in the order in which the rates were tried."""
    rates: dict[float, Evidence] = {}
    for outcome in outcomes:
        labels = outcome.cell.labels
        rate = float(labels["rate"])
        found = rates.setdefault(rate, Evidence(int(labels["probe"]), rate))
        (found.own if str(labels["run"]).startswith("s") else found.held_out).append(outcome)
    return list(rates.values())


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a cell is made.

    Attributes:
        effort: how long it is.
        seed: of the first run; all rates share their seeds, so that luck shifts all of them the same way.
        law: an override that sets the rate, with ``{rate}`` in it.
        duration_s: measured window of the first runs.
    """

    effort: Effort
    seed: int
    law: str
    duration_s: float

    def next_of(self, found: Evidence, held_out: bool = False) -> Cell:
        """The next cell at a rate."""
        done = found.held_out if held_out else found.own
        return self.cell(found.number, found.rate, len(done) + 1, held_out)

    def cell(self, number: int, rate: float, run: int, held_out: bool = False) -> Cell:
        """Run `run` (from 1) of the probe `number`: ``p03-r2.83-s1``, with a held-out seed ``p03-r2.83-h1``."""
        name = f"{'h' if held_out else 's'}{run}"
        length = 1.0 if held_out else self.effort.length(run)
        return Cell(
            name=f"p{number:02}-r{rate:g}-{name}",
            labels={"probe": number, "rate": rate, "run": name},
            overrides=(self.law.format(rate=rate), f"load.duration={self.duration_s * length:g}"),
            seed=self.seed + run - 1 + HELD_OUT_SEED * held_out,
        )
