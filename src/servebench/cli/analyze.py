"""`servebench analyze`: what a profiler's file from anywhere shows, joined to a run's requests on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.options import json_option
from servebench.cli.output import print_json
from servebench.errors import UsageError

if TYPE_CHECKING:
    from servebench.analysis.profile.files import Capture


@click.command("analyze")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--run",
    "rundir",
    type=click.Path(path_type=Path),
    metavar="RUNDIR",
    help="The run whose requests were in flight meanwhile: what was idle for want of requests is told, and what a "
    "faster kernel would do to TPOT. The file's clock must be known to be the run's. Nothing is written there.",
)
@click.option(
    "--window",
    metavar="START..END",
    help="Look only at this part, in time after the capture's beginning, such as 1s..3s. Default: all of it.",
)
@click.option(
    "--steps",
    "pattern",
    metavar="REGEX",
    help="Which annotations are engine steps, by their names; groups named context_requests, context_tokens and "
    "generation_requests tell prefill from decode. Default: the names of vLLM and SGLang.",
)
@click.option(
    "--flame-graph",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT.svg",
    help="Draw the stacks of perf.data, or of folded stacks, as a page for the browser.",
)
@json_option
def command(
    files: tuple[Path, ...],
    rundir: Path | None,
    window: str | None,
    pattern: str | None,
    flame_graph: Path | None,
    as_json: bool,
) -> None:
    """Say what a profiler's FILE shows: busy and idle time, engine steps, kernels, operators, and what to try next.

    FILE is an SQLite export or a report of nsys, a trace of the torch profiler (several: the ranks of one capture), a
    perf.data, folded stacks, an XSpace of XLA, or a folder that holds one of them. What it is shows in its content; its
    name does not matter. A run directory of `servebench profile`, or the folder of one of its windows, is shown with
    its own requests.

    \b
    servebench analyze capture.nsys-rep --window 2s..4s
    servebench analyze rank0.pt.trace.json.gz rank1.pt.trace.json.gz --run results/chat-20261130-101500
    servebench analyze perf.data --flame-graph flame.svg

    Exit codes: 0 whatever was found, 2 a file that is missing, damaged or nothing that is understood.
    """  # noqa: D301 - click's mark for lines that stay as they are
    from servebench.analysis.profile.files import Question, analyze

    question = Question(rundir, None if window is None else _part(window), pattern)
    if len(files) == 1 and question.is_plain and flame_graph is None and (stored := _stored(files[0])):
        _show(stored, as_json)
        return
    document, capture = analyze(files, question)
    if flame_graph is not None:
        _draw(capture, files[0], flame_graph)
        document["hot"]["flame_graph"] = str(flame_graph)
    _show(document, as_json)


def _part(text: str) -> tuple[float, float]:
    from servebench.profile.windows import parse_window

    window = parse_window(text)
    if window.begin_s is None or window.end_s is None:
        raise UsageError(f'--window "{text}": expected a part of the capture, such as 1s..3s')
    return window.begin_s, window.end_s


def _stored(path: Path) -> dict[str, Any] | None:
    """What is known of a run's windows, or of one of them, if `path` is their folder."""
    from servebench.analysis.profile import stored
    from servebench.profile.tool import WINDOW

    if (path / WINDOW).is_file():
        return stored.answers_of(path)
    return stored.summary_of(path)


def _draw(capture: Capture, source: Path, target: Path) -> None:
    from servebench.profile.flame_graph import flame_svg
    from servebench.profile.stacks import Stacks

    if not isinstance(capture, Stacks):
        raise UsageError(f"--flame-graph needs stacks, as perf records them; {source} is a timeline")
    try:
        target.write_text(flame_svg(capture, source.name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


def _show(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    from servebench.report.profile import print_profile

    print_profile(document.get("windows", [document]))
