"""The shell of the command line: help, version, lazy loading, start-up time."""

from __future__ import annotations

import importlib
import statistics
import subprocess
import sys
import time

import click
import pytest

from servebench import __version__
from servebench.cli.main import COMMANDS, main

HEAVY = ("numpy", "pyarrow", "scipy", "httpx", "pydantic", "rich", "asyncio", "msgspec", "yaml")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "servebench", *arguments], capture_output=True, text=True, check=False)


def test_version_is_the_package_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"servebench {__version__}\n", "")


def test_help_lists_every_command_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, text in COMMANDS.items():
        assert f"{name} {text}" in shown


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from servebench.cli.main import main; assert main(['--help']) == 0;"
        f"print('loaded', *(m for m in {HEAVY} if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["loaded"]


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_starts_in_under_150_ms_beyond_the_interpreter(flag: str) -> None:
    def seconds(*command: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        return time.perf_counter() - start

    ours = statistics.median(seconds("-m", "servebench", flag) for _ in range(5))
    bare = statistics.median(seconds("-c", "pass") for _ in range(5))
    assert ours - bare < max(0.150, 10 * bare), f"{ours * 1e3:.0f} ms against {bare * 1e3:.0f} ms of a bare interpreter"


def test_without_arguments_shows_the_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Usage: servebench" in shown.err


def commands(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    found = [(path, command)]
    for name, child in getattr(command, "commands", {}).items():
        found += commands(child, f"{path} {name}")
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = importlib.import_module(f"servebench.cli.{name}").command
    assert main([name, "--help"]) == 0
    assert f"Usage: servebench {name}" in capsys.readouterr().out
    for path, each in commands(command, name):
        assert each.help, f"{path} has no help"
        silent = [p.opts for p in each.params if isinstance(p, click.Option) and not p.help]
        assert not silent, f"{path}: options without help: {silent}"
