"""`servebench report`: every figure of a run computed again from its directory, offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.options import json_option
from servebench.cli.output import print_json, print_warning
from servebench.errors import UsageError

if TYPE_CHECKING:
    from servebench.experiment.directory import ExperimentDir
    from servebench.record.rundir import RunDir

TOOLS = ("vllm", "aiperf", "guidellm", "llmperf")


@click.command()
@click.argument("rundir", type=click.Path(path_type=Path))
@json_option
@click.option(
    "--definitions",
    type=click.Choice(TOOLS),
    metavar="|".join(TOOLS),
    help="Show the run under another tool's formulas, to reconcile its figures with these.",
)
def command(rundir: Path, as_json: bool, definitions: str | None) -> int:
    """Compute the report of RUNDIR again, offline, and write its summary.json anew.

    RUNDIR is a run directory, finished or not; of a run that was cut short, what was recorded is reported, marked
    incomplete. Exits with 3 when the result is INVALID and with 4 when an objective of the scenario was missed.

    It may be the directory of an experiment, too: what is concluded from its runs is computed again. While another
    servebench works in it, that is only shown and nothing is written.
    """
    from servebench.experiment.directory import ExperimentDir

    if ExperimentDir.is_one(rundir):
        if definitions is not None:
            raise UsageError(f"--definitions is about one run: give a folder below {rundir / 'cells'}")
        return report_experiment(ExperimentDir.open(rundir), as_json, keep=_is_free(rundir))
    return _report_run(rundir, as_json, definitions)


def report_experiment(directory: ExperimentDir, as_json: bool, keep: bool = True) -> int:
    """Judge an experiment by its stored runs, show the result, and return the exit code that it says.

    Args:
        directory: with whatever has been run of it.
        as_json: whether it is shown as JSON.
        keep: whether the result is saved as well.
    """
    from servebench.experiment import judge
    from servebench.report.experiments import print_experiment, write_files

    result = judge(directory)
    if keep:
        directory.finish(result)
        write_files(directory.document, directory.path)
    else:
        directory.document["result"] = result
    if as_json:
        print_json({"path": str(directory.path), "experiment": directory.document})
    else:
        print_experiment(directory.document, directory.path)
    return exit_code_of(result)


def _is_free(path: Path) -> bool:
    """Whether no other process runs the experiment; if so, none can begin to before this command has ended."""
    from servebench.cli.campaigns import occupy

    try:
        occupy(path)
    except UsageError as error:
        print_warning(f"{error}: nothing is written, this is how it stands now")
        return False
    return True


def exit_code_of(result: Mapping[str, Any]) -> int:
    """The exit code that an experiment's result, or the verdict in it, says; 0 where neither does."""
    verdict = result.get("verdict")
    said = verdict.get("exit_code", 0) if isinstance(verdict, Mapping) else 0
    return int(result.get("exit_code", said))


def _report_run(rundir: Path, as_json: bool, definitions: str | None) -> int:
    from servebench.analysis import exit_code
    from servebench.record.rundir import RunDir
    from servebench.report import write_reports

    run = RunDir.open(rundir)
    summary = write_reports(run)
    document: dict[str, Any] = {"path": str(rundir), "summary": summary}
    if definitions is not None:
        document["definitions"] = _under(run, definitions)
    if as_json:
        print_json(document)
    else:
        from servebench.report.console import print_report

        print_report(summary, rundir, document.get("definitions"))
    return exit_code(summary)


def _under(run: RunDir, tool: str) -> dict[str, Any]:
    from servebench.analysis.definitions import under
    from servebench.report.summary_io import read

    return under(read(run), tool)
