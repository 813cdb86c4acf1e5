"""What an experiment varies: ``--vary KEY=VALUES``, and the points that several of them span."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from servebench.errors import UsageError
from servebench.experiment.ranges import EXAMPLE, is_range, range_values
from servebench.record.redaction import names_secret
from servebench.scenario.document import parse_value
from servebench.scenario.engine import flag_name
from servebench.scenario.loading import load_scenario
from servebench.scenario.schema import Scenario

Point = Mapping[str, str]  # canonical key -> the value as it is written

FORM = "KEY=V1,V2,.. or KEY=" + EXAMPLE
# Last steps of the keys whose numbers need not be whole; a flag of vLLM is told by the ends of its range.
FRACTIONS = frozenset(
    {
        *("rate", "poisson", "constant", "cv", "from", "to", "weight", "correlation"),
        *("duration", "warmup", "drain", "think", "for", "idle_timeout", "timeout", "connect_timeout"),
        *("base", "per_prefill_token", "per_sequence", "per_context_token"),
    }
)
LOCAL = {"vllm": ("engine", "vllm"), "sim": ("engine", "sim")}
LOAD_KEYS = frozenset(
    {"load.rate", "load.poisson", "load.constant", "load.gamma.rate", "load.closed.concurrency"},
)


@dataclass(frozen=True, slots=True)
class Variable:
    """A key of the scenario and the values that it takes.

    Attributes:
        key: its dotted path as overrides take it: ``engine.vllm.flags.max-num-seqs``.
        values: as they stand behind ``key=``; the first one is the base where arms are compared.
        written: the key as the user wrote it: ``vllm.max_num_seqs``.
        note: what was done to the values that the user may not expect; else empty.
    """

    key: str
    values: tuple[str, ...]
    written: str
    note: str = ""


def parse_vary(text: str) -> Variable:
    """Read ``KEY=V1,V2,..`` or ``KEY=LOW..HIGH:log8|lin5|STEP``.

    A comma inside brackets or quotes belongs to its value.

    Raises:
        UsageError: not of that form, a value twice, fewer than two values, or a key that names a secret.
    """
    written, equals, right = text.partition("=")
    written = written.strip()
    if not equals or not written or not right.strip():
        raise UsageError(f"--vary {text}: expected {FORM}")
    if names_secret(written):
        raise UsageError(
            f"--vary {written}: a secret cannot be varied, since its values would name the runs; take --arm"
        )
    key = canonical_key(written, f"--vary {text}")
    values, note = _values(right.strip(), key, text)
    _refuse_twice(values, written)
    if len(values) < 2:
        raise UsageError(f"--vary {text}: one value varies nothing: expected {FORM}")
    return Variable(key, values, written, note)


def canonical_key(written: str, origin: str = "") -> str:
    """The dotted path that ``vllm.FLAG``, ``sim.KEY`` or a path means; flags get dashes, the simulator's underscores.

    ``vllm.model`` and ``vllm.env.NAME`` are the launch's own model and environment, which no flag sets.
    """
    steps = written.strip().split(".")
    if not all(steps):
        raise UsageError(f"{origin}: {written!r} is no dotted path such as load.rate or vllm.max-num-seqs".lstrip(": "))
    if steps[0] == "vllm" and len(steps) > 1:
        own = steps[1] == "model" or (steps[1] == "env" and len(steps) > 2)
        steps = ["engine", "vllm", *([] if own else ["flags"]), *steps[1:]]
    elif steps[0] == "sim" and len(steps) > 1:
        steps = ["engine", *steps]
    if steps[:3] == ["engine", "vllm", "flags"] and len(steps) > 3:
        steps = [*steps[:3], flag_name(".".join(steps[3:]))]
    if steps[:2] == ["engine", "sim"]:
        steps = [step.replace("-", "_") for step in steps]
    return ".".join(steps)


def _values(right: str, key: str, text: str) -> tuple[tuple[str, ...], str]:
    parts = tuple(part.strip() for part in _split(right))
    if not all(parts):
        raise UsageError(f"--vary {text}: a value is missing between two commas (write '' for an empty one)")
    if len(parts) > 1 or not is_range(parts[0]):
        return parts, ""
    try:
        values = range_values(parts[0], whole=key.rpartition(".")[2] not in FRACTIONS)
    except UsageError as error:
        raise UsageError(f"--vary {key}={error}") from None
    wanted = len(range_values(parts[0], whole=False))
    fewer = f"{key} takes whole numbers: the {wanted} points of {parts[0]} are {len(values)} different ones"
    return values, fewer if len(values) < wanted else ""


def _split(text: str) -> Iterator[str]:
    """Cut at the commas that are outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _refuse_twice(values: Sequence[str], written: str) -> None:
    seen: list[Any] = []
    for value in values:
        plain = plain_value(value)
        if (type(plain) is bool, plain) in seen:  # 64 and 64.0 are one value, true and 1 are two
            raise UsageError(f"--vary {written}: the value {value} is given twice")
        seen.append((type(plain) is bool, plain))


