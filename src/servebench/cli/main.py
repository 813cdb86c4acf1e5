"""The `servebench` command: a group whose commands are loaded when invoked, and the one place where errors end."""

from __future__ import annotations

import importlib
import os
import select
import sys
import traceback
from collections.abc import Sequence

import click

from servebench import __version__
from servebench.cli.output import PROGRAM, one_line, print_error
from servebench.errors import ExitCode, ServebenchError, did_you_mean

READER_GONE = 141  # 128 + SIGPIPE, what a shell reports of any program whose reader went away

COMMANDS = {
    "run": "Run a scenario against a server; print its figures and whether they can be trusted.",
    "profile": "Capture prefill and decode windows of a server; say what they spend their time on.",
    "analyze": "Say what a profiler's file shows: busy and idle time, steps, kernels, what to try next.",
    "report": "Compute the report of a run directory again, offline.",
    "export": "Write a run as CSV, Parquet, an HDR log, vLLM's JSON, Prometheus text or Markdown.",
    "sweep": "Run a scenario over a range of settings; a table and curves.",
    "capacity": "Search the highest rate at which the scenario's SLO holds, as a bracket.",
    "plan": "From measured capacity and a demand to replicas, GPUs and cost.",
    "ab": "Compare settings of a server by interleaved, paired runs; write an optimisation record.",
    "compare": "Compare runs that exist already.",
    "gate": "Judge runs against a baseline, for CI: exit 4 on a regression.",
    "scenario": "List, check and show scenarios.",
    "serve": "Start the local vLLM that a run would start, and leave it up.",
    "sim": "Start the simulated engine alone.",
    "telemetry": "Serve this machine's GPU telemetry to a run on another machine.",
    "selftest": "Measure this machine's own stamp error, lateness and token rate.",
}


class LazyGroup(click.Group):
    """A group that knows its commands from `COMMANDS` and imports one only to invoke it, so that help stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import `servebench.cli.<name>` and return its `command`; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"servebench.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` name; an unknown one is answered with the nearest right name."""
        if args[0] not in COMMANDS:
            raise click.UsageError(f'No such command "{args[0]}"{did_you_mean(args[0], COMMANDS)}', ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the static table instead of importing each one for its help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 good, 1 internal error, 2 usage or unreachable server, 3 INVALID result, "
    "4 an SLO or gate failed, 130 interrupted (results kept).",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def cli() -> None:
    """Load-test LLM servers, with numbers that can be trusted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own by default) and return its exit code, an `ExitCode` or 141."""
    try:
        code = _invoke(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:  # noqa: BLE001 - the last resort, which says so
        return _explain(_innermost(error))
    return code


def _invoke(argv: Sequence[str]) -> int:
    """Parse and invoke. Not `cli.main`: that turns EOFError into an abort and any EPIPE into exit 1."""
    try:
        with cli.make_context(PROGRAM, list(argv)) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return int(result) if isinstance(result, int) else ExitCode.GOOD


def _explain(error: BaseException) -> int:
    """Say in one line what ended the command, and return the exit code for it."""
    if _reader_gone():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail again at interpreter exit
        return READER_GONE
    if isinstance(error, KeyboardInterrupt | click.Abort):
        print_error("interrupted", kind="note")
        return ExitCode.INTERRUPTED
    if isinstance(error, ServebenchError):
        print_error(str(error))
        return error.exit_code
    if isinstance(error, click.ClickException):
        print_error(_usage_text(error))
        return ExitCode.USAGE
    return _internal(error)


def _internal(error: BaseException) -> int:
    """Report an error that nobody foresaw: a defect of servebench, not of its user."""
    hint = f" (set {PROGRAM.upper()}_DEBUG=1 for the traceback)"
    if os.environ.get(f"{PROGRAM.upper()}_DEBUG"):
        traceback.print_exception(error)
        hint = ""
    print_error(f"{type(error).__name__}: {one_line(str(error))}{hint}", kind="internal error")
    return ExitCode.INTERNAL


def _usage_text(error: click.ClickException) -> str:
    """One line for a click error: the message, the nearest option's name, and where the help is."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return f"which command?\n\n{error.format_message()}"
    text = one_line(error.format_message())
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context is not None:
        names = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        text = f'No such option "{error.option_name}"{did_you_mean(error.option_name, names)}'
    return f'{text.rstrip(".")}; see "{context.command_path} --help"' if context is not None else text


def _innermost(error: BaseException) -> BaseException:
    """Unwrap task groups: a lone error inside an exception group is the error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _reader_gone() -> bool:
    """Whether stdout is a pipe that nobody reads any more (asked of the pipe: a worker's EPIPE is another matter)."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
