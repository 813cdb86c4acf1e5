"""The arms that an experiment compares: ``--arm "NAME: KEY=VALUE ..."``, or one for each value of a variable."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from servebench.errors import UsageError
from servebench.experiment.variables import Point, Variable, canonical_key, overrides_of, plain_value
from servebench.record.redaction import WITHHELD
from servebench.units import shorten

FORM = "\"NAME: KEY=VALUE KEY='a b' endpoint=URL model=NAME\""
TOLD = "SERVEBENCH_ARM_"  # how variables begin that a hook is told
HOOK = "hook."  # keys of the hook alone: they reach its environment and no scenario
LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the things compared.

    Attributes:
        name: lower case, fit for a folder's name: ``base``, ``2048``.
        overrides: of the scenario, ``key=value``.
        endpoint: its own base URL, "vllm" or "sim"; None takes the experiment's.
        model: its own model; None takes the experiment's.
        environ: for the hook that reconfigures a running server: SERVEBENCH_ARM is the name, and each setting is
            SERVEBENCH_ARM_<KEY>, the key in capitals with _ for all else: SERVEBENCH_ARM_VLLM_MAX_NUM_SEQS.
        written: as the user wrote it.
    """

    name: str
    overrides: tuple[str, ...] = ()
    endpoint: str | None = None
    model: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    written: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The canonical keys that it sets."""
        return tuple(override.partition("=")[0] for override in self.overrides)


def parse_arm(text: str) -> Arm:
    """Read ``NAME: KEY=VALUE KEY='a b' endpoint=URL model=NAME``; words are split as a shell does.

    ``hook.KEY=VALUE`` is told to the hook command only. An arm without settings is the scenario as it is.

    Raises:
        UsageError: not of that form, or a key twice.
    """
    name, colon, right = text.partition(":")
    if not colon or "=" in name:
        raise UsageError(f"--arm {text}: expected {FORM}")
    settings = _settings(right, text)
    endpoint, model = settings.pop("endpoint", None), settings.pop("model", None)
    return _arm(_checked_name(name.strip(), text), settings, endpoint and _url(endpoint, text), model, text)


def arms_of_variable(variable: Variable) -> list[Arm]:
    """One arm for each value, the first one being the base, named after the values: ``512``, ``2048``."""
    names: list[str] = []
    for value in variable.values:
        name = _name_of(value)
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return [
        _arm(name, {variable.written: value}, None, None, f"{variable.written}={value}")
        for name, value in zip(names, variable.values, strict=True)
    ]


def check_arms(arms: Sequence[Arm]) -> None:
    """Raise UsageError unless there are two arms or more, of different names and different settings."""
    if len(arms) < 2:
        raise UsageError("a comparison takes two arms at least: --arm NAME: ... --arm NAME: ..., or --vary KEY=V1,V2")
    for index, arm in enumerate(arms):
        for other in arms[:index]:
            if arm.name == other.name:
                raise UsageError(f"two arms are named {arm.name!r}")
            if _substance(arm) == _substance(other) and WITHHELD not in str(_substance(arm)):  # as they were stored
                raise UsageError(
                    f"the arms {other.name!r} and {arm.name!r} are the same; for the noise floor take --aa"
                )


def _substance(arm: Arm) -> tuple[object, ...]:
    told = {key: value for key, value in arm.environ.items() if key != "SERVEBENCH_ARM"}
    return (frozenset(arm.overrides), arm.endpoint, arm.model, frozenset(told.items()))


def _arm(name: str, settings: Mapping[str, str], endpoint: str | None, model: str | None, written: str) -> Arm:
    own = {key: value for key, value in settings.items() if not key.startswith(HOOK)}
    point: Point = {canonical_key(key, written): value for key, value in own.items()}
    if len(point) < len(own):
        raise UsageError(f"--arm {written}: two of its keys are one and the same")
    return Arm(name, overrides_of(point), endpoint, model, _environ(name, settings), written)


def _environ(name: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {"SERVEBENCH_ARM": name} | {
        f"{TOLD}{_variable(key.removeprefix(HOOK))}": str(_unquoted(value)) for key, value in settings.items()
    }


def told_as(key: str) -> tuple[str, ...]:
    """The variables in which a hook may be told an override, after the ways in which its key can be written."""
    short = key.removeprefix("engine.")
    return tuple(TOLD + _variable(written) for written in (key, short, short.replace("vllm.flags.", "vllm.", 1)))


def _unquoted(value: str) -> str:
    """Text without the quotes that YAML wants; everything else as it is written (``true`` stays ``true``)."""
    plain = plain_value(value)
    return plain if isinstance(plain, str) else value


def _variable(key: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", key.upper()).strip("_")


def _settings(right: str, text: str) -> dict[str, str]:
    try:
        words = shlex.split(right)
    except ValueError as error:
        raise UsageError(f"--arm {text}: {str(error).lower()}") from None
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--arm {text}: {word!r} is no KEY=VALUE: expected {FORM}")
        if key in settings:
            raise UsageError(f"--arm {text}: {key} is given twice")
        if key in ("endpoint", "model") and not value:
            raise UsageError(f"--arm {text}: {key} is empty")
        settings[key] = value
    return settings


def _url(endpoint: str, text: str) -> str:
    from servebench.engine.attach import base_url

    if endpoint in ("vllm", "sim"):
        return endpoint
    try:
        return base_url(endpoint)
    except UsageError as error:
        raise UsageError(f"--arm {text}: {error}") from None


def _checked_name(name: str, text: str) -> str:
    folded = name.lower()
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", folded) or len(folded) > LONGEST_NAME:
        raise UsageError(
            f"--arm {text}: {shorten(name)!r} is no name: up to {LONGEST_NAME} letters, digits, '-', '_' and '.'"
        )
    return folded


def _name_of(value: str) -> str:
    """A value as a name: ``p95 < 800ms`` becomes ``p95-800ms``."""
    return re.sub(r"[^a-z0-9._]+", "-", _unquoted(value).lower())[:LONGEST_NAME].strip("-._") or "empty"


def keys_of(arms: Iterable[Arm]) -> tuple[str, ...]:
    """The canonical keys that any of the arms sets, each once, in their order."""
    return tuple(dict.fromkeys(key for arm in arms for key in arm.keys))
