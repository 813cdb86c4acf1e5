"""`servebench profile`: a run whose server is captured afterwards, in prefill and decode windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from servebench.cli.options import (
    connection_options,
    output_options,
    profile_request,
    set_option,
    telemetry_options,
    tokenizer_option,
    window_options,
    workers_option,
)
from servebench.cli.run import execute, exit_code
from servebench.errors import ExitCode


@click.command("profile")
@click.argument("scenario")
@click.option(
    "--tool",
    "-t",
    default="torch",
    show_default=True,
    metavar="TOOL",
    help="torch, nsys, perf, ncu, sanitizer or xprof.",
)
@window_options
@set_option
@connection_options
@workers_option
@tokenizer_option
@telemetry_options
@output_options
@click.pass_context
def command(
    context: click.Context,
    /,
    scenario: str,
    tool: str,
    windows: tuple[str, ...],
    window_seconds: float | None,
    window_steps: int | None,
    window_concurrency: int | None,
    profile_options: tuple[str, ...],
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Run SCENARIO, then capture windows of the same server with a profiler, and say what they spend their time on.

    The scenario's own load is never inside a capture. Each window has a load of its own, which runs once without the
    capture as well, so that its cost is known: prefill (long prompts, one token each), decode (short prompts, long
    answers, armed once every request has its first token) and mixed (the scenario's load again).

    The result is a run directory that `compare`, `ab` and `gate` refuse, since a server under a profiler is another
    server. `servebench analyze` reads a profiler's file from anywhere.

    Exit codes: 0 good, 2 wrong usage, no server or no profiler, 3 nothing was captured or the run is INVALID, 4 an SLO
    was missed, 130 interrupted.
    """
    request = profile_request(tool, windows, window_seconds, window_steps, window_concurrency, profile_options)
    rundir, summary = execute(scenario, overrides, out, quiet or as_json, profile=request, **options)
    _show(summary, rundir.path, as_json)
    captured = any(window["status"] == "captured" for window in rundir.manifest["profile"]["windows"])
    context.exit(exit_code(rundir, summary) or (ExitCode.GOOD if captured else ExitCode.INVALID))


def _show(summary: dict[str, Any], path: Path, as_json: bool) -> None:
    if as_json:
        from servebench.cli.output import print_json

        print_json({"path": str(path), "summary": summary})
        return
    from servebench.report.console import print_report
    from servebench.report.profile import print_profile

    print_report(summary, path)
    print_profile(summary["profile"]["windows"])
