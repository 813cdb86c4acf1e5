"""The scenario: what is sent, when, to what, and what is promised. All times are seconds, all rates per second."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from servebench.scenario.endpoint import Endpoint
from servebench.scenario.engine import Engine
from servebench.scenario.lengths import LengthLaw
from servebench.scenario.load import Load
from servebench.scenario.slo import Slo
from servebench.scenario.strict import (
    Count,
    PositiveNumber,
    Seed,
    Strict,
    Text,
    Word,
    parse_number,
    problem,
)

SCHEMA_VERSION = 1


def parse_correlation(value: object) -> float:
    """Return a number from −1 to 1. Raises ValueError."""
    number = parse_number(value)
    if not -1 <= number <= 1:
        raise ValueError(f"expected a number from -1 to 1, not {number:g}")
    return number


Correlation = Annotated[float, BeforeValidator(parse_correlation)]


class SharedPrefix(Strict):
    """Requests that begin alike: each takes its first `tokens` tokens from one of `groups` common beginnings."""

    tokens: Count
    groups: Count = 1


class TrafficClass(Strict):
    """Requests of one kind.

    Attributes:
        name: of the class.
        weight: its share of the requests, relative to the other classes' weights.
        input_tokens: law of the prompt's length, by the server's count.
        output_tokens: law of the answer's length.
        correlation: rank correlation (Spearman) of the two, −1 to 1; None and 0 leave them independent.
        shared_prefix: common beginnings.
    """

    name: Word = "default"
    weight: PositiveNumber = 1.0
    input_tokens: LengthLaw
    output_tokens: LengthLaw
    correlation: Correlation | None = None
    shared_prefix: SharedPrefix | None = None

    @model_validator(mode="after")
    def _room_for_prefix(self) -> TrafficClass:
        if self.shared_prefix and self.shared_prefix.tokens >= self.input_tokens.lower:
            raise problem(
                f"a shared prefix of {self.shared_prefix.tokens} tokens needs longer prompts: "
                f"the least input_tokens is {self.input_tokens.lower}; raise its min",
                "shared_prefix",
                "tokens",
            )
        return self


FLAT = ("input_tokens", "output_tokens", "correlation", "shared_prefix")


class Workload(Strict):
    """What is sent: one or several classes. Written flat, the laws make one class named ``default``."""

    accepts: ClassVar[tuple[str, ...]] = (*FLAT, "classes")
    classes: tuple[TrafficClass, ...] = Field(min_length=1)

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Make the flat form a single class."""
        if not isinstance(data, dict):
            return data
        flat = {key: value for key, value in data.items() if key in FLAT}
        if "classes" not in data:
            return {"classes": [flat]}
        if flat:
            raise problem(f"a workload takes either classes or {next(iter(flat))} of its own", "classes")
        return data

    @model_validator(mode="after")
    def _distinct_names(self) -> Workload:
        names = [item.name for item in self.classes]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise problem(f'two classes are named "{name}"', "classes", index)
        return self


class Seeds(Strict):
    """Independent seeds: changing one changes only its own part of the plan. A bare number sets all three."""

    arrivals: Seed = 1
    lengths: Seed = 1
    content: Seed = 1

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Accept the bare number."""
        return data if isinstance(data, dict) else dict.fromkeys(cls.model_fields, data)


class Scenario(Strict):
    """A whole scenario.

    Attributes:
        servebench: version of the schema.
        name: of the scenario; run directories are named after it.
        description: what it models, and where its figures come from.
    """

    servebench: Literal[1]
    name: Word
    description: Text = ""
    endpoint: Endpoint = Endpoint()
    workload: Workload
    load: Load
    slo: Slo = Slo()
    engine: Engine = Engine()
    seed: Seeds = Seeds()

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Take an empty section for a missing one."""
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None}

    @property
    def seeds(self) -> Seeds:
        """The seeds, under the name of what they are."""
        return self.seed

    def resolved(self) -> dict[str, Any]:
        """The whole scenario with every default filled in, as plain JSON-able data that is itself a valid scenario."""
        return self.model_dump(mode="json")

    @classmethod
    def from_resolved(cls, data: dict[str, Any]) -> Scenario:
        """Read what `resolved` wrote; raises UsageError like `load_scenario`."""
        from servebench.scenario.document import Document
        from servebench.scenario.loading import validate

        return validate(Document("scenario", data), Path())
