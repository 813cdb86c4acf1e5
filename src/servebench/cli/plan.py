"""`servebench plan`: how many replicas a demand needs, and what they cost."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.options import json_option
from servebench.errors import UsageError
from servebench.units import parse_duration, parse_rate

if TYPE_CHECKING:
    from servebench.experiment.fleet.demand import Demand


def _parsed(parse: Callable[[object], float]) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """A callback that reads an option's text with `parse`, whose ValueError says what is wrong."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def _share(value: object) -> float:
    """``20%`` or ``0.2``; a bare number above 5 is a forgotten per cent sign."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%?)\s*", str(value))
    if not match:
        raise ValueError(f'expected a share such as 20%, not "{value}"')
    found = float(match[1])
    if not match[2] and found > 5:
        raise ValueError(f"{value} is {found * 100:g} %; write {value}% for a share of a hundred")
    return found / 100 if match[2] else found


def _by_name(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    """``2.5`` for every capacity, ``NAME=2.5`` for one; the name "" stands for all others."""
    found: dict[str, float] = {}
    for value in values:
        name, _, text = value.rpartition("=")
        try:
            amount = float(text)
        except ValueError:
            raise click.BadParameter(f'expected a number or NAME=NUMBER, not "{value}"') from None
        whole = param.name != "gpus_per_replica" or (amount.is_integer() and amount >= 1)
        if not (0 <= amount < float("inf")) or not whole or name in found:
            raise click.BadParameter(f'"{value}" is out of range or given twice')
        found[name] = amount
    return found


@click.command("plan")
@click.argument("capacities", nargs=-1, required=True, metavar="CAPACITY...", type=click.Path(path_type=Path))
@click.option("--peak", callback=_parsed(parse_rate), metavar="RATE", help="The peak, such as 50/s or 3000/min.")
@click.option("--users", type=click.IntRange(1), metavar="N", help="Users that are active at the same time.")
@click.option("--per-user", callback=_parsed(parse_rate), metavar="RATE", help="How often each asks, such as 0.02/s.")
@click.option(
    "--daily",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The shape of a day: CSV with the columns hour (or time) and rate; --peak or --users scale it.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A trace of arrivals: CSV with a column of timestamps. Its busiest --bin is the peak.",
)
@click.option(
    "--bin",
    "bin_s",
    callback=_parsed(parse_duration),
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="Over which --trace's rates are taken.",
)
@click.option(
    "--headroom",
    callback=_parsed(_share),
    default="20%",
    show_default=True,
    metavar="SHARE",
    help="Added to the peak, for what it does not show.",
)
@click.option(
    "--spare",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Replicas more than needed; 1 is N+1.",
)
@click.option(
    "--gpu-hour",
    multiple=True,
    callback=_by_name,
    metavar="[NAME=]PRICE",
    help="What a GPU costs an hour, for all capacities or the one whose folder is called NAME; may be repeated.",
)
@click.option(
    "--gpus-per-replica",
    multiple=True,
    callback=_by_name,
    metavar="[NAME=]N",
    help="GPUs of a replica. Default: by the server's tensor- and pipeline-parallel sizes, else the GPUs that it used.",
)
@json_option
@click.pass_context
def command(context: click.Context, /, capacities: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Size a fleet for a demand from one or more CAPACITY directories of `servebench capacity`.

    Replicas = (peak × (1 + headroom)) / sustained rate, rounded up, plus spares. Every line of the calculation is
    shown, and every assumption. Several capacities are compared, the cheapest first.

    Exit codes: 0 good, 2 wrong usage, 3 when no capacity can be planned with.
    """
    from servebench.experiment.fleet.deployment import read_deployment
    from servebench.experiment.fleet.plan import plan
    from servebench.experiment.fleet.sizing import Policy

    policy = Policy(options["headroom"], options["spare"], options["gpu_hour"], options["gpus_per_replica"])
    demand = _demand(**{key: options[key] for key in ("peak", "users", "per_user", "daily", "trace", "bin_s")})
    document = plan([read_deployment(path) for path in capacities], demand, policy)
    _show(document, as_json)
    context.exit(document["exit_code"])


def _demand(
    peak: float | None, users: int | None, per_user: float | None, daily: Path | None, trace: Path | None, bin_s: float
) -> Demand:
    """The demand that the options describe; UsageError when they describe none, or two."""
    from servebench.experiment.fleet import demand, demand_files

    if (users is None) != (per_user is None):
        raise UsageError("--users and --per-user go together: --users 2000 --per-user 0.02/s")
    if (peak is not None and users is not None) or (daily is not None and trace is not None):
        raise UsageError("give --peak or --users, and --daily or --trace, not both")
    known = None
    if peak is not None:
        known = demand.of_peak(peak)
    elif users is not None and per_user is not None:
        known = demand.of_users(users, per_user)
    shape = demand_files.read_daily(daily) if daily else demand_files.read_arrivals(trace, bin_s) if trace else None
    if known is None and shape is None:
        raise UsageError(
            "how much is asked of it? give --peak 50/s, --users 2000 --per-user 0.02/s, --daily or --trace"
        )
    if known is not None and shape is not None:
        return demand.scaled_to(known, shape)
    found = known or shape
    assert found is not None
    return found


def _show(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        from servebench.cli.output import print_json

        print_json(document)
        return
    from servebench.report.fleet import print_plan

    print_plan(document)
