"""`servebench telemetry serve`: this machine's telemetry, for a run that is measured from another one."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from servebench.cli.output import print_warning
from servebench.errors import EngineError, UsageError

if TYPE_CHECKING:
    import ssl

    from servebench.telemetry.remote_serve import TelemetryServer


def _token_name(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Check that `name` is that of a set variable, without ever showing what may be a token given by mistake."""
    if name is None:
        return None
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise click.BadParameter("give the name of an environment variable, not the token itself", ctx, param)
    if not os.environ.get(name):
        shown = name if re.fullmatch(r"[A-Z][A-Z0-9_]*", name) else "of that name"
        raise UsageError(f"--token-env: the environment variable {shown} is not set or empty")
    return name


@click.group("telemetry")
def command() -> None:
    """Telemetry of a machine that a run is not started on."""


@command.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port; 0 takes a free one.")
@click.option(
    "--token-env",
    metavar="VARIABLE",
    callback=_token_name,
    help="Name of the environment variable that holds the bearer token which clients must send; needed to listen "
    "beyond this machine. The token itself is never written anywhere.",
)
@click.option(
    "--nvml-hz",
    type=click.FloatRange(0.1, 100),
    default=20.0,
    show_default=True,
    help="How often the GPUs are sampled, per second.",
)
@click.option("--name", metavar="NAME", help="This machine's name in reports. Default: its host name.")
@click.option(
    "--server-pid",
    "server_pids",
    type=click.IntRange(1),
    multiple=True,
    metavar="PID",
    help="A process of the server under test, to tell it from others on the GPUs; may be repeated.",
)
@click.option(
    "--cert",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Serve https with the certificate chain in this PEM file.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The certificate's key, if it is not in the same file.",
)
def serve(
    host: str,
    port: int,
    token_env: str | None,
    nvml_hz: float,
    name: str | None,
    server_pids: tuple[int, ...],
    cert: Path | None,
    key: Path | None,
) -> None:
    """Sample this machine's GPUs and serve what was read.

    Start it on the GPU host and give `servebench run` the URL that it prints with --telemetry. The stamps are moved to
    the client's clock there, with an error that the report states. It serves until Ctrl-C.
    """
    from servebench.telemetry.remote_serve import TelemetryServer, local_sources

    tls = _tls(cert, key)
    sources = local_sources(nvml_hz, server_pids=server_pids)
    try:
        server = TelemetryServer(sources, host, port, os.environ[token_env] if token_env else None, name=name, tls=tls)
    except OSError as error:
        raise EngineError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    with server, _ended_by_signal() as ended:
        _announce(server, token_env is not None and tls is None)
        ended.wait()


@contextmanager
def _ended_by_signal() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, as long as the context lasts."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(server: TelemetryServer, token_in_clear: bool) -> None:
    from servebench.engine.reach import is_loopback

    if token_in_clear and not is_loopback(server.url):
        print_warning("the token crosses the network unencrypted: use --cert, or an SSH tunnel to a loopback port")
    click.echo(f'telemetry of "{server.name}" at {server.url} (Ctrl-C ends it)')
    for name, report in server.sources().items():
        reason = f": {report['reason']}" if report["reason"] else ""
        click.echo(f"  {name}: {report['state']}{reason}")


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The context for https; None without a certificate."""
    if cert is None:
        if key is not None:
            raise UsageError("--key: give the certificate, too, with --cert")
        return None
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")
    except OSError:  # ssl.SSLError is one
        raise UsageError(f"--cert {cert}: no certificate with an unencrypted key that fits it") from None
    return context