def plain_value(value: str) -> Any:
    """What YAML makes of a value: a number, a truth value, None, text; text where it is no YAML."""
    try:
        return parse_value(value)
    except UsageError:
        return value


def combine(variables: Sequence[Variable], how: Literal["grid", "zip"] = "grid") -> list[Point]:
    """The points: every combination (the last variable changes fastest), or with ``zip`` the first of each, and so on.

    Raises:
        UsageError: a key twice, or a zip of different lengths.
    """
    keys = [variable.key for variable in variables]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise UsageError(f"--vary {variables[index].written}: {key} is varied twice")
    lists = [variable.values for variable in variables]
    if how == "zip" and len({len(values) for values in lists}) > 1:
        counts = ", ".join(f"{variable.written} has {len(variable.values)}" for variable in variables)
        raise UsageError(f"--zip takes the values side by side and needs as many of each: {counts}")
    rows = zip(*lists, strict=True) if how == "zip" else product(*lists)
    return [dict(zip(keys, row, strict=True)) for row in rows]


def overrides_of(point: Point) -> tuple[str, ...]:
    """A point as overrides for `load_scenario`."""
    return tuple(f"{key}={value}" for key, value in point.items())


def labels_of(point: Point, variables: Iterable[Variable] = ()) -> dict[str, str | int | float]:
    """A point as labels of a cell: keys as the user wrote them, numbers as numbers."""
    written = {variable.key: variable.written for variable in variables}
    return {written.get(key, key): _label(value) for key, value in point.items()}


def _label(value: str) -> str | int | float:
    plain = plain_value(value)
    return plain if isinstance(plain, int | float) and not isinstance(plain, bool) else value


def implied_endpoint(keys: Iterable[str]) -> str | None:
    """The server that canonical keys are about: "vllm", "sim", or None where they fit any.

    Raises:
        UsageError: keys of both.
    """
    found = {name: key for key in keys for name, steps in LOCAL.items() if tuple(key.split(".")[:2]) == steps}
    if len(found) > 1:
        raise UsageError(f"{found['vllm']} is vLLM's and {found['sim']} the simulated engine's: one run has only one")
    return next(iter(found), None)


def resolve_endpoint(keys: Iterable[str], given: str | None) -> str:
    """The endpoint of an experiment: as given, else what its keys imply, else "vllm".

    Raises:
        UsageError: the keys are settings of another server than the one that is given.
    """
    keys = tuple(keys)
    implied = implied_endpoint(keys)
    if given is None or implied is None or given == implied:
        return given or implied or "vllm"
    setting = next(key for key in keys if tuple(key.split(".")[:2]) == LOCAL[implied])
    whose = "the simulated engine" if implied == "sim" else "a vLLM that servebench starts"
    raise UsageError(f"{setting} is a setting of {whose}, which --endpoint {given} is not; leave --endpoint out")


def load_each(
    scenario: str | Path, overrides: Sequence[str], changes: Sequence[Sequence[str]], distinct: bool = True
) -> list[Scenario]:
    """Load the scenario once for each set of changes, so that a bad one is known before the first run.

    Args:
        scenario: a file, or the name of a shipped one.
        overrides: that all have in common.
        changes: overrides of each.
        distinct: refuse two sets that make the same scenario.

    Raises:
        UsageError: the scenario's own line for the first set that fails, or two that are the same.
    """
    loaded: list[Scenario] = []
    for change in changes:
        found = _loaded(scenario, overrides, change)
        if distinct and found in loaded:
            same = changes[loaded.index(found)]
            raise UsageError(f"{' '.join(change)} and {' '.join(same)} make the same scenario: one of them is enough")
        loaded.append(found)
    return loaded


def _loaded(scenario: str | Path, overrides: Sequence[str], change: Sequence[str]) -> Scenario:
    """Load it with errors that do not blame ``--set`` for what another option says."""
    try:
        return load_scenario(scenario, [*overrides, *change])
    except UsageError as error:
        message = str(error)
        for override in change:
            message = message.replace(f"--set {override}:", f"{override}:")
        raise UsageError(message) from None


def launch_overrides(scenario: str | Path, overrides: Sequence[str], keys: Iterable[str]) -> tuple[str, ...]:
    """What a scenario without an ``engine.vllm`` needs before one of its flags can be set: the model of a plain run."""
    about_vllm = any(key.startswith("engine.vllm.") for key in keys)
    if not about_vllm or load_scenario(scenario, overrides).engine.vllm is not None:
        return ()
    return ("engine.vllm.model=tiny-random",)
