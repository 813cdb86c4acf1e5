"""A campaign: the cells of an experiment run one after the other, each once, whatever happens in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from servebench.errors import ServebenchError, UsageError
from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.directory import ExperimentDir, record_of
from servebench.record.place import is_disk_error

SUMMARY = "summary.json"


class CellRunner(Protocol):
    """Runs a cell in `path`, which does not exist yet, and returns the summary of the run.

    Raises ServebenchError when the cell fails, KeyboardInterrupt when the user does not want to go on.
    """

    def __call__(self, cell: Cell, path: Path) -> dict[str, Any]: ...


Recover = Callable[[Path], dict[str, Any] | None]


class Watcher:
    """Is told how a campaign goes; every method does nothing here."""

    def planned(self, cells: Sequence[Cell], seconds: float | None) -> None:
        """These cells come next, finished ones left out, and take so long; None when nobody knows."""

    def found(self, outcome: Outcome) -> None:
        """This cell had ended before."""

    def begins(self, cell: Cell, number: int, of: int | None, left_s: float | None) -> None:
        """The cell begins, the `number`-th `of` all (None when nobody knows), with so much time left, its own too."""

    def ends(self, outcome: Outcome, left_s: float | None) -> None:
        """The cell has ended, with so much time left for those after it; None as above."""


class Campaign:
    """A directory and how its cells are run.

    Args:
        directory: where finished cells lie.
        runner: runs one.
        watcher: is told.
        retry_failed: cells that failed in an earlier session are run once more.
        recover: makes the summary of a run that had ended well when its session was killed before saying so; None for
            a directory that holds no whole run.
    """

    def __init__(
        self,
        directory: ExperimentDir,
        runner: CellRunner,
        watcher: Watcher | None = None,
        retry_failed: bool = False,
        recover: Recover | None = None,
    ) -> None:
        self.directory = directory
        self._runner = runner
        self._recover = recover
        self._watcher = watcher or Watcher()
        self._retry_failed = retry_failed
        self._planned: set[str] = set()
        self._pending: dict[str, Cell] = {}
        self._seen: set[str] = set()
        self._took: list[float] = []

    def run_all(self, cells: Sequence[Cell]) -> list[Outcome]:
        """Run cells in their order; see `run`."""
        self._planned = {cell.name for cell in cells}
        self._pending = {cell.name: cell for cell in cells if not self._is_finished(cell)}
        pending = list(self._pending.values())
        self._watcher.planned(pending, self._time_of(pending))
        return [self.run(cell) for cell in cells]

    def run(self, cell: Cell) -> Outcome:
        """Run a cell, unless it is finished: then what is stored of it is returned.

        A cell that fails is written down with its reason; what a killed session left of one is moved aside.

        Raises:
            UsageError: the experiment cannot go on, since its directory cannot be written to.
            KeyboardInterrupt: in a cell, which will be run again; what is finished is stored.
        """
        finished = self._stored(cell) or self._recovered(cell)
        self._seen.add(cell.name)
        if finished is not None:
            self._pending.pop(cell.name, None)
            self._watcher.found(finished)
            return finished
        of = self._of(cell)
        self._watcher.begins(cell, len(self._seen), of, self._left(of))
        outcome = self._attempt(cell)
        self._pending.pop(cell.name, None)
        if outcome.status == "done":
            self._took.append(outcome.seconds)
        self._note(outcome)
        self._watcher.ends(outcome, self._left(of))
        return outcome

    def _stored(self, cell: Cell) -> Outcome | None:
        """The stored outcome of a cell that is not to be run (again)."""
        record = self.directory.record(cell.name)
        return None if record is None or not self._is_finished(cell) else self.directory.outcome(record, cell)

    def _is_finished(self, cell: Cell) -> bool:
        record = self.directory.record(cell.name)
        if record is None:
            return False
        if record["status"] == "done":
            return (self.directory.cell_path(cell.name) / SUMMARY).exists()
        return not self._retry_failed or cell.name in self._seen

    def _recovered(self, cell: Cell) -> Outcome | None:
        """The outcome of a whole run of which experiment.json does not know yet; it is written down."""
        path = self.directory.cell_path(cell.name)
        if self._recover is None or self.directory.record(cell.name) is not None or not path.exists():
            return None
        try:
            summary = self._recover(path)
        except ServebenchError:
            return None  # it will be moved aside
        if summary is None:
            return None
        manifest = _manifest(path)
        assert manifest is not None, "a whole run says what it is"
        outcome = Outcome(cell, "done", summary, manifest, None, _seconds_of(manifest), path)
        self._note(outcome)
        return outcome

    def _note(self, outcome: Outcome) -> None:
        self.directory.note(record_of(outcome), bool((outcome.summary or {}).get("simulated")))

    def _attempt(self, cell: Cell) -> Outcome:
        path = self.directory.cell_path(cell.name)
        start = time.monotonic()
        try:
            _move_aside(path)
            summary = self._runner(cell, path)
            _keep(summary, path)
        except ServebenchError as error:
            if _is_the_disks(error):
                raise
            return Outcome(cell, "failed", None, None, str(error), time.monotonic() - start, path)
        seconds = time.monotonic() - start
        return Outcome(cell, "done", summary, _manifest(path), None, seconds, path)

    def _of(self, cell: Cell) -> int | None:
        """How many cells there are, where that is known: `run_all` said so."""
        return len(self._seen | self._planned) if cell.name in self._planned else None

    def _left(self, of: int | None) -> float | None:
        """Seconds that what is pending will take; None where nobody knows how many cells will come."""
        return None if of is None else self._time_of(list(self._pending.values()))

    def _time_of(self, cells: Sequence[Cell]) -> float | None:
        """By the mean of those that this session has run, else by what is expected; None when that is not known."""
        if self._took:
            return len(cells) * sum(self._took) / len(self._took)
        expected = [cell.expected_s for cell in cells if cell.expected_s is not None]
        return sum(expected) if len(expected) == len(cells) else None


def _move_aside(path: Path) -> None:
    """Rename what a session that ended in the middle left, to NAME.left-1 and so on."""
    if not path.exists():
        return
    free = next(aside for n in count(1) if not (aside := path.with_name(f"{path.name}.left-{n}")).exists())
    try:
        path.rename(free)
    except OSError as error:
        raise UsageError(f"the experiment cannot go on: {path}: {error.strerror}") from error


def _keep(summary: dict[str, Any], path: Path) -> None:
    """Store the summary of a runner that has not done so itself."""
    if (path / SUMMARY).exists():
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / SUMMARY).write_text(json.dumps(summary, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise UsageError(f"the experiment cannot go on: {path}: {error.strerror}") from error


def _manifest(path: Path) -> dict[str, Any] | None:
    file = path / "run.json"
    manifest: dict[str, Any] | None = json.loads(file.read_text("utf-8")) if file.exists() else None
    return manifest


def _seconds_of(manifest: dict[str, Any]) -> float:
    """How long a run took, by its own stamps."""
    return float(manifest["phases"]["end_ns"] - manifest["created_ns"]) / 1e9


def _is_the_disks(error: ServebenchError) -> bool:
    """Whether a cell failed because nothing can be written, so that all others would fail as well."""
    cause = error.__cause__
    return (
        isinstance(error, UsageError)
        and cause is not None
        and (is_disk_error(cause) or isinstance(cause, PermissionError))
    )
