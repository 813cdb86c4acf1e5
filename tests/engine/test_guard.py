"""The guard by itself: exit codes, the log, and the end that comes with the pipe's."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from servebench.engine import guard


def start(log: Path, *command: str) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-I", "-S", guard.__file__, str(log), *command]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9)])
def test_it_exits_as_its_command_does(tmp_path: Path, command: str, code: int) -> None:
    with start(tmp_path / "log", "sh", "-c", command) as guarding:
        assert guarding.wait(10) == code


def test_output_goes_to_the_log_after_what_is_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with start(log, "sh", "-c", "echo out; echo err >&2") as guarding:
        assert guarding.wait(10) == 0
        assert guarding.stdout is not None
        assert int(guarding.stdout.read()) > 1
    assert log.read_text() == "before\nout\nerr\n"


def test_the_closed_pipe_ends_the_command_with_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with start(log, "sh", "-c", "trap 'echo told; exit 3' TERM; echo up; while :; do sleep 0.02; done") as guarding:
        while "up" not in (log.read_text() if log.exists() else ""):
            time.sleep(0.01)
        assert guarding.stdin is not None
        guarding.stdin.close()
        assert guarding.wait(10) == 3
    assert log.read_text() == "up\ntold\n"


def test_signals_to_the_guard_do_not_end_it_and_are_not_passed_on(tmp_path: Path) -> None:
    with start(tmp_path / "log", "sleep", "30") as guarding:
        assert guarding.stdout is not None
        guarding.stdout.readline()
        guarding.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            guarding.wait(0.3)
        guarding.communicate(timeout=10)
        assert guarding.returncode == 128 + 15


def test_a_command_that_is_not_there_is_told_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with start(log, str(tmp_path / "missing")) as guarding:
        assert guarding.communicate(timeout=10)[0] == b""
        assert guarding.returncode == 1
    assert "No such file or directory" in log.read_text()
