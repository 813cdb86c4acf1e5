"""`servebench run`: a scenario against a server, to a result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.options import (
    connection_options,
    keep_raw_option,
    output_options,
    profile_request,
    set_option,
    telemetry_options,
    tokenizer_option,
    window_options,
    workers_option,
)
from servebench.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from servebench.record.counters import LiveCounters
    from servebench.record.rundir import RunDir
    from servebench.report.live import LiveView
    from servebench.run import Target
    from servebench.scenario.schema import Scenario


@click.command("run")
@click.argument("scenario")
@set_option
@connection_options
@workers_option
@tokenizer_option
@keep_raw_option
@telemetry_options
@output_options
@click.option(
    "--profile",
    "tool",
    metavar="TOOL",
    help="Capture the server afterwards with torch, nsys, perf, ncu, sanitizer or xprof.",
)
@window_options
@click.option("--salt", type=int, help="Salt of the prompts' text, to repeat a run's very words; else a fresh one.")
@click.pass_context
def command(
    context: click.Context,
    /,
    scenario: str,
    tool: str | None,
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
    """Run SCENARIO, a file or the name of a shipped one, and report what its users would have waited for.

    The plan (when, how long, which prompt) is fixed and stored before the first request. The results go into a run
    directory, from which `servebench report` computes every figure again. With --profile the server is captured
    afterwards, in windows with loads of their own, as by `servebench profile`.

    Exit codes: 0 good, 2 wrong usage or no server, 3 the result is INVALID, 4 an SLO was missed, 130 interrupted.
    """
    profile = None
    if tool is not None:
        profile = profile_request(tool, windows, window_seconds, window_steps, window_concurrency, profile_options)
    elif windows or profile_options or (window_seconds or window_steps or window_concurrency) is not None:
        raise UsageError("--window and its like say what a profiler captures: give --profile TOOL, too")
    rundir, summary = execute(scenario, overrides, out, quiet or as_json, profile=profile, **options)
    _show(summary, rundir.path, as_json)
    context.exit(exit_code(rundir, summary))


def execute(
    scenario: str, overrides: tuple[str, ...], out: Path | None, quiet: bool, **options: Any
) -> tuple[RunDir, dict[str, Any]]:
    """Run a scenario with a live view, and write its reports; `options` are fields of `RunOptions`."""
    from servebench.dispatch.crew import Crew

    with Crew(options["workers"] or 1) as crew:  # first of all: they import while we do
        from servebench.report import write_reports
        from servebench.report.live import LiveView
        from servebench.run import RunOptions, run
        from servebench.scenario.loading import load_scenario, resolve_scenario

        loaded = load_scenario(resolve_scenario(scenario), overrides)
        with LiveView(quiet=quiet) as view:
            rundir = run(loaded, RunOptions(out=out, **options), _observer(view, options["profile"] is None), crew)
            view.status("computing the report")
            summary = write_reports(rundir)
    return rundir, summary


def exit_code(rundir: RunDir, summary: dict[str, Any]) -> int:
    """The process's exit code for a run, or for the windows after it, that a signal ended or that came to their end."""
    from servebench.analysis import exit_code as of

    manifest = rundir.manifest
    if manifest["status"] == "interrupted" or (manifest.get("profile") or {}).get("interrupted"):
        return int(ExitCode.INTERRUPTED)
    return int(of(summary))


def _show(summary: dict[str, Any], path: Path, as_json: bool) -> None:
    if as_json:
        from servebench.cli.output import print_json

        print_json({"path": str(path), "summary": summary})
        return
    from servebench.report.console import print_report

    print_report(summary, path)


def _observer(view: LiveView, alone: bool) -> Any:
    from servebench.report.live import LivePlan
    from servebench.run import Observer

    class Viewer(Observer):
        """Shows a run in the live view."""

        def status(self, text: str) -> None:
            view.status(text)

        def load(self, scenario: Scenario, target: Target, counters: LiveCounters, rows: int) -> None:
            if alone:  # else it starts the workers of other loads, which would be as nice
                os.nice(10)  # from here on this process only watches: never at the workers' expense
            load = scenario.load
            labels = ["SIMULATED"] * target.simulated + ["RANDOM WEIGHTS"] * target.random_weights
            plan = LivePlan(
                name=scenario.name,
                target=f"{target.model} at {target.url}",
                labels=tuple(labels),
                requests=load.requests,
                warmup_s=load.warmup_s,
                measured_s=load.duration,
                open_loop=load.closed is None,
            )
            view.attach(plan, counters.snapshot)

        def done(self) -> None:
            view.detach()

    return Viewer()
