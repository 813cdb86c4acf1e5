"""The directory of an experiment: its question, its cells, and what is concluded from them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from servebench import __version__
from servebench.errors import UsageError
from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.portable import portable_command, portable_text, shown
from servebench.record.document import make_unused, read_document, replace_document

SCHEMA = 1
DOCUMENT = "experiment.json"
CELLS = "cells"
RESULTS = Path("results")
NEEDED = {"kind": str, "question": dict, "cells": list}

Document = dict[str, Any]


class ExperimentDir:
    """An experiment on the disk; `begin` one, or `open` one.

    Attributes:
        path: the directory.
        document: the content of experiment.json.
        secrets: what must not be written, wherever it turns up.
    """

    def __init__(self, path: Path, document: Document, secrets: Sequence[str] = ()) -> None:
        self.path = path
        self.document = document
        self.secrets = tuple(secrets)

    @classmethod
    def begin(
        cls,
        path: Path | None,
        kind: str,
        name: str,
        question: Mapping[str, Any],
        command: Sequence[str],
        secrets: Sequence[str] = (),
    ) -> ExperimentDir:
        """Start an experiment in `path`, or go on with the one there if it asks the same question.

        Args:
            path: the directory; None makes ``results/KIND-NAME-DATE-TIME``.
            kind: "sweep", "capacity", "ab", ...
            name: of the scenario.
            question: JSON-able: all that decides what the cells are and how they are judged.
            command: the command line, to repeat it.
            secrets: what must not be written (`record.redaction.secrets_of`).

        Raises:
            UsageError: another experiment, another question or a run lies there, or the directory cannot be written to.
        """
        asked = json.loads(json.dumps(shown(question, secrets), allow_nan=False))
        if path is not None and cls.is_one(path):
            found = cls.open(path)
            _check_same(found, kind, asked)
            found.secrets = tuple(secrets)
            return found
        if path is not None and (path / "run.json").exists():
            raise UsageError(f"{path} holds a run, not an experiment; choose another --out directory")
        if path is not None and (path / CELLS).exists():  # whose question nobody knows
            raise UsageError(
                f"{path} holds the runs of an experiment that has lost its {DOCUMENT}; choose another --out"
            )
        document = {
            "schema": SCHEMA,
            "kind": kind,
            "name": name,
            "servebench": __version__,
            "created_ns": time.time_ns(),
            "command": portable_command(command, secrets),
            "question": asked,
            "cells": [],
            "simulated": False,
            "result": None,
        }
        found = cls(_made(path, f"{kind}-{name}"), document, secrets)
        found.save()
        return found

    @classmethod
    def open(cls, path: Path | str) -> ExperimentDir:
        """Open an experiment, finished or not; raises UsageError when there is none, or it is damaged or newer."""
        path = Path(path)
        document = read_document(path / DOCUMENT, SCHEMA, "experiment")
        if missing := [key for key, kind in NEEDED.items() if not isinstance(document.get(key), kind)]:
            raise UsageError(f"{path / DOCUMENT} is damaged: {missing[0]} is not what it should be")
        return cls(path, document)

    @staticmethod
    def is_one(path: Path | str) -> bool:
        """Whether an experiment lies in `path`."""
        return (Path(path) / DOCUMENT).is_file()

    def cell_path(self, name: str) -> Path:
        """Where the run directory of the cell `name` lies, or will."""
        return self.path / CELLS / name

    def record(self, name: str) -> Document | None:
        """What experiment.json says of the cell `name`; None when it has not ended yet."""
        return next((record for record in self.document["cells"] if record["name"] == name), None)

    def note(self, record: Mapping[str, Any], simulated: bool = False) -> None:
        """Write down what became of a cell (`record_of`), in the place of what was known of it before.

        Raises:
            UsageError: the directory cannot be written to.
        """
        reason = record["reason"]
        told = None if reason is None else portable_text(reason, self.path, self.secrets)
        others = [known for known in self.document["cells"] if known["name"] != record["name"]]
        self.document["cells"] = [*others, {**record, "reason": told}]
        self.document["simulated"] |= simulated
        self.save()

    def outcome(self, record: Mapping[str, Any], cell: Cell | None = None) -> Outcome | None:
        """The stored outcome behind a record; None when it is said to be done and its summary is gone."""
        path = self.path / record["path"]
        summary, manifest = _read(path / "summary.json"), _read(path / "run.json")
        done = record["status"] == "done"
        if done and summary is None:
            return None
        return Outcome(
            cell=cell or Cell(record["name"], record["labels"]),
            status=record["status"],
            summary=summary if done else None,
            manifest=manifest if done else None,
            reason=record["reason"],
            seconds=record["seconds"],
            path=path,
        )

    def outcomes(self) -> list[Outcome]:
        """What became of all cells that have ended, in the order in which they did."""
        return [found for record in self.document["cells"] if (found := self.outcome(record)) is not None]

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write down the result; may be repeated. Raises UsageError when the directory cannot be written to."""
        self.document["result"] = shown(result, self.secrets)
        self.save()

    def save(self) -> None:
        """Replace experiment.json as a whole: after a crash at any instant the old or the new one is there.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            replace_document(self.path / DOCUMENT, self.document)
        except OSError as error:
            raise UsageError(f"the experiment in {self.path} cannot go on: {error.strerror}") from error


def record_of(outcome: Outcome) -> Document:
    """What experiment.json says of a cell that has ended."""
    return {
        "name": outcome.cell.name,
        "labels": dict(outcome.cell.labels),
        "status": outcome.status,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 3),
        "verdict": outcome.verdict,
        "path": f"{CELLS}/{outcome.cell.name}",
    }


def _read(path: Path) -> Document | None:
    """A JSON document; None when there is none, or no whole one."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _made(path: Path | None, stem: str) -> Path:
    """Make the experiment's directory."""
    try:
        if path is None:
            return make_unused(RESULTS, f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the directory {path or RESULTS}: {error.strerror}") from error
    return path


def _check_same(found: ExperimentDir, kind: str, asked: Document) -> None:
    """Raise UsageError with the first thing that an experiment asks differently."""
    there = found.document
    if there["kind"] != kind:
        raise UsageError(
            f"{found.path} holds an experiment of the kind {there['kind']}, not {kind}; choose another --out"
        )
    for key, old, new in _changes(there["question"], asked, ""):
        raise UsageError(
            f"{found.path} holds an experiment with another question: {key} is {_brief(old)} there and "
            f"{_brief(new)} now; choose another --out"
        )


def _changes(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The dotted keys at which two documents differ, with both values; None for what one of them lacks."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _changes(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _changes(*pair, f"{path}.{index}")
    elif old != new:
        yield path, old, new


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
