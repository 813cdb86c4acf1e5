"""`servebench sim`: the simulated engine alone, for trying clients against a server whose behaviour is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from servebench.cli.options import set_option
from servebench.errors import EngineError

if TYPE_CHECKING:
    from servebench.engine.sim.settings import SimSettings


@click.command("sim")
@click.argument("scenario", default="chat")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port; 0 takes a free one.")
@click.option("--model", "-m", default="simulated", show_default=True, help="The model name that it serves.")
@set_option
def command(scenario: str, host: str, port: int, model: str, overrides: tuple[str, ...]) -> None:
    """Run the simulated engine alone: an OpenAI-compatible server, no model in it.

    It batches as vLLM does (token budget a step, chunked prefill, KV blocks, preemption, prefix cache); how long a step
    takes comes from the engine.sim section of SCENARIO: a file, or the name of a shipped scenario (default: chat).
    --set changes it: --set engine.sim.base=10ms --set engine.sim.max_num_seqs=64.

    It prints its URL and serves until Ctrl-C. Every response carries the header x-servebench-simulated: 1.
    """
    from servebench.engine.sim.serving import run

    settings = _settings(scenario, overrides)
    try:
        run(settings, model, host, port, _announce)
    except OSError as error:
        raise EngineError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _settings(scenario: str, overrides: tuple[str, ...]) -> SimSettings:
    from servebench.engine.sim.settings import SimSettings
    from servebench.scenario.loading import load_scenario

    section = load_scenario(scenario, overrides).engine.sim
    return SimSettings() if section is None else SimSettings.of(section)


def _announce(url: str) -> None:
    click.echo(f"SIMULATED engine at {url} (no model runs here; Ctrl-C ends it)")
