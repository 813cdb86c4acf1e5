"""Runs a server under nsys and ends both. Executed as a file: ``python supervise.py PIDFILE NSYS ARGUMENTS...``.

nsys is no good parent: told to end, `nsys launch` passes the signal on and is gone at once, while the server, in a
session of its own, goes on for as long as it likes; and `nsys profile` must outlive the server to write its reports. So
SIGTERM (also what the kernel sends when our parent dies) ends the server, whose process id is in PIDFILE; nsys ends by
itself then. nsys runs in a session of its own, so that whoever kills our group does not cut its reports short.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

PATIENCE_S = 20.0  # of the server with SIGTERM: less than the guard's that waits for us
WRITING_S = 600.0  # of nsys with its reports, once the server has ended
# The shell writes its process id and becomes the server: the only way to know it whatever nsys puts between us.
SHELL = ("/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"')


def server_pid(pid_file: str) -> int | None:
    """The server's process id; None before it was started."""
    try:
        with open(pid_file, encoding="ascii") as file:  # noqa: PTH123 - pathlib would cost the start-up more than all else
            return int(file.read())
    except (OSError, ValueError):
        return None


def signal_group(pid: int | None, number: int) -> None:
    """Send a signal to the server's process group, if it still has one of its own."""
    with suppress(ProcessLookupError, PermissionError):
        if pid is not None and os.getpgid(pid) != os.getpgid(0):
            os.killpg(os.getpgid(pid), number)


def end(nsys: subprocess.Popen[bytes], pid_file: str) -> None:
    """End the server with patience, then let nsys finish."""
    pid = server_pid(pid_file)
    if pid is None:  # nsys is still at its own start
        nsys.terminate()
    with suppress(ProcessLookupError):
        if pid is not None:
            os.kill(pid, signal.SIGTERM)  # its children are its own business
    try:
        nsys.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        signal_group(server_pid(pid_file), signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        nsys.wait(WRITING_S)
    nsys.kill()


def main(pid_file: str, *command: str) -> int:
    """Run `command`; return its exit code, or 128 + the number of the signal that ended it."""
    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: told.set())
    with suppress(FileNotFoundError):
        os.unlink(pid_file)  # noqa: PTH108
    nsys = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while nsys.poll() is None:
        if told.wait(0.1):
            end(nsys, pid_file)
    signal_group(server_pid(pid_file), signal.SIGKILL)  # where nsys died and the server did not
    code = nsys.wait()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
