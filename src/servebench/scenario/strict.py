"""What every part of the schema shares: unknown keys are refused by name, and values carry units."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from servebench.errors import did_you_mean
from servebench.units import describe, parse_amount, parse_duration, parse_rate, parse_size

T = TypeVar("T")


def problem(message: str, *at: str | int) -> PydanticCustomError:
    """Build a validation error whose place is `at`, below the value that is being validated."""
    return PydanticCustomError("problem", "{message}", {"message": message, "at": list(at)})


def check_keys(data: dict[str, Any], allowed: Iterable[str], *at: str | int) -> None:
    """Refuse the first key that is not allowed, naming the nearest that is."""
    allowed = tuple(allowed)
    for key in data:
        if key not in allowed:
            hint = did_you_mean(key, allowed) or f" (known here: {', '.join(allowed)})"
            raise problem(f"unknown key {describe(key)}{hint}", *at, key)


def convert(parse: Callable[[object], T], value: object, *at: str | int) -> T:
    """Apply a parser of `units` to a value that lies at `at`."""
    try:
        return parse(value)
    except ValueError as error:
        raise problem(str(error), *at) from None


def require_mapping(value: object, example: str, *at: str | int) -> dict[str, Any]:
    """Return `value` if it is a mapping; else say what was expected."""
    if not isinstance(value, dict):
        raise problem(f"expected {example}, not {describe(value)}", *at)
    return value


class Strict(BaseModel):
    """A frozen part of the scenario.

    Subclasses may set `accepts`, the keys that people write where they differ from the fields, and override `shape`,
    which turns what people write into fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    accepts: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def unwrap(cls, data: Any) -> Any:
        """Take the part's own data out of what surrounds it."""
        return data

    @classmethod
    def shape(cls, data: Any, base: Path) -> Any:
        """Turn the written form, whose keys have been checked, into fields; `base` is where files lie that it names."""
        return data

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        allowed = cls.accepts or tuple(cls.model_fields)
        data = cls.unwrap(data)
        if isinstance(data, dict):
            check_keys(data, allowed)
        shaped = cls.shape(data, (info.context or {}).get("base", Path()))
        return require_mapping(shaped, f"a mapping with {', '.join(allowed)}")


def _plain(kind: type, name: str) -> Callable[[object], object]:
    def check(value: object) -> object:
        if type(value) is not kind:
            raise ValueError(f"expected {name}, not {describe(value)}")
        return value

    return check


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError(f"expected more than 0, not {value:g}")
    return value


def parse_number(value: object) -> float:
    """Return a plain, finite number, whole or not, as a float. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise ValueError(f"expected a number, not {describe(value)}")
    return float(value)


def parse_seed(value: object) -> int:
    """Return a seed: a whole number from 0 to 2⁶³ − 1. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"expected a whole number from 0 to 2^63 - 1, not {describe(value)}")
    return value


def parse_count(value: object) -> int:
    """Return a size of at least 1. Raises ValueError."""
    return int(_positive(parse_size(value)))


def parse_positive_amount(value: object) -> float:
    """Return an amount above 0, whole or not. Raises ValueError."""
    return _positive(parse_amount(value))


def parse_positive_rate(value: object) -> float:
    """Return a rate above 0, per second. Raises ValueError."""
    return _positive(parse_rate(value))


def parse_positive_duration(value: object) -> float:
    """Return a duration above 0, in seconds. Raises ValueError."""
    return _positive(parse_duration(value))


def parse_word(value: object) -> str:
    """Return a name that is safe as part of a file name. Raises ValueError."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"expected a name of letters, digits, '-', '_' and '.', not {describe(value)}")
    return value


Duration = Annotated[float, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[float, BeforeValidator(parse_positive_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Count = Annotated[int, BeforeValidator(parse_count)]
Amount = Annotated[float, BeforeValidator(parse_positive_amount)]
Number = Annotated[float, BeforeValidator(parse_number)]
PositiveNumber = Annotated[float, BeforeValidator(lambda value: _positive(parse_number(value)))]
Seed = Annotated[int, BeforeValidator(parse_seed)]
Word = Annotated[str, BeforeValidator(parse_word)]
Flag = Annotated[bool, BeforeValidator(_plain(bool, "true or false"))]
Text = Annotated[str, BeforeValidator(_plain(str, "text"))]
