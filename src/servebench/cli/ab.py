"""`servebench ab`: does a change of a server's settings help? Interleaved pairs of runs, judged on runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.campaigns import campaign, experiment_options, given_endpoint
from servebench.cli.campaigns import dry_run as print_dry_run
from servebench.cli.judging import judging_options
from servebench.cli.output import print_warning
from servebench.cli.report import report_experiment
from servebench.errors import UsageError

if TYPE_CHECKING:
    from servebench.experiment.ab.design import Design
    from servebench.experiment.arms import Arm
    from servebench.experiment.cell import Cell
    from servebench.experiment.directory import ExperimentDir
    from servebench.run import RunOptions
    from servebench.scenario.schema import Scenario


@click.command("ab")
@experiment_options
@click.option(
    "--vary",
    "-V",
    metavar="KEY=V1,V2[,..]",
    help="The one setting that is changed: a key of the scenario, vllm.FLAG or sim.KEY. The first value is the base.",
)
@click.option(
    "--arm",
    "written",
    multiple=True,
    metavar="'NAME: KEY=VALUE ..'",
    help="Instead of --vary: an arm and its settings, with endpoint=URL and model=NAME; the first one is the base.",
)
@click.option(
    "--repeats",
    "-n",
    type=click.IntRange(min=1),
    help="Runs of each arm. Default: as many as every test needs to reach the level, 6 at least.",
)
@judging_options
@click.option("--aa", is_flag=True, help="Run the base a second time in every repeat, to measure the noise (A/A).")
@click.option("--hypothesis", metavar="TEXT", help="What you expect and why; it opens the optimisation record.")
@click.option(
    "--probes",
    type=click.IntRange(0, 16),
    default=16,
    show_default=True,
    help="Fixed greedy questions after each run, whose answers must not change with the arm; 0 asks none.",
)
@click.option(
    "--hook",
    metavar="COMMAND",
    help="Shell command before each run that sets a running server up for the arm: it finds the arm's name and "
    "settings in $SERVEBENCH_ARM and $SERVEBENCH_ARM_<KEY>.",
)
@click.option(
    "--reset-caches", is_flag=True, help="Have a server that runs already forget its prefix cache before each run."
)
@click.option("--order-seed", type=int, default=1, show_default=True, help="Seed of the order of the arms.")
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
    vary: str | None,
    written: tuple[str, ...],
    **options: Any,
) -> None:
    """Compare settings of a server under the load of SCENARIO, and write an optimisation record.

    Every repeat runs each arm once, in random balanced order, all with the same plan of requests. What differs is
    tested on runs, not on requests, with one chance of a false alarm for all figures together. The answers to fixed
    questions are compared, too, and what else the change costs. The directory holds every run, experiment.json
    and record.md, for a colleague; the same command with --out DIR goes on after an interruption.

    \b
    servebench ab long-prefill-mix --vary vllm.max-num-batched-tokens=2048,256 --aa
    servebench ab chat --arm 'base: endpoint=http://a:8000' --arm 'cand: endpoint=http://b:8000'

    Exit codes: 0 whatever was found, 2 wrong usage, 3 the comparison is INVALID, 130 interrupted.
    """  # noqa: D301 - click's mark for lines that stay as they are
    planned = _planned(scenario, overrides, _arms(vary, written), given_endpoint(context), options)
    if dry_run:
        print_dry_run(planned.cells(), as_json)
        return
    directory = planned.run(out, quiet or as_json, retry_failed)
    context.exit(report_experiment(directory, as_json))


@dataclass(frozen=True, slots=True)
class _Planned:
    """An experiment that has passed all checks that need no server under load.

    Attributes:
        scenario, overrides: of all runs.
        base: the base arm's scenario.
        design: what is compared, how often and how it is judged.
        options: of the runs.
    """

    scenario: str
    overrides: tuple[str, ...]
    base: Scenario
    design: Design
    options: RunOptions

    def cells(self) -> list[Cell]:
        """The runs, with the time that each will take."""
        from servebench.experiment.ab import cells
        from servebench.experiment.runner import ScenarioRunner
        from servebench.report import write_reports

        runner = ScenarioRunner(self.scenario, self.overrides, self.options, write_reports)
        return runner.with_expected(cells(self.design))

    def question(self) -> dict[str, Any]:
        """All that decides what the runs are and how they are judged."""
        from servebench.experiment.ab import question

        asked = question(self.design, self.base.resolved(), self.options.endpoint)
        return asked | {
            "model": self.options.model,
            "probes": self.options.probes,
            "reset_caches": self.options.reset_caches,
        }

    def run(self, out: Path | None, quiet: bool, retry_failed: bool) -> ExperimentDir:
        """Run what has not been run yet; a run that fails does not end the experiment."""
        going = campaign(
            *("ab", self.base.name, self.question(), self.scenario, self.overrides, out, quiet, retry_failed),
            self.options,
            figure=self.design.family[0],
        )
        going.run_all(self.cells())
        return going.directory


def _arms(vary: str | None, written: Sequence[str]) -> list[Arm]:
    """The arms as they were given, the base first."""
    from servebench.experiment.arms import arms_of_variable, parse_arm
    from servebench.experiment.variables import parse_vary

    if (vary is None) == (not written):
        raise UsageError(
            "say what is compared: either --vary KEY=V1,V2 or --arm 'NAME: KEY=VALUE ..' for each arm, the base first"
        )
    if vary is None:
        return [parse_arm(text) for text in written]
    variable = parse_vary(vary)
    if variable.note:
        print_warning(variable.note)
    return arms_of_variable(variable)


def _planned(
    scenario: str, overrides: tuple[str, ...], arms: Sequence[Arm], endpoint: str | None, given: dict[str, Any]
) -> _Planned:
    """Check everything that can be known before the first run."""
    from servebench.experiment.ab import check_plans
    from servebench.experiment.arms import check_arms, keys_of
    from servebench.experiment.variables import launch_overrides, load_each, resolve_endpoint
    from servebench.run import RunOptions
    from servebench.scenario.loading import resolve_scenario

    check_arms(arms)
    path, keys = str(resolve_scenario(scenario)), keys_of(arms)
    overrides = (*overrides, *launch_overrides(path, overrides, keys))
    scenarios = load_each(path, overrides, [arm.overrides for arm in arms], distinct=False)
    design = _design(arms, scenarios[0], given)
    check_plans(dict(zip((arm.name for arm in arms), scenarios, strict=True)))
    fields = {field.name for field in dataclasses.fields(RunOptions)}
    options = RunOptions(**{key: value for key, value in given.items() if key in fields})
    hooked = design.prepare is not None
    told = () if hooked and endpoint not in (None, "vllm", "sim") else keys  # of a server that runs, for its hook
    options = dataclasses.replace(options, endpoint=resolve_endpoint(told, endpoint))
    _check_servers(arms, scenarios, options, hooked)
    return _Planned(path, overrides, scenarios[0], design, options)


def _design(arms: Sequence[Arm], base: Scenario, given: dict[str, Any]) -> Design:
    from servebench.experiment.ab import Design, repeats_wanted
    from servebench.experiment.ab.design import check_rules
    from servebench.experiment.figures import family_of

    family = family_of(base.resolved(), given["primary"], given["metrics"])
    check_rules(family, given["alpha"], given["min_effect"])
    wanted = repeats_wanted(len(arms) - 1, family, given["alpha"])
    repeats = given["repeats"] or wanted
    if repeats < wanted:
        print_warning(f"--repeats {repeats}: some tests can never reach the level of {given['alpha']:g}; {wanted} can")
    return Design(
        arms=tuple(arms),
        family=family,
        repeats=repeats,
        seed=base.seeds.arrivals,
        order_seed=given["order_seed"],
        alpha=given["alpha"],
        min_effect=given["min_effect"],
        aa=given["aa"],
        hypothesis=given["hypothesis"],
        prepare=given["hook"],
    )


def _check_servers(arms: Sequence[Arm], scenarios: Sequence[Scenario], options: RunOptions, hooked: bool) -> None:
    """Flags of a vLLM to be launched, settings of the simulated engine, and whether servers that run answer."""
    from servebench.engine.sim.settings import SimSettings
    from servebench.experiment.preflight import check_servers
    from servebench.run.asking import greet

    asked: set[str] = set()
    for arm, scenario in zip(arms, scenarios, strict=True):
        endpoint = arm.endpoint or options.endpoint
        if endpoint == "vllm":
            check_servers([scenario], endpoint, options.vllm_python)
        elif endpoint == "sim":
            SimSettings.of(scenario.engine.sim or SimSettings())
        elif not hooked and endpoint not in asked:  # a hook may be what starts it
            asked.add(endpoint)
            greet(scenario, dataclasses.replace(options, endpoint=endpoint, model=arm.model or options.model))
