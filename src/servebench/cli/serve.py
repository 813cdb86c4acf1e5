"""`servebench serve`: the vLLM that a run would start, alone, for as many runs as one likes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from servebench.cli.options import vllm_python_option
from servebench.errors import EngineError

if TYPE_CHECKING:
    from servebench.engine.vllm import VllmServer


@click.command("serve")
@click.option(
    "--model",
    "-m",
    metavar="NAME|DIR",
    default="tiny-random",
    show_default=True,
    help="A model name or folder for vLLM; 'tiny-random' is a small built-in one with random weights.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port; 0 takes a free one.")
@click.option(
    "--log",
    "log_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where vLLM's output goes. Default: a file in the cache folder.",
)
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for it to start.")
@vllm_python_option
@click.argument("vllm_flags", nargs=-1, metavar="[-- VLLM FLAGS...]")
def command(
    model: str, port: int, log_path: Path | None, timeout: float, vllm_python: Path | None, vllm_flags: tuple[str, ...]
) -> None:
    """Start the local vLLM that a run would start, and leave it up.

    It listens on 127.0.0.1 only. What follows -- goes to vLLM: servebench serve -- --max-num-seqs 64. It prints its
    URL, which `servebench run --endpoint URL` takes, and serves until Ctrl-C.
    """
    from servebench.engine.locate import find_vllm_python
    from servebench.engine.tiny_model import cache_root
    from servebench.engine.vllm import VllmSettings, launch_vllm
    from servebench.engine.vllm_flags import parse_flags

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = VllmSettings(model, parse_flags(vllm_flags))
    python = find_vllm_python(vllm_python)
    log_path = log_path or cache_root() / "logs" / f"vllm-{os.getpid()}.log"
    click.echo(f"Python with vLLM: {python}\nits log: {log_path}")
    with launch_vllm(settings, python, log_path, timeout, port=port, progress=_announce_stage) as server:
        _serve(server)


def _announce_stage(stage: str) -> None:
    click.echo(f"{stage} ...")


def _announce(server: VllmServer) -> None:
    marked = ", RANDOM WEIGHTS" if server.random_weights else ""
    cold = server.cold_start
    click.echo(
        f'vLLM {server.version or "of unknown version"} serves "{server.model}"{marked} at {server.url}\n'
        f"(ready after {cold['ready_s']:.1f} s, first token after {cold['first_token_s']:.1f} s; Ctrl-C ends it)"
    )


def _serve(server: VllmServer) -> None:
    """Say where it is and wait for Ctrl-C, SIGTERM or the server's own end, which is an error."""
    try:
        _announce(server)
        while server.alive():
            time.sleep(0.2)
    except KeyboardInterrupt:
        click.echo("ending vLLM ...")
        return
    raise EngineError(server.why_dead())
