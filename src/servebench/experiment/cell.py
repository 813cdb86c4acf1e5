"""A cell: one run of an experiment, before it and after it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servebench.errors import UsageError

Label = str | int | float

_NAME = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,119}")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run that an experiment asks for.

    Attributes:
        name: its folder below ``cells/``: lower-case letters, digits, ``.``, ``_`` and ``-``.
        labels: what tells it from the others, for tables.
        overrides: of the scenario, ``a.b=c``, after those of the whole experiment.
        endpoint: a base URL, "vllm" or "sim"; None takes the experiment's.
        model: None takes the experiment's.
        seed: of arrivals, lengths and content; None leaves the scenario's.
        prepare: shell command that is run before the cell, such as one that reconfigures a server.
        environ: additional variables for `prepare`.
        expected_s: how long it will take; None when nobody knows.

    Raises:
        UsageError: the name cannot be that of a folder.
    """

    name: str
    labels: Mapping[str, Label] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    endpoint: str | None = None
    model: str | None = None
    seed: int | None = None
    prepare: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    expected_s: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f'"{self.name}" cannot be the name of a cell: use lower-case letters, digits, ".", "_" and "-"'
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: of one that was read from an experiment's directory, the name and the labels.
        status: "done", whatever the verdict of its run, or "failed".
        summary: of the run (summary.json); None when it failed.
        manifest: of the run (run.json); None when it failed, or no real run was made.
        reason: why it failed.
        seconds: it took.
        path: its run directory.
    """

    cell: Cell
    status: str
    summary: dict[str, Any] | None
    manifest: dict[str, Any] | None
    reason: str | None
    seconds: float
    path: Path

    @property
    def verdict(self) -> str | None:
        """VALID, SUSPECT or INVALID; None for a cell that failed."""
        status = ((self.summary or {}).get("verdict") or {}).get("status")
        return str(status) if status is not None else None
