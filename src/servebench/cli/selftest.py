"""`servebench selftest`: what this machine's load generator is worth."""

from __future__ import annotations

from typing import Any

import click

from servebench.cli.options import json_option
from servebench.cli.output import print_json


@click.command("selftest")
@json_option
@click.option("--quick", is_flag=True, help="Some 15 s instead of a minute: shorter trials and no search.")
def command(as_json: bool, quick: bool) -> None:
    """Run the load generator against its own ground-truth server on this machine.

    Every token of that server carries the instant at which it was sent, so the error of the client's stamps is known.
    Reports this error, how late requests are dispatched, the CPU that a token costs, and the highest token rate that
    one worker carries with nothing lost and the p99 of the stamp error under 1 ms. The result is remembered, and `run`
    warns when a plan asks for more. Close other programs first: they share the processors.
    """
    from servebench.selftest import selftest

    figures = selftest(quick, tell=lambda text: click.echo(f"selftest: {text}", err=True))
    if as_json:
        print_json(figures)
    else:
        _print_table(figures)


def _print_table(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="servebench selftest", title_justify="left")
    for name in ("", "p50", "p99", "max"):
        table.add_column(name, justify="left" if not name else "right")
    for name, key in (("stamp error, 64 streams, us", "stamp_error_us"), ("dispatch late, us", "dispatch_late_us")):
        table.add_row(name, *(f"{figures[key][column]:.0f}" for column in ("p50", "p99", "max")))
    table.add_section()
    for trial in figures["trials"]:
        error = trial["stamp_error_us"]
        name = (
            f"{trial['streams']} streams, {trial['tokens_per_s']:,} tokens/s{'' if trial['carried'] else ': too much'}"
        )
        table.add_row(name, *(f"{error[column]:.0f}" if error[column] is not None else "-" for column in error))
    console = Console()
    console.print(table)
    cost = ", ".join(f"{value:.1f} us at {streams} streams" for streams, value in figures["cpu_us_per_token"].items())
    console.print(f"CPU a token: {cost}")
    console.print(_ceiling(figures))


def _ceiling(figures: dict[str, Any]) -> str:
    rate = figures["tokens_per_s_at_1ms_p99"]
    if rate is None:
        return "No rate was carried with the p99 of the stamp error under 1 ms: is this machine busy?"
    why = {
        "client": "beyond it the stamps are late",
        "server": "beyond it this test's own server is too slow",
        "search": "no higher one was tried",
        "time": "there was no time to narrow it down further",
    }[figures["limited_by"]]
    apart = "" if figures["machine"]["apart"] else " Server and client shared one processor, so expect better."
    return f"One worker carries {rate:,} tokens/s with the p99 of the stamp error under 1 ms; {why}.{apart}"
