"""`servebench scenario`: what is shipped, whether a file is right, and what it would send."""

from __future__ import annotations

import click

from servebench.cli.options import json_option, set_option
from servebench.cli.output import print_error, print_json
from servebench.errors import ExitCode, UsageError


@click.group("scenario")
def command() -> None:
    """List, check and show scenarios.

    A scenario is a YAML file that says what is sent, when, to which engine, and what is promised. SCENARIO is a file or
    the name of a shipped one.
    """


@command.command("list")
@json_option
def list_scenarios(as_json: bool) -> None:
    """List the shipped scenarios and what each models."""
    from servebench.scenario import load_scenario, shipped_scenarios

    found = {name: (path, load_scenario(path)) for name, path in shipped_scenarios().items()}
    if as_json:
        print_json([{"name": n, "description": s.description, "path": str(p)} for n, (p, s) in found.items()])
        return
    width = max(map(len, found), default=0)
    for name, (_, scenario) in found.items():
        click.echo(f"{name:{width}}  {scenario.description}")


@command.command("check")
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1, required=True)
@set_option
@click.pass_context
def check(ctx: click.Context, scenarios: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Check scenarios: print OK, or what is wrong and in which line.

    Exits with 2 if any of them is wrong.
    """
    results = [_check(name, overrides) for name in scenarios]
    if not all(results):
        ctx.exit(ExitCode.USAGE)


def _check(name: str, overrides: tuple[str, ...]) -> bool:
    from servebench.scenario import load_scenario
    from servebench.workload import make_plan

    try:
        plan = make_plan(load_scenario(name, overrides))
    except UsageError as error:
        print_error(str(error))
        return False
    click.echo(f"{name}: OK, {len(plan)} requests planned")
    return True


@command.command("show")
@click.argument("scenario")
@set_option
@json_option
def show(scenario: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what SCENARIO will send: arrivals over time and lengths, with n, mean, p50, p95, p99 and the seeds.

    Nothing is sent. With --json also the scenario as resolved, which is itself a valid scenario.
    """
    from servebench.scenario import load_scenario
    from servebench.workload import make_plan

    loaded = load_scenario(scenario, overrides)
    plan = make_plan(loaded)
    if as_json:
        from servebench.workload.overview import summarise_plan

        print_json({"scenario": loaded.resolved(), "plan": summarise_plan(loaded, plan)})
        return
    from rich.console import Console

    from servebench.report.planned import print_plan

    print_plan(loaded, plan, Console())
