"""What experiment.json may hold: no secrets, and in command lines and messages no paths of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servebench.record.redaction import WITHHELD, clean, command, headers, names_secret, variables, without

_ASSIGNED = re.compile(r"(--?[A-Za-z][\w-]*=)(/.*)", re.DOTALL)


def shown(value: Any, secrets: Sequence[str] = (), name: str = "") -> Any:
    """What may be stored of a question or a result; showing it again changes nothing.

    A mapping named ``scenario`` is held to the rules of run.json's, and one named ``environ``, which tells a hook the
    settings of an arm, to those of the settings. Texts elsewhere are treated like arguments of a
    command line: a setting that names a secret (``endpoint.headers.x=...``), what looks like one, and credentials in
    addresses are taken out. Other names say nothing: ``j_per_output_token`` is a figure.

    Args:
        value: plain JSON-able data.
        secrets: values to be taken out wherever they occur.
        name: under which key it lies.
    """
    if isinstance(value, Mapping):
        inner = clean({"scenario": value})["scenario"] if name == "scenario" else value
        told = {key: _told(key, item) for key, item in inner.items()} if name == "environ" else inner
        return {key: shown(item, secrets, str(key)) for key, item in told.items()}
    if isinstance(value, (list, tuple)):
        return [shown(item, secrets, name) for item in value]
    if not isinstance(value, str) or not value:
        return value
    return without(command([value])[0], secrets)


def _told(name: str, value: str) -> str:
    """A variable that tells a hook of a setting: ``SERVEBENCH_ARM_ENDPOINT_HEADERS_X_TENANT`` is a header's value."""
    _, _, header = name.partition("_HEADERS_")
    _, _, variable = name.partition("_ENV_")
    if header:
        return headers({header.replace("_", "-"): value}).popitem()[1]
    if variable:
        return variables({variable: value})[variable]
    return WITHHELD if names_secret(name) else value


def portable_command(arguments: Sequence[str], secrets: Sequence[str] = ()) -> list[str]:
    """A command line without secrets; absolute paths become relative to the working directory, or their last part."""
    return [without(_relative(argument), secrets) for argument in command(arguments)]


def _relative(argument: str) -> str:
    assigned = _ASSIGNED.fullmatch(argument)
    before, text = (assigned[1], assigned[2]) if assigned else ("", argument)
    if not text.startswith("/"):
        return argument
    path, here = Path(text), Path.cwd()
    return before + (str(path.relative_to(here)) if path.is_relative_to(here) else path.name)


def portable_text(text: str, folder: Path, secrets: Sequence[str] = ()) -> str:
    """One line of a message, with paths relative to the experiment's `folder` and without secrets."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    places = {str(folder): "", str(folder.resolve()): "", str(Path.cwd()): "", home: "~/"}
    for place in sorted(places.keys() - {"/", ".", "~"}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w./-]){re.escape(place)}/", places[place], text)
    return without(" ".join(text.split()), secrets)
