"""The runs of an A/B experiment by arm and repeat: which there are, which count, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from servebench.experiment.ab.design import Design, cell_name
from servebench.experiment.cell import Outcome
from servebench.experiment.comparison.differences import Difference, differences, is_named, unchanged
from servebench.experiment.comparison.sides import plan_hash, why_unusable

Document = dict[str, Any]
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Schedule:
    """The runs at their places.

    Attributes:
        design: what was to be run.
        found: every run that has ended, by the name of its cell.
    """

    design: Design
    found: dict[str, Outcome]

    @classmethod
    def of(cls, design: Design, outcomes: Sequence[Outcome]) -> Schedule:
        """Put the outcomes of an experiment's cells at their places."""
        return cls(design, {outcome.cell.name: outcome for outcome in outcomes})

    def at(self, arm: str, repeat: int) -> Outcome | None:
        """The run of an arm in a repeat; None when it has not ended."""
        return self.found.get(cell_name(arm, repeat))

    def runs(self, arm: str) -> list[Outcome]:
        """All runs of an arm, in the order of the repeats."""
        places = (self.at(arm, repeat) for repeat in self.repeats)
        return [outcome for outcome in places if outcome is not None]

    @property
    def repeats(self) -> range:
        """The numbers of the repeats."""
        return range(1, self.design.repeats + 1)

    @cached_property
    def used(self) -> dict[str, list[Outcome]]:
        """The runs of each arm that can be compared."""
        return {
            arm.name: [outcome for outcome in self.runs(arm.name) if why_unusable(outcome) is None]
            for arm in self.design.running
        }

    def pairs(self, arm: str) -> list[tuple[Outcome, Outcome]]:
        """Base and `arm` of every repeat in which both can be compared and were to send the same."""
        return [(base, cand) for base, cand in self._both(arm) if plan_hash(base) == plan_hash(cand)]

    def unequal(self, arm: str) -> list[tuple[Outcome, Outcome]]:
        """The pairs that are none, since their plans differ."""
        return [(base, cand) for base, cand in self._both(arm) if plan_hash(base) != plan_hash(cand)]

    def _both(self, arm: str) -> list[tuple[Outcome, Outcome]]:
        places = ((self.at(self.design.base.name, repeat), self.at(arm, repeat)) for repeat in self.repeats)
        return [
            (base, cand)
            for base, cand in places
            if base is not None and cand is not None and why_unusable(base) is None and why_unusable(cand) is None
        ]

    @cached_property
    def lost(self) -> list[Document]:
        """Every run that is missing from the comparison, and why."""
        found = []
        for repeat in self.repeats:
            for arm in self.design.running:
                outcome = self.at(arm.name, repeat)
                reason = NOT_RUN if outcome is None else why_unusable(outcome)
                if reason is not None:
                    cell = cell_name(arm.name, repeat)
                    found.append({"repeat": repeat, "arm": arm.name, "cell": cell, "reason": reason})
        return found

    def differences(self) -> list[Document]:
        """All that differs between the base and the other arms, each key once an arm."""
        return [
            each.to_dict(arm.name, named=is_named(each.key, self.design.variables(arm.name)))
            for arm in self.design.running[1:]
            for each in self._of_pairs(arm.name)
        ]

    def unchanged(self) -> dict[str, list[str]]:
        """By arm, what should have changed and, by the server's own word, is as in the base in every pair."""
        found = {arm.name: self._unchanged(arm.name) for arm in self.design.candidates}
        return {name: told for name, told in found.items() if told}

    def _unchanged(self, arm: str) -> list[str]:
        variables = self.design.variables(arm)
        told = [unchanged(base.manifest or {}, cand.manifest or {}, variables) for base, cand in self.pairs(arm)]
        return [each for each in told[0] if all(each in others for others in told)] if told else []

    def _of_pairs(self, arm: str) -> list[Difference]:
        found: dict[str, Difference] = {}
        for base, cand in self.pairs(arm):
            for each in differences(base.manifest or {}, cand.manifest or {}):
                found.setdefault(each.key, each)
        return list(found.values())
