"""`servebench compare`: are these runs better than those?"""

from __future__ import annotations

import click

from servebench.cli.judging import judging_options
from servebench.cli.options import json_option
from servebench.cli.output import print_json


@click.command("compare")
@click.argument("base", metavar="A")
@click.argument("cand", metavar="B")
@judging_options
@click.option("--force", is_flag=True, help="Compare what must not be compared; the result is SUSPECT.")
@json_option
def command(
    base: str,
    cand: str,
    primary: str | None,
    metrics: tuple[str, ...],
    alpha: float,
    min_effect: float,
    force: bool,
    as_json: bool,
) -> int:
    """Compare the runs B with the runs A, which are the base.

    A and B are each a run directory, a folder of run directories, EXPERIMENT:ARM (an arm of servebench ab), or several
    of these with commas between them. Runs of the same plans are compared in pairs. Tested are the figures of the
    scenario's SLO, on runs and not on requests: with too few runs there is an estimate and no p.

    Different workloads or models, simulated and real runs, profiled runs, and INVALID ones are refused.

    \b
    servebench compare results/chat-20261130-101500 results/chat-20261130-113000
    servebench compare results/ab-chat:base results/ab-chat:cand --primary itl.p99

    Exit codes: 0 whatever was found, 2 refused, 3 when forced or INVALID.
    """  # noqa: D301 - click's mark for lines that stay as they are
    from servebench.experiment.compare import Asked, compare
    from servebench.experiment.comparison.run_sets import load_runs

    asked = Asked(primary, metrics, alpha, min_effect, force)
    result = compare(load_runs(base), load_runs(cand), asked)
    if as_json:
        print_json(result)
    else:
        from servebench.report.effects import print_effects

        print_effects(result)
    return int(result["verdict"]["exit_code"])
