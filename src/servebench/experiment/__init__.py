"""Several runs with a question: a directory of run directories, and what is concluded from it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from servebench.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from servebench.experiment.directory import ExperimentDir

__all__ = ["judge"]

JUDGES = {"sweep": "sweep", "capacity": "capacity", "ab": "ab"}  # the module of each kind


def judge(directory: ExperimentDir) -> dict[str, Any]:
    """Compute the result of an experiment from its stored cells alone; JSON-able, and the same each time.

    Raises:
        UsageError: this version of servebench does not know the kind of experiment.
    """
    kind = str(directory.document.get("kind"))
    if kind not in JUDGES:
        raise UsageError(f'{directory.path} is an experiment of the unknown kind "{kind}"{did_you_mean(kind, JUDGES)}')
    module = importlib.import_module(f"servebench.experiment.{JUDGES[kind]}")
    result: dict[str, Any] = module.judge(directory)
    return result
