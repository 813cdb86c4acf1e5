"""The server under nsys ends when its supervisor is told to, whatever nsys does; a script plays nsys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from servebench.profile.tools.nsys import supervise

# As `nsys launch`: the server gets a session of its own, and ours waits for it; told to end, it is gone at once
NSYS = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:], start_new_session=True).wait() % 256)"
OBEDIENT = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(60)"
)
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


class Supervised:
    """A supervisor, a nsys and a server, as processes."""

    def __init__(self, folder: Path, server: str) -> None:
        self.pid_file = folder / "server.pid"
        nsys = (sys.executable, "-S", "-c", NSYS)
        run = (*supervise.SHELL, str(self.pid_file), sys.executable, "-S", "-c", server)
        command = (sys.executable, "-I", "-S", supervise.__file__, str(self.pid_file), *nsys, *run)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"up\n"
        self.server = int(self.pid_file.read_text())

    def nsys(self) -> int:
        return parent_of(self.server)

    def close(self) -> None:
        for pid in (self.server, self.process.pid):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


@pytest.fixture
def obedient(tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path, OBEDIENT)
    yield supervised
    supervised.close()


def test_sigterm_ends_the_server_and_its_exit_code_is_passed_on(obedient: Supervised) -> None:
    nsys = obedient.nsys()
    obedient.process.terminate()
    assert obedient.process.wait(20) == 7
    assert gone(obedient.server)
    assert gone(nsys)


def test_a_server_that_ends_by_itself_ends_all(obedient: Supervised) -> None:
    os.kill(obedient.server, signal.SIGTERM)
    assert obedient.process.wait(20) == 7


def test_a_server_whose_nsys_was_killed_does_not_stay(obedient: Supervised) -> None:
    os.kill(obedient.nsys(), signal.SIGKILL)
    assert obedient.process.wait(20) == 128 + signal.SIGKILL
    assert gone(obedient.server)


def test_a_deaf_server_is_killed_when_patience_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "PATIENCE_S", 0.3)
    pid_file = tmp_path / "server.pid"
    command = [sys.executable, "-S", "-c", NSYS, *supervise.SHELL, str(pid_file), sys.executable, "-S", "-c", DEAF]
    nsys = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert nsys.stdout is not None
    with nsys.stdout as output:
        assert output.readline() == b"up\n"
    supervise.end(nsys, str(pid_file))
    assert nsys.wait(20) != 0
    assert gone(int(pid_file.read_text()))


def test_the_servers_pid_is_unknown_before_it_starts(tmp_path: Path) -> None:
    assert supervise.server_pid(str(tmp_path / "none")) is None
    (tmp_path / "empty").touch()
    assert supervise.server_pid(str(tmp_path / "empty")) is None
