"""What the commands of all experiments share: their options, the campaign, and what is printed while it runs."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from servebench.cli.options import (
    Command,
    connection_options,
    json_option,
    quiet_option,
    set_option,
    telemetry_options,
    tokenizer_option,
    workers_option,
)
from servebench.errors import UsageError

if TYPE_CHECKING:
    from servebench.experiment.campaign import Campaign
    from servebench.experiment.cell import Cell
    from servebench.run import RunOptions


def experiment_options(function: Command) -> Command:
    """What every experiment takes besides its own options.

    Passed as `scenario`, `overrides`, `out`, `as_json`, `quiet`, `dry_run`, `retry_failed`, and the fields of
    RunOptions that the command line sets: ``RunOptions(**options)``.
    """
    shared = (
        click.argument("scenario"),
        set_option,
        connection_options,
        workers_option,
        tokenizer_option,
        telemetry_options,
        _out_option,
        json_option,
        quiet_option,
        click.option("--dry-run", is_flag=True, help="Only print the runs and the time that they need."),
        click.option("--retry-failed", is_flag=True, help="Going on with an experiment, run what failed once more."),
    )
    for option in reversed(shared):
        function = option(function)
    return function


def given_endpoint(context: click.Context) -> str | None:
    """The endpoint that the user has named; None where it is only the option's default."""
    default = context.get_parameter_source("endpoint") is ParameterSource.DEFAULT
    return None if default else str(context.params["endpoint"])


def _out_option(function: Command) -> Command:
    return click.option(
        "--out",
        "-o",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="The experiment's directory; the same experiment in it is continued. "
        "Default: results/KIND-NAME-DATE-TIME.",
    )(function)


def campaign(
    kind: str,
    name: str,
    question: Mapping[str, Any],
    scenario: str,
    overrides: Sequence[str],
    out: Path | None,
    quiet: bool,
    retry_failed: bool,
    options: RunOptions,
    figure: str | None = None,
) -> Campaign:
    """The campaign of a command, with a line a run on stderr; says where it lies and how to go on after a break.

    Args:
        kind, name, question: see `ExperimentDir.begin`.
        scenario, overrides, options: of the runs; see `ScenarioRunner`.
        out, quiet, retry_failed: of the command line.
        figure: a figure whose value is printed after each run, as a rule the primary one.

    Raises:
        UsageError: another experiment lies in `out`, another process works in it, or it cannot be written to.
    """
    from servebench.cli.progress import Progress
    from servebench.experiment.campaign import Campaign
    from servebench.experiment.directory import ExperimentDir
    from servebench.experiment.runner import ScenarioRunner
    from servebench.report import write_reports

    secrets = _secrets(scenario, overrides, question, options)
    directory = ExperimentDir.begin(out, kind, name, question, ["servebench", *sys.argv[1:]], secrets)
    occupy(directory.path)
    view = None if quiet else Progress(directory.path, figure)
    runner = ScenarioRunner(scenario, overrides, options, write_reports, None if view is None else view.observer)
    return Campaign(directory, runner, view, retry_failed, runner.recover)


def _secrets(
    scenario: str, overrides: Sequence[str], question: Mapping[str, Any], options: RunOptions
) -> tuple[str, ...]:
    """What must not be written of any run, the longest first: those of every arm, where the question has arms."""
    from servebench.record.redaction import secrets_of
    from servebench.scenario.loading import load_scenario

    named = (options.api_key_env, options.telemetry_token_env)
    found: set[str] = set()
    arms: Sequence[Mapping[str, Any]] = question.get("arms") or [{"overrides": (), "environ": {}}]
    for arm in arms:
        loaded = load_scenario(scenario, [*overrides, *arm["overrides"]])
        found.update(secrets_of(loaded.resolved(), {**os.environ, **arm["environ"]}, named))
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def occupy(path: Path) -> None:
    """Keep other processes out of the directory until the command ends, however it ends.

    Raises:
        UsageError: another process works in it.
    """
    handle = os.open(path, os.O_RDONLY)
    click.get_current_context().call_on_close(lambda: os.close(handle))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another servebench is working in {path}") from None
    except OSError:
        return  # a file system without locks


def dry_run(cells: Sequence[Cell], as_json: bool = False) -> None:
    """Print the cells and the time that they need, to stdout."""
    if as_json:
        from servebench.cli.output import print_json

        print_json({"cells": [_planned(cell) for cell in cells], "expected_s": total_seconds(cells)})
        return
    from rich.console import Console
    from rich.table import Table

    from servebench.cli.progress import time_text

    names = list(dict.fromkeys(name for cell in cells for name in cell.labels))
    table = Table("run", *names, "about", box=None, pad_edge=False)
    for cell in cells:
        table.add_row(cell.name, *(str(cell.labels.get(name, "")) for name in names), time_text(cell.expected_s))
    console = Console(highlight=False, markup=False)
    console.print(table)
    unknown = sum(cell.expected_s is None for cell in cells)
    least = "at least " if unknown else "about "
    known = total_seconds([cell for cell in cells if cell.expected_s is not None])
    console.print(f"{len(cells)} runs, {least}{time_text(known)}; nothing was run")


def _planned(cell: Cell) -> dict[str, Any]:
    return {"name": cell.name, "labels": dict(cell.labels), "expected_s": cell.expected_s}


def total_seconds(cells: Sequence[Cell]) -> float | None:
    """Seconds that all cells need; None when it is not known of one."""
    known = [cell.expected_s for cell in cells if cell.expected_s is not None]
    return sum(known) if len(known) == len(cells) else None
