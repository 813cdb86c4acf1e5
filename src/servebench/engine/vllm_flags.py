"""vLLM's flags: from a scenario's mapping to arguments, from arguments to a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from servebench.errors import UsageError

Scalar = str | int | float | bool | None

# What servebench decides: where the server listens, and that nothing stands between it and the client on loopback.
RESERVED = ("host", "port", "uds", "model", "served-model-name", "api-key", "root-path", "ssl-keyfile", "ssl-certfile")


def flag_arguments(flags: Mapping[str, Scalar]) -> list[str]:
    """Return the arguments for `flags`: true is the bare flag, false its ``no-`` form, None leaves it out.

    Raises:
        UsageError: a flag that servebench sets itself.
    """
    arguments: list[str] = []
    for name, value in flags.items():
        if name in RESERVED:
            raise UsageError(f'engine.vllm.flags: "{name}" is set by servebench itself')
        arguments += _one_flag(name, value)
    return arguments


def _one_flag(name: str, value: Scalar) -> list[str]:
    if value is None:
        return []
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    return [f"--{name}={value}"]  # one word, for a value may begin with a dash


def parse_flags(arguments: Sequence[str]) -> dict[str, Scalar]:
    """Read flags as they are written on a command line: ``--name value``, ``--name=value`` or ``--name``.

    Raises:
        UsageError: a word that is neither a long flag nor the value of one.
    """
    flags: dict[str, Scalar] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not re.match(r"--[A-Za-z]", word):
            raise UsageError(f'"{word}": expected a vLLM flag in its long form, such as --max-num-seqs 64')
        name, has_value, value = word.removeprefix("--").partition("=")
        if has_value:
            flags[name] = value
        elif words and not re.match(r"-+[A-Za-z]", words[0]):
            flags[name] = words.pop(0)
        else:
            flags[name] = True
    return flags
