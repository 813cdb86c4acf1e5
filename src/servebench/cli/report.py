"""`servebench report`: every figure of a run computed again from its directory, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.options import json_option
from servebench.cli.output import print_json

if TYPE_CHECKING:
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
    """
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
