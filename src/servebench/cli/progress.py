"""How an experiment goes, on stderr: a line for each run that has ended, and what the present one is doing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.experiment.campaign import Watcher
from servebench.experiment.figures import figure, value_of
from servebench.report.figures import NOTHING, number, plural
from servebench.run import Observer

if TYPE_CHECKING:
    from servebench.experiment.cell import Cell, Outcome

CLEAR_LINE = "\r\x1b[K"
STATUS_WIDTH = 78


class Progress(Watcher):
    """Prints what a campaign tells it.

    Args:
        path: the experiment's directory.
        figure_name: a figure whose value is printed for each run.

    Attributes:
        observer: shows what a run is doing on a line that is written over; only on a terminal.
    """

    def __init__(self, path: Path, figure_name: str | None = None) -> None:
        self.observer = _Status()
        self._figure = figure_name
        self._place = ""
        self._say(f"experiment in {path}; after an interruption the same command with --out {path} goes on")

    def planned(self, cells: Sequence[Cell], seconds: float | None) -> None:
        about = "" if seconds is None else f", about {time_text(seconds)}"
        self._say(f"{plural(len(cells), 'run')} to do{about}" if cells else "every run is there already")

    def found(self, outcome: Outcome) -> None:
        what = outcome.verdict or f"failed, which --retry-failed tries again: {outcome.reason}"
        self._say(f"{outcome.cell.name}: there already, {what}")

    def begins(self, cell: Cell, number: int, of: int | None, left_s: float | None) -> None:
        self._place = f"{number}/{of} {cell.name}" if of is not None else f"{number} {cell.name}"
        self.observer.begin(self._place, left_s)

    def ends(self, outcome: Outcome, left_s: float | None) -> None:
        if outcome.status == "failed":
            told = f"FAILED: {outcome.reason}"
        else:
            told = ", ".join(filter(None, (outcome.verdict, self._value(outcome))))
        left = f", {time_text(left_s)} left" if left_s else ""
        self._say(f"{self._place}: {told}, {time_text(outcome.seconds)}{left}")

    def _value(self, outcome: Outcome) -> str | None:
        if self._figure is None or outcome.summary is None:
            return None
        wanted, value = figure(self._figure), value_of(outcome.summary, self._figure)
        return f"{wanted.name} {NOTHING if value is None else f'{number(value)} {wanted.unit}'.strip()}"

    def _say(self, text: str) -> None:
        self.observer.clear()
        click.echo(" ".join(text.split()), err=True)


class _Status(Observer):
    """The line that is written over."""

    def __init__(self) -> None:
        self._shows = sys.stderr is not None and sys.stderr.isatty()
        self._prefix = ""

    def begin(self, place: str, left_s: float | None) -> None:
        """Another run begins."""
        left = "" if left_s is None else f" ({time_text(left_s)} left)"
        self._prefix = f"{place}{left}: "
        self.status("")

    def status(self, text: str) -> None:
        if self._shows:
            click.echo(CLEAR_LINE + f"{self._prefix}{text}"[:STATUS_WIDTH], err=True, nl=False)

    def load(self, scenario: Any, target: Any, counters: Any, rows: int) -> None:
        self.status(f"sending load to {target.model}")

    def clear(self) -> None:
        """Make room for a line that stays."""
        if self._shows:
            click.echo(CLEAR_LINE, err=True, nl=False)


def time_text(seconds: float | None) -> str:
    """``1 h 05 min``, ``2 min 10 s``, ``8 s``; a question mark for what nobody knows."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
