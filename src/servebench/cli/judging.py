"""Options of the commands that judge effects: what is tested, at which level, and what matters."""

from __future__ import annotations

import click

from servebench.cli.options import Command


def share(context: click.Context, parameter: click.Parameter, value: str) -> float:
    """``3%`` or ``0.03`` as 0.03."""
    text = value.strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise click.BadParameter(f'"{value}" is no share such as 3% or 0.03') from None
    return number / 100 if text.endswith("%") else number


def judging_options(function: Command) -> Command:
    """`--primary`, `--metric` (as `metrics`), `--alpha` and `--min-effect`, the latter as a share such as 0.03."""
    options = (
        click.option(
            "--primary", metavar="FIGURE", help="The figure to decide by, such as itl.p99. Default: the first SLO's."
        ),
        click.option(
            "--metric",
            "metrics",
            multiple=True,
            metavar="FIGURE",
            help="Test this figure, too, such as ttft.p95 or output_tokens_per_s; the SLO's figures always are.",
        ),
        click.option(
            "--alpha", type=float, default=0.05, show_default=True, help="Level of the tests, all figures together."
        ),
        click.option(
            "--min-effect",
            metavar="SHARE",
            callback=share,
            default="3%",
            show_default=True,
            help="The least change that matters; smaller ones are no difference.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
