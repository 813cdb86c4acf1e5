"""`servebench export`: a run in another tool's format."""

from __future__ import annotations

from pathlib import Path

import click

from servebench.cli.output import one_line, print_error
from servebench.errors import UsageError
from servebench.report.exports import OURS

FORMATS = "\b\nFormats:\n" + "\n".join(f"  {name:<11} {text}" for name, text in OURS.items())


@click.command("export", epilog=FORMATS)
@click.argument("rundir", type=click.Path(path_type=Path))
@click.option("--to", "name", required=True, metavar="FORMAT", help="One of the formats below, or an installed one.")
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The file or folder to write. Default: ./NAME.FORMAT, NAME being that of the run directory.",
)
@click.option("--force", "-f", is_flag=True, help="Replace what is there; other files of a folder are left alone.")
def command(rundir: Path, name: str, out: Path | None, force: bool) -> None:
    """Write the run in RUNDIR in another format, offline, and print the paths of what was written.

    RUNDIR is a run directory, finished or not, and stays as it is. That figures are SIMULATED or come from RANDOM
    WEIGHTS, and the verdict, stand in every export.
    """
    from servebench.experiment.directory import ExperimentDir
    from servebench.report.exports.place import export

    if ExperimentDir.is_one(rundir):
        raise UsageError(f"an export is of one run: give a folder below {rundir / 'cells'}")
    done = export(rundir, name, out, force)
    if done.summary["incomplete"]:
        _note(f"{rundir} did not come to its end: what was recorded of it is exported")
    if done.summary["verdict"]["status"] == "INVALID":
        _note(f"the figures of {rundir} are INVALID: see servebench report")
    for file in done.files:
        click.echo(file)


def _note(text: str) -> None:
    print_error(one_line(text), kind="note")
