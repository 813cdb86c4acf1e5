"""Options that several commands share, each a decorator."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from servebench.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from servebench.profile.windows import ProfileRequest

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

LOCAL_ENGINES = ("vllm", "sim")


def _endpoint(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Check `vllm`, `sim` or an http(s) URL; return the word, or the URL without its trailing slash or `/v1`."""
    if value in LOCAL_ENGINES:
        return value
    if re.fullmatch(r"[\w-]*", value):
        near = did_you_mean(value, LOCAL_ENGINES)
        raise click.BadParameter(f'"{value}" is neither vllm nor sim nor a URL such as http://127.0.0.1:8000{near}')
    from servebench.engine.attach import base_url

    return base_url(value)


def _workers(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Check a whole number of worker processes from 1, or `auto`, which becomes None."""
    if value == "auto":
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise click.BadParameter(f'"{value}" is neither auto nor a whole number from 1')
    return int(value)


def _number(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Check that a float is a number; click's ranges let nan pass."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number", ctx, param)
    return value


def _secret_variable(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Check that `name` is that of a set variable, without ever showing what may be a key given by mistake."""
    if name is None:
        return None
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise click.BadParameter("give the name of an environment variable, not the key itself", ctx, param)
    if not os.environ.get(name):
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            name = "of that name"
        raise UsageError(f"{param.opts[0]}: the environment variable {name} is not set or empty")
    return name


def _telemetry_url(ctx: click.Context, param: click.Parameter, url: str | None) -> str | None:
    """Check an http(s) URL without credentials; a DCGM exporter's keeps its path."""
    if url is None:
        return None
    from servebench.engine.attach import base_url

    try:
        return base_url(url)
    except UsageError as error:
        raise UsageError(str(error).replace("endpoint", "--telemetry", 1)) from None


def endpoint_option(function: Command) -> Command:
    """`--endpoint`, passed as `endpoint: str`: `vllm`, `sim` or a URL without a trailing slash."""
    return click.option(
        "--endpoint",
        "-e",
        metavar="URL|vllm|sim",
        callback=_endpoint,
        default="vllm",
        show_default=True,
        help="The server under test: a base URL (with or without /v1), 'vllm' to start a local vLLM, "
        "or 'sim' to start the simulated engine.",
    )(function)


def model_option(function: Command) -> Command:
    """`--model`, passed as `model: str | None`."""
    return click.option(
        "--model",
        "-m",
        metavar="NAME",
        help="The model: a name that the server lists, or for a local vLLM a model name or folder. 'tiny-random' is a "
        "small built-in one with random weights. Default: the scenario's, else the only one that the server lists.",
    )(function)


def set_option(function: Command) -> Command:
    """`--set`, repeatable, passed as `overrides: tuple[str, ...]` of `key=value`, as `load_scenario` takes them."""
    return click.option(
        "--set",
        "-s",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a key of the scenario by its dotted path, such as load.poisson=8/s; may be repeated.",
    )(function)


def out_option(function: Command) -> Command:
    """`--out`, passed as `out: Path | None`; None asks for the default folder."""
    return click.option(
        "--out",
        "-o",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="The run directory; it must not hold a run yet. Default: results/NAME-DATE-TIME.",
    )(function)


def json_option(function: Command) -> Command:
    """`--json`, passed as `as_json: bool`."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Write one JSON document to stdout instead of tables; messages go to stderr.",
    )(function)


def quiet_option(function: Command) -> Command:
    """`--quiet`, passed as `quiet: bool`."""
    return click.option("--quiet", "-q", is_flag=True, help="No live view and no progress lines.")(function)


def api_key_env_option(function: Command) -> Command:
    """`--api-key-env`, passed as `api_key_env: str | None`: the *name* of a set environment variable."""
    return click.option(
        "--api-key-env",
        metavar="VARIABLE",
        callback=_secret_variable,
        help="Name of the environment variable that holds the API key, sent as a bearer token; "
        "the key itself is never written anywhere.",
    )(function)


def ca_file_option(function: Command) -> Command:
    """`--ca-file`, passed as `ca_file: Path | None`."""
    return click.option(
        "--ca-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="Trust the certificates in this PEM file instead of the system's.",
    )(function)


def insecure_option(function: Command) -> Command:
    """`--insecure`, passed as `insecure: bool`."""
    return click.option(
        "--insecure", is_flag=True, help="Do not verify the server's TLS certificate; the result says so."
    )(function)


def workers_option(function: Command) -> Command:
    """`--workers`, passed as `workers: int | None`; None is `auto`."""
    return click.option(
        "--workers",
        "-w",
        metavar="N|auto",
        callback=_workers,
        default="auto",
        show_default=True,
        help="Worker processes that send the load; 'auto' takes as many as the plan's rate needs on this machine.",
    )(function)


def keep_raw_option(function: Command) -> Command:
    """`--keep-raw`, passed as `keep_raw: bool`."""
    return click.option(
        "--keep-raw",
        is_flag=True,
        help="Also store every response's bytes with the stamp of each read (large: some 250 bytes a token).",
    )(function)


def tokenizer_option(function: Command) -> Command:
    """`--tokenizer`, passed as `tokenizer: str | None`."""
    return click.option(
        "--tokenizer",
        metavar="NAME|DIR",
        help="Local tokenizer for exact prompt lengths when the server has no /tokenize (needs the 'tokenizer' extra).",
    )(function)


def telemetry_options(function: Command) -> Command:
    """What is sampled beside the load: `telemetry`, `nvml_hz`, `scrape_hz`, `telemetry_url`, `telemetry_token_env`."""
    return _stacked(
        function,
        click.option(
            "--no-telemetry",
            "telemetry",
            flag_value=False,
            default=True,
            type=bool,
            help="Sample neither the server's /metrics nor this machine nor its GPUs.",
        ),
        click.option(
            "--nvml-hz",
            type=click.FloatRange(0.1, 100),
            metavar="HZ",
            default=20.0,
            show_default=True,
            help="Samples a second of this machine's GPUs.",
        ),
        click.option(
            "--scrape-hz",
            type=click.FloatRange(0.1, 20),
            metavar="HZ",
            default=2.0,
            show_default=True,
            help="Samples a second of the server's /metrics.",
        ),
        click.option(
            "--telemetry",
            "telemetry_url",
            metavar="URL",
            callback=_telemetry_url,
            help="Telemetry of the GPU host: that of `servebench telemetry serve` there, or a DCGM exporter.",
        ),
        click.option(
            "--telemetry-token-env",
            metavar="VARIABLE",
            callback=_secret_variable,
            help="Name of the environment variable that holds the token for --telemetry.",
        ),
    )


def window_options(function: Command) -> Command:
    """What a profiler captures, and how: what `profile_request` takes beside the tool."""
    return _stacked(
        function,
        click.option(
            "--window",
            "windows",
            multiple=True,
            metavar="prefill|decode|mixed|A..B",
            help="What is captured: prefill or decode, each under an isolating load; mixed, as the scenario runs; or a "
            "range of time, such as 12s..14s. May be repeated. Default: the tool's own, most often the first three.",
        ),
        click.option(
            "--window-seconds",
            type=click.FloatRange(0, 3600, min_open=True),
            callback=_number,
            metavar="S",
            help="A window ends after so many seconds. Default: the tool's own, most often 5.",
        ),
        click.option(
            "--window-steps",
            type=click.IntRange(1, 100_000),
            metavar="N",
            help="A window ends after so many engine steps; a mixed one after four times as many.",
        ),
        click.option(
            "--window-concurrency",
            type=click.IntRange(1, 4096),
            metavar="N",
            help="Requests that decode at a time in the decode window. Default: as in the scenario, at least 4.",
        ),
        click.option(
            "--profile-option",
            "profile_options",
            multiple=True,
            metavar="KEY=VALUE",
            help="An option of the profiler: stacks=yes (torch), trace=cuda,nvtx,osrt (nsys); may be repeated.",
        ),
    )


def profile_request(
    tool: str,
    windows: tuple[str, ...],
    window_seconds: float | None,
    window_steps: int | None,
    window_concurrency: int | None,
    profile_options: tuple[str, ...],
) -> ProfileRequest:
    """What `window_options` passed, for the profiler `tool`. Raises UsageError for what cannot be read."""
    from servebench.profile.tools import tool_class
    from servebench.profile.windows import ProfileRequest, parse_settings, parse_windows

    tool_class(tool)  # an unknown one is told before anything is started
    settings = parse_settings(profile_options)
    return ProfileRequest(tool, parse_windows(windows), window_seconds, window_steps, window_concurrency, settings)


def vllm_python_option(function: Command) -> Command:
    """`--vllm-python`, passed as `vllm_python: Path | None`."""
    return click.option(
        "--vllm-python",
        type=click.Path(path_type=Path, exists=True),
        metavar="PATH",
        help="The environment that has vLLM, or its Python. Default: $SERVEBENCH_VLLM_PYTHON, else that of `vllm` on "
        "PATH, else .venv-vllm in the checkout.",
    )(function)


def connection_options(function: Command) -> Command:
    """How a server is reached: `--endpoint`, `--model`, `--api-key-env`, `--ca-file`, `--insecure`, `--vllm-python`."""
    return _stacked(
        function,
        endpoint_option,
        model_option,
        api_key_env_option,
        ca_file_option,
        insecure_option,
        vllm_python_option,
    )


def _stacked(function: Command, *options: Decorator[Command]) -> Command:
    """Apply decorators so that --help lists their options in this order."""
    for option in reversed(options):
        function = option(function)
    return function


def output_options(function: Command) -> Command:
    """Where a result goes: `--out`, `--json`, `--quiet`."""
    return out_option(json_option(quiet_option(function)))
