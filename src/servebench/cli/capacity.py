"""`servebench capacity`: the highest rate at which a scenario's SLO holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli import campaigns
from servebench.cli.judging import share

if TYPE_CHECKING:
    from servebench.experiment.capacity import Settings

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def _unit(parse: str, example: str) -> Callback:
    """A callback that reads a quantity by a function of `servebench.units`; it must be above 0."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        from servebench import units

        if value is None:
            return None
        try:
            number = float(getattr(units, parse)(value))
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        if not 0 < number < math.inf:
            raise click.BadParameter(f'"{value}" is not above 0 and finite, as {example} is')
        return number

    return read


def _between(low: float, high: float, example: str) -> Callback:
    """A callback that reads a share within limits."""

    def read(context: click.Context, parameter: click.Parameter, value: str) -> float:
        number = share(context, parameter, value)
        if not low <= number <= high:
            raise click.BadParameter(f'"{value}" is not from {100 * low:g}% to {100 * high:g}%, as {example} is')
        return number

    return read


_rate, _duration = _unit("parse_rate", "4/s"), _unit("parse_duration", "60s")


@click.command("capacity")
@campaigns.experiment_options
@click.option(
    "--from",
    "first",
    metavar="RATE",
    callback=_rate,
    help="The lowest rate, to begin with. Default: 1/s or half of the scenario's rate, and lower if that fails.",
)
@click.option("--max", "most", metavar="RATE", callback=_rate, help="The highest rate to try. Default: no limit.")
@click.option(
    "--precision",
    metavar="SHARE",
    default="10%",
    show_default=True,
    callback=_between(0.01, 1.0, "10%"),
    help="How far apart the ends of the bracket may be.",
)
@click.option("--runs", type=click.IntRange(1), default=2, show_default=True, help="First runs of each rate.")
@click.option(
    "--most-runs",
    type=click.IntRange(1),
    default=6,
    show_default=True,
    help="Runs of a rate that these cannot decide; then it gets --runs of 4 times the length.",
)
@click.option(
    "--budget",
    "budget_s",
    metavar="DURATION",
    default="2h",
    show_default=True,
    callback=_duration,
    help="No run begins once all runs together took so long; a larger one goes on.",
)
@click.option(
    "--confidence",
    metavar="SHARE",
    default="95%",
    show_default=True,
    callback=_between(0.5, 0.999, "95%"),
    help="Of each decision that a rate passes or fails.",
)
@click.option(
    "--duration",
    "duration_s",
    metavar="DURATION",
    callback=_duration,
    help="Measured window of a run. Default: the scenario's load.duration.",
)
@click.pass_context
def command(
    context: click.Context,
    /,
    scenario: str,
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    quiet: bool,
    dry_run: bool,
    retry_failed: bool,
    first: float | None,
    most: float | None,
    precision: float,
    runs: int,
    most_runs: int,
    budget_s: float,
    confidence: float,
    duration_s: float | None,
    **options: Any,
) -> None:
    """Search the highest rate at which SCENARIO's SLO holds: its rate is doubled until it fails, then bisected.

    A rate passes when so many of the offered requests keep to each objective as it says (p95: 95 %) and no backlog
    grows, by several runs, and fails when one does not; in between it gets more runs, then longer ones. The answer is a
    bracket, from a rate that was sustained, confirmed with other seeds, to one that failed.

    Exit codes: 0 a bracket, or open above; 2 wrong usage, or no server; 3 no rate could be decided; 4 the lowest rate
    fails; 130 interrupted, and the same command with --out goes on.
    """
    from servebench.cli.report import report_experiment
    from servebench.experiment import capacity
    from servebench.experiment.preflight import check_servers
    from servebench.run import RunOptions
    from servebench.scenario.loading import load_scenario

    loaded = load_scenario(scenario, overrides)
    settings = capacity.Settings(first, most, precision, runs, most_runs, confidence, duration_s)
    run_options = RunOptions(**options)
    asked = capacity.question(loaded, settings, run_options.endpoint, run_options.model)
    if dry_run:
        _dry_run(scenario, overrides, run_options, asked, settings, budget_s, as_json)
        return
    check_servers([loaded], run_options.endpoint, run_options.vllm_python)
    quiet = quiet or as_json
    figure = f"{loaded.slo.objectives[0].metric}.{loaded.slo.objectives[0].quantile}"
    campaign = campaigns.campaign(
        "capacity", loaded.name, asked, scenario, overrides, out, quiet, retry_failed, run_options, figure
    )
    capacity.search(campaign, budget_s, lambda text: None if quiet else click.echo(text, err=True))
    context.exit(report_experiment(campaign.directory, as_json))


def _dry_run(
    scenario: str,
    overrides: tuple[str, ...],
    options: Any,
    asked: dict[str, Any],
    settings: Settings,
    budget_s: float,
    as_json: bool,
) -> None:
    """The runs of the first rate: which come then depends on what they find."""
    from servebench.experiment import capacity
    from servebench.experiment.runner import ScenarioRunner
    from servebench.report import write_reports
    from servebench.units import format_duration, format_rate

    runner = ScenarioRunner(scenario, overrides, options, write_reports)
    campaigns.dry_run(runner.with_expected(capacity.first_cells(asked)), as_json)
    if not as_json:
        most = "" if settings.most is None else f" up to {format_rate(settings.most)}"
        click.echo(
            f"then the rate is doubled{most} and bisected; each rate takes {settings.runs} to "
            f"{settings.most_runs + settings.runs} runs, and none begins after {format_duration(budget_s)}"
        )
