"""From a file and overrides to a `Scenario`, with errors that say where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from servebench.errors import UsageError, did_you_mean
from servebench.scenario.document import Document, read_document
from servebench.scenario.overrides import apply_override, dotted
from servebench.scenario.schema import Scenario
from servebench.units import describe


def load_scenario(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read the scenario at `path`, or the shipped one of that name, and apply ``a.b.c=value`` overrides in order.

    Raises:
        UsageError: one line that says what is wrong, in which file and line or override, and what was probably meant.
    """
    found = resolve_scenario(path)
    return make_scenario(read_document(found), overrides, found.parent)


def make_scenario(document: Document, overrides: Sequence[str], base: Path) -> Scenario:
    """Apply overrides to a document, which they change, and check it; `base` as in `validate`. Raises UsageError."""
    for override in overrides:
        apply_override(document, override)
    return validate(document, base)


def validate(document: Document, base: Path) -> Scenario:
    """Check a document against the schema; `base` is where the files lie that it names. Raises UsageError."""
    version = document.data.get("servebench")
    if version != 1:
        where, _ = document.locate(("servebench",))
        said = "is missing" if version is None else f"says {version!r}"
        raise UsageError(f"{where}: the schema version {said}; this servebench reads `servebench: 1`")
    try:
        return Scenario.model_validate(document.data, context={"base": base})
    except ValidationError as error:
        raise UsageError(_first_line(error, document)) from None


# What pydantic's own checks, the few that the schema leaves to it, mean in a scenario.
_EXPECTED = {
    "tuple_type": "a list",
    "too_long": "a pair of a probability and tokens",
    "too_short": "a list with enough items",
    "float_type": "a number",
}


def _first_line(error: ValidationError, document: Document) -> str:
    """The first problem of `error` as one line."""
    first: Any = error.errors(include_url=False)[0]
    at = first.get("ctx", {}).get("at", [])
    where, written = document.locate((*first["loc"], *at))
    written = written[:-1] if first["type"] == "missing" and written[-1:] == first["loc"][-1:] else written
    place = dotted(written)
    return f"{where}: {place}: {_message(first)}" if place else f"{where}: {_message(first)}"


def _message(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return f'"{error["loc"][-1]}" is missing'
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in context["expected"].replace(" or ", ", ").split(", ")]
        return f"expected {context['expected']}, not {error['input']!r}{did_you_mean(str(error['input']), choices)}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, not {describe(error['input'])}"
    message: str = error["msg"]
    return message.removeprefix("Value error, ")


def scenario_folder() -> Path:
    """Where the shipped scenarios lie: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "scenarios"
    return installed if installed.is_dir() else package.parents[1] / "scenarios"


def shipped_scenarios() -> dict[str, Path]:
    """The shipped scenarios by name, in alphabetical order."""
    return {path.stem: path for path in sorted(scenario_folder().glob("*.yaml"))}


def resolve_scenario(name_or_path: str | Path) -> Path:
    """The file that is meant: an existing path, or the name of a shipped scenario. Raises UsageError."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; a scenario is a YAML file or one of {', '.join(shipped_scenarios())}")
    shipped = shipped_scenarios()
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)]
    hint = did_you_mean(path.stem, shipped) or f" (shipped: {', '.join(shipped)})"
    raise UsageError(f"{name_or_path}: no such scenario file, nor a shipped scenario of that name{hint}")
