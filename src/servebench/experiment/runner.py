"""The runner of real cells: a scenario with a cell's changes, run to a run directory with its report."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.errors import EngineError
from servebench.experiment.cell import Cell

if TYPE_CHECKING:
    from servebench.record.rundir import RunDir
    from servebench.run import Observer, RunOptions
    from servebench.scenario.load import Load
    from servebench.scenario.schema import Scenario

PREPARE_LIMIT_S = 600.0
START_S = {"vllm": 60.0, "sim": 2.0}  # what a start usually takes; of a server that runs already, little
ASK_S = 1.5


class ScenarioRunner:
    """Runs cells of one scenario; see `campaign.CellRunner`.

    Args:
        scenario: a file, or the name of a shipped one; read once, here.
        overrides: of the scenario, for all cells.
        options: of the runs; a cell may replace endpoint, model and, always, the directory.
        write: makes the reports of a finished run and returns its summary (`servebench.report.write_reports`).
        observer: is told how far each run is.

    Raises:
        UsageError: there is no such scenario.
    """

    def __init__(
        self,
        scenario: str | Path,
        overrides: Sequence[str],
        options: RunOptions,
        write: Callable[[RunDir], dict[str, Any]],
        observer: Observer | None = None,
    ) -> None:
        from servebench.scenario.document import read_document
        from servebench.scenario.loading import resolve_scenario

        self._file = resolve_scenario(scenario)
        self._document = read_document(self._file)  # who edits the file while cells run means the next experiment
        self._overrides = tuple(overrides)
        self._options = options
        self._write = write
        self._observer = observer

    def scenario_of(self, cell: Cell) -> Scenario:
        """The scenario of a cell; raises UsageError when the cell's changes make none."""
        from servebench.scenario.loading import make_scenario

        seed = () if cell.seed is None else (f"seed={cell.seed}",)
        return make_scenario(deepcopy(self._document), (*self._overrides, *cell.overrides, *seed), self._file.parent)

    def options_of(self, cell: Cell, path: Path) -> RunOptions:
        """The options of a cell's run."""
        options = replace(self._options, out=path)
        if cell.endpoint is not None:
            options = replace(options, endpoint=cell.endpoint)
        return options if cell.model is None else replace(options, model=cell.model)

    def expected_s(self, cell: Cell) -> float | None:
        """How long a cell will take; None when its load has no length that is known. Raises UsageError as above."""
        return expected_seconds(self.scenario_of(cell), cell.endpoint or self._options.endpoint)

    def with_expected(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells with the time that each will take; raises UsageError for the first that makes no scenario."""
        return [cell if cell.expected_s else replace(cell, expected_s=self.expected_s(cell)) for cell in cells]

    def __call__(self, cell: Cell, path: Path) -> dict[str, Any]:
        """Run the cell in `path`.

        Raises:
            ServebenchError: the hook command failed, the server could not be had, or the cell makes no scenario.
            KeyboardInterrupt: the run was interrupted; what it recorded lies in `path`.
        """
        from servebench.run import run

        scenario = self.scenario_of(cell)
        if cell.prepare is not None:
            prepare(cell.prepare, {"SERVEBENCH_CELL": cell.name, **cell.environ})
        rundir = run(scenario, self.options_of(cell, path), self._observer)
        if rundir.manifest["status"] == "interrupted":
            raise KeyboardInterrupt
        return self._write(rundir)

    def recover(self, path: Path) -> dict[str, Any] | None:
        """The summary of the run in `path`, computed again; None when it did not come to its end.

        Raises:
            UsageError: there is no run, or its tables are damaged.
        """
        from servebench.record.rundir import RunDir

        rundir = RunDir.open(path)
        return None if rundir.incomplete else self._write(rundir)


def expected_seconds(scenario: Scenario, endpoint: str) -> float | None:
    """Seconds that a run takes by its plan, with the start of the server; None for a closed loop of so many requests.

    The drain is left out: how long the last requests take is what the run is to find out.
    """
    length = _load_seconds(scenario.load)
    return None if length is None else scenario.load.warmup_s + length + START_S.get(endpoint, 0.0) + ASK_S


def _load_seconds(load: Load) -> float | None:
    if load.requests is None:
        return load.duration
    if load.closed is not None or len(load.stages) != 1 or load.stages[0].last_rate <= 0:
        return None
    return max(0.0, load.requests / load.stages[0].last_rate - load.warmup_s)


def prepare(command: str, variables: Mapping[str, str], limit_s: float = PREPARE_LIMIT_S) -> None:
    """Run a hook command in a shell and wait for its end; what it has left running in the background goes on.

    Raises:
        EngineError: it failed, with its exit code and the last line that it wrote to stderr, or it took too long.
    """
    with tempfile.TemporaryFile() as log:  # not a pipe: a server that it starts would hold that open
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise EngineError(f"the hook command did not end within {limit_s:g} s") from None
            raise
        log.seek(0)
        words = log.read().decode("utf-8", "replace").strip().splitlines()
    if status:
        raise EngineError(
            f"the hook command ended with exit code {status}: {words[-1] if words else 'it said nothing'}"
        )
