"""`servebench sweep`: a scenario over a range of settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from servebench.cli import campaigns
from servebench.cli.output import print_warning

if TYPE_CHECKING:
    from servebench.experiment.cell import Cell
    from servebench.experiment.variables import Variable
    from servebench.scenario.schema import Scenario


@click.command("sweep")
@campaigns.experiment_options
@click.option(
    "--vary",
    "-V",
    "vary",
    multiple=True,
    required=True,
    metavar="KEY=VALUES",
    help="Vary a key of the scenario: KEY=1,2,4 or KEY=1..64:log8 (8 points, equal ratios), :lin8, or :2 (in steps). "
    "vllm.FLAG is a flag of vLLM, sim.KEY a setting of the simulated engine. May be repeated: every combination.",
)
@click.option("--zip", "side_by_side", is_flag=True, help="Take the values side by side instead of every combination.")
@click.option(
    "--repeats", type=click.IntRange(1), default=1, show_default=True, help="Runs of each point, each with other seeds."
)
@click.option(
    "--reset-caches",
    is_flag=True,
    help="Have a server that runs already forget its prefix cache before each run. Every run has a fresh salt anyway.",
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
    vary: tuple[str, ...],
    side_by_side: bool,
    repeats: int,
    **options: Any,
) -> None:
    """Run SCENARIO, a file or the name of a shipped one, once for each setting, and show a table and curves.

    Each run is a directory of its own below --out; a run that fails is recorded and the others go on. What is varied
    says which server is meant: vllm.* starts a local vLLM for each run, sim.* the simulated engine.

    Exit codes: 0 good, 2 wrong usage or every run failed, 3 some run failed or is INVALID, 130 interrupted.
    """
    from servebench.cli.report import report_experiment
    from servebench.experiment import sweep
    from servebench.experiment.preflight import check_servers
    from servebench.experiment.variables import launch_overrides, resolve_endpoint
    from servebench.run import RunOptions
    from servebench.scenario.loading import load_scenario

    variables = [_parsed(text) for text in vary]
    keys = [variable.key for variable in variables]
    endpoint = resolve_endpoint(keys, campaigns.given_endpoint(context))
    settings = RunOptions(**options | {"endpoint": endpoint})
    overrides = (*launch_overrides(scenario, overrides, keys), *overrides)
    base = load_scenario(scenario, overrides)
    how: Literal["grid", "zip"] = "zip" if side_by_side else "grid"
    cells = sweep.cells(variables, how, repeats, base.seeds.arrivals)
    cells, scenarios = _loaded(scenario, overrides, cells, endpoint)
    if dry_run:
        campaigns.dry_run(cells, as_json)
        return
    check_servers(scenarios, endpoint, settings.vllm_python)
    asked = sweep.question(base, variables, how, repeats, endpoint, settings.model, settings.reset_caches)
    campaign = campaigns.campaign(
        "sweep", base.name, asked, scenario, overrides, out, quiet or as_json, retry_failed, settings, "ttft.p99"
    )
    campaign.run_all(cells)
    context.exit(report_experiment(campaign.directory, as_json))


def _parsed(text: str) -> Variable:
    from servebench.experiment.variables import parse_vary

    variable = parse_vary(text)
    if variable.note:
        print_warning(variable.note)
    return variable


def _loaded(
    scenario: str, overrides: tuple[str, ...], cells: list[Cell], endpoint: str
) -> tuple[list[Cell], list[Scenario]]:
    """The cells with the time that each will take, and their scenarios."""
    from servebench.experiment.runner import expected_seconds
    from servebench.experiment.variables import load_each

    changes = [(*cell.overrides, *(() if cell.seed is None else (f"seed={cell.seed}",))) for cell in cells]
    scenarios = load_each(scenario, overrides, changes)
    timed = [
        replace(cell, expected_s=expected_seconds(loaded, endpoint))
        for cell, loaded in zip(cells, scenarios, strict=True)
    ]
    return timed, scenarios
