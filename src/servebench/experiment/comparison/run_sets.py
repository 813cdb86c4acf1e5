"""Sets of existing runs, as people name them: a run, a folder of runs, an arm of an experiment, or several of these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servebench.errors import UsageError, did_you_mean
from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.directory import ExperimentDir
from servebench.record.rundir import MANIFEST, RunDir

FORMS = "a run directory, a folder of run directories, EXPERIMENT:ARM, or several of these with commas between them"


@dataclass(frozen=True, slots=True)
class RunSet:
    """Runs that stand for one thing.

    Attributes:
        given: as the user wrote it.
        runs: those that were made, in the order in which they were.
        lost: cells of an arm that failed; they have a reason and no figures.
    """

    given: str
    runs: tuple[Outcome, ...]
    lost: tuple[Outcome, ...] = ()

    @property
    def short(self) -> str:
        """A name for tables: the arm, or the last folder."""
        return Path(self.given.rstrip("/")).name.rpartition(":")[2] or self.given


def load_runs(given: str) -> RunSet:
    """Find and read the runs that `given` names (see `FORMS`).

    A run whose summary.json is missing is analysed again.

    Raises:
        UsageError: there is no such thing, no run in it, or a run that cannot be read.
    """
    found = [outcome for part in _parts(given) for outcome in _of_part(part)]
    runs = [outcome for outcome in found if outcome.summary is not None]
    if not runs:
        raise UsageError(f"{given}: no run in it has ended")
    twice = {outcome.path.resolve() for outcome in runs}
    if len(twice) < len(runs):
        raise UsageError(f"{given}: a run is named twice")
    lost = [outcome for outcome in found if outcome.summary is None]
    return RunSet(given, tuple(sorted(runs, key=_made)), tuple(lost))


def _parts(given: str) -> list[str]:
    """Cut at commas, unless that is how a folder is called."""
    parts = [given] if Path(given).exists() else [part.strip() for part in given.split(",")]
    if not all(parts):
        raise UsageError(f'"{given}" names nothing between two commas; expected {FORMS}')
    return parts


def _made(outcome: Outcome) -> int:
    return int((outcome.manifest or {}).get("created_ns") or 0)


def _of_part(part: str) -> Iterator[Outcome]:
    path = Path(part)
    if not path.exists():
        yield from _of_arm(part)
    elif (path / MANIFEST).exists():
        yield read_run(path)
    elif ExperimentDir.is_one(path):
        arms = _arms(ExperimentDir.open(path))
        if not arms:
            raise UsageError(f"{part} is an experiment of which no run has ended")
        raise UsageError(
            f"{part} is an experiment; say which of its arms: {', '.join(f'{part}:{arm}' for arm in arms)}"
        )
    else:
        yield from _in_folder(path)


def _in_folder(path: Path) -> Iterator[Outcome]:
    folders = sorted(file.parent for file in path.glob(f"*/{MANIFEST}"))
    if not folders:
        raise UsageError(f"{path} holds no run directory; expected {FORMS}")
    for folder in folders:
        yield read_run(folder)


def _of_arm(part: str) -> Iterator[Outcome]:
    """The cells of an arm, or the one cell of that name."""
    place, colon, name = part.rpartition(":")
    if not colon or not Path(place).exists():
        raise UsageError(f"there is no {part}; expected {FORMS}")
    directory = ExperimentDir.open(place)
    records = directory.document["cells"]
    chosen = [record for record in records if name in (record["labels"].get("arm"), record["name"])]
    if not chosen:
        names = _arms(directory)
        raise UsageError(
            f"{place} has no arm {name}{did_you_mean(name, names)}; it has {', '.join(names) or 'none yet'}"
        )
    for record in chosen:
        yield directory.outcome(record) or read_run(directory.path / record["path"])


def _arms(directory: ExperimentDir) -> list[str]:
    """Names of the arms; of an experiment without arms, those of its cells."""
    cells = directory.document["cells"]
    return list(dict.fromkeys(str(cell["labels"].get("arm", cell["name"])) for cell in cells))


def read_run(path: Path) -> Outcome:
    """A run directory as an outcome; raises UsageError when it cannot be read."""
    run = RunDir.open(path)
    return Outcome(Cell(_name(path)), "done", _summary(run), run.manifest, None, 0.0, path)


def _summary(run: RunDir) -> dict[str, Any]:
    try:
        found = json.loads(run.summary_path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return _analysed(run)
    except OSError as error:
        raise UsageError(f"cannot read {run.summary_path}: {error.strerror}") from error
    return found if isinstance(found, dict) else _analysed(run)


def _analysed(run: RunDir) -> dict[str, Any]:
    from servebench.analysis.summary import summarize

    try:
        return summarize(run)
    except ValueError as error:
        raise UsageError(f"{run.path} cannot be analysed: {error}") from error


def _name(path: Path) -> str:
    """A folder's name as that of a cell, which is lower case and has few signs."""
    return re.sub(r"[^a-z0-9._-]", "-", path.resolve().name.lower())[-100:].lstrip(".") or "run"
