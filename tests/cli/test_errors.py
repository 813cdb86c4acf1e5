"""Whatever goes wrong on the command line: one clear line on stderr and the documented exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from servebench.cli import main as shell
from servebench.cli import options
from servebench.errors import EngineError, ExitCode, ServebenchError, UsageError


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[click.Command], None]:
    """Install a command in the place of `servebench run`."""

    def install(command: click.Command) -> None:
        monkeypatch.setattr(shell.LazyGroup, "get_command", lambda self, ctx, name: command if name == "run" else None)

    return install


def raising(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such scenario"), 2, "servebench: error: no such scenario"),
        (EngineError("port 1 refused"), 2, "servebench: error: port 1 refused"),
        (ServebenchError("broken"), 1, "servebench: error: broken"),
        (KeyboardInterrupt(), 130, "servebench: note: interrupted"),
        (
            BrokenPipeError(32, "a worker's pipe"),
            1,
            "servebench: internal error: BrokenPipeError: [Errno 32]",
        ),
        (EOFError("cut"), 1, "servebench: internal error: EOFError: cut (set SERVEBENCH_DEBUG=1 for the traceback)"),
        (
            ValueError("two\nlines"),
            1,
            "servebench: internal error: ValueError: two lines (set SERVEBENCH_DEBUG=1 for the traceback)",
        ),
        (BaseExceptionGroup("tasks", [UsageError("inner")]), 2, "servebench: error: inner"),
        (
            BaseExceptionGroup("tasks", [BaseExceptionGroup("more", [KeyboardInterrupt()])]),
            130,
            "servebench: note: int",
        ),
    ],
)
def test_an_error_is_one_line_and_its_code(
    error: BaseException,
    code: int,
    line: str,
    run_command: Callable[[click.Command], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_command(raising(error))
    assert shell.main(["run"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(line)
    assert shown.err.count("\n") == 1


def test_debug_shows_the_traceback_of_an_internal_error(
    run_command: Callable[[click.Command], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVEBENCH_DEBUG", "1")
    run_command(raising(ValueError("deep")))
    assert shell.main(["run"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith("servebench: internal error: ValueError: deep\n")


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (ExitCode.INVALID, 3), (4, 4)])
def test_what_a_command_returns_is_the_exit_code(
    returned: int | None, code: int, run_command: Callable[[click.Command], None]
) -> None:
    run_command(click.Command("run", callback=lambda: returned))
    assert shell.main(["run"]) == code


def test_a_command_may_leave_through_its_context(run_command: Callable[[click.Command], None]) -> None:
    run_command(click.Command("run", callback=lambda: click.get_current_context().exit(3)))
    assert shell.main(["run"]) == 3


@click.command()
@options.connection_options
@options.set_option
@options.workers_option
@options.keep_raw_option
@options.tokenizer_option
@options.output_options
def probe(**values: object) -> None:
    for name, value in sorted(values.items()):
        click.echo(f"{name}={value}")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["rnu"], ['No such command "rnu"', 'did you mean "run"?', 'see "servebench --help"']),
        (["nothing-like-it"], ['No such command "nothing-like-it"; see']),
        (["--verison"], ['No such option "--verison"', 'did you mean "--version"?']),
        (["run", "--endpiont", "sim"], ['"--endpiont"', 'did you mean "--endpoint"?', 'see "servebench run --help"']),
        (["run", "--no-such"], ['No such option "--no-such"', "servebench run --help"]),
        (["run", "surplus"], ["unexpected extra argument", "surplus"]),
        (["run", "--set"], ["'--set' requires an argument"]),
        (["run", "-e", "sims"], ['"sims" is neither vllm nor sim nor a URL', 'did you mean "sim"?']),
        (["run", "-e", "127.0.0.1:8000"], ['did you mean "http://127.0.0.1:8000"']),
        (["run", "-e", "ftp://host"], ["must be http or https, not ftp"]),
        (["run", "-e", "http://host:70000"], ["not a URL: Port out of range"]),
        (["run", "-e", "http://[::1"], ["not a URL"]),
        (["run", "-e", "http:///v1"], ["no host"]),
        (["run", "-e", "http://host/?key=1"], ["without a query"]),
        (["run", "--workers", "0"], ['"0" is neither auto nor a whole number from 1']),
        (["run", "--workers", "1.5"], ["neither auto nor"]),
        (["run", "--ca-file", "/no/such.pem"], ["/no/such.pem", "does not exist"]),
        (["run", "--vllm-python", "/no/python"], ["/no/python", "does not exist"]),
        (["run", "--api-key-env", "NO_SUCH_KEY"], ["the environment variable NO_SUCH_KEY is not set"]),
    ],
)
def test_wrong_usage_is_one_line_with_the_way_on(
    arguments: list[str],
    parts: list[str],
    run_command: Callable[[click.Command], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_command(probe)
    assert shell.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("servebench: error: ")
    assert shown.err.count("\n") == 1
    assert all(part in shown.err for part in parts), shown.err


@pytest.mark.parametrize("secret", ["sk-abc123", "abc123secret"])
def test_a_key_given_in_place_of_its_variable_is_not_shown(
    secret: str, run_command: Callable[[click.Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run_command(probe)
    assert shell.main(["run", "--api-key-env", secret]) == 2
    assert secret not in capsys.readouterr().err


def test_a_password_in_the_url_is_refused_and_not_shown(
    run_command: Callable[[click.Command], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run_command(probe)
    assert shell.main(["run", "-e", "https://me:hunter2@host"]) == 2
    shown = capsys.readouterr().err
    assert "--api-key-env" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "endpoint=vllm"),
        ([], "workers=None"),
        (["-e", "http://host:8000/v1/"], "endpoint=http://host:8000"),
        (["-e", "https://host/team/v1"], "endpoint=https://host/team"),
        (["-w", "3"], "workers=3"),
        (["-s", "a=1", "--set", "b=2"], "overrides=('a=1', 'b=2')"),
        (["--json"], "as_json=True"),
    ],
)
def test_right_values_arrive_converted(
    arguments: list[str],
    line: str,
    run_command: Callable[[click.Command], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_command(probe)
    assert shell.main(["run", *arguments]) == 0
    assert line in capsys.readouterr().out.splitlines()


def test_a_reader_that_went_away_ends_it_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "servebench", "--help"], stdout=gone, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (shell.READER_GONE, "")


def test_closed_standard_streams_do_no_harm() -> None:
    script = 'exec "$0" -m servebench --version >&- 2>&-'
    assert subprocess.run(["/bin/sh", "-c", script, sys.executable], check=False).returncode == 0
