"""`servebench gate`: are these runs worse than the baseline's? For CI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from servebench.cli.options import json_option
from servebench.errors import UsageError


@click.command("gate")
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--baseline",
    "-b",
    multiple=True,
    required=True,
    metavar="RUNS",
    help="Runs of the code that is good; a plain directory of run directories. May be repeated.",
)
@click.option(
    "--limit",
    "-l",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="Such as 'ttft.p99 < +5%' of the baseline, 'ttft.p99 < 800ms' or 'output_tokens_per_s > -3%'. May be "
    "repeated. Default: the scenario's objectives and central figures, against the baseline's own noise.",
)
@click.option("--strict", is_flag=True, help="Fail, too, when a given limit is broken within what chance does.")
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the checks as JUnit XML."
)
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a summary for a pull request.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    runs: tuple[str, ...],
    baseline: tuple[str, ...],
    limits: tuple[str, ...],
    strict: bool,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Judge RUNS (run directories, folders of them, or EXPERIMENT:ARM) against a baseline.

    A baseline is five or more runs of one scenario with one seed, better ten; three candidate runs do. The limits come
    from how far the baseline's own runs lie apart, so that equal code passes 999 of 1000 gates, whatever the noise. A
    given limit fails the gate when it is broken by more than chance explains.

    \b
    servebench gate results/new --baseline results/good --junit gate.xml --markdown gate.md
    servebench gate results/new -b results/good -l 'ttft.p99 < +5%' -l 'ttft.p99 < 800ms'

    Exit codes: 0 no regression, 2 wrong usage, 3 the runs are INVALID or cannot be compared, 4 a regression.
    """  # noqa: D301 - click's mark for lines that stay as they are
    from servebench.experiment.gate import Rules, judge_gate
    from servebench.experiment.gate.limits import parse_limit
    from servebench.experiment.gate.runs import load_all

    rules = Rules(tuple(parse_limit(text) for text in limits), strict=strict)
    found = judge_gate(load_all(runs), load_all(baseline), rules)
    _write(junit, markdown, found)
    _show(found, as_json)
    context.exit(found["exit_code"])


def _write(junit: Path | None, markdown: Path | None, found: dict[str, Any]) -> None:
    from servebench.report import gate as text
    from servebench.report import junit as xml

    for path, content in ((junit, xml.junit), (markdown, text.markdown)):
        if path is not None:
            try:
                path.write_text(content(found), encoding="utf-8")
            except OSError as error:
                raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        from servebench.cli.output import print_json

        print_json(found)
        return
    from servebench.report.gate import print_gate

    print_gate(found)
