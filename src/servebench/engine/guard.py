"""Runs a server that must not outlive us. Executed as a file: ``python guard.py LOG COMMAND...``.

The guard starts COMMAND in a session of its own, with its output in the file LOG, prints its process id, and ends it
(SIGTERM, after `PATIENCE_S` SIGKILL to the whole process group) as soon as standard input is closed: on purpose, or
because the process that held the other end died, however it died. It exits as COMMAND did.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

PATIENCE_S = 30.0
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent, which is the guard, dies: that one has no guard."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the child's process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def end_when_closed(child: subprocess.Popen[bytes]) -> None:
    """Wait until standard input is closed, then end the child with patience."""
    while os.read(0, 4096):
        pass
    child.terminate()
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        kill_group(child)


def main(log: str, *command: str) -> int:
    """Start, guard and end `command`; return its exit code, or 128 + the number of the signal that ended it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the pipe alone tells the end; SIG_IGN would be inherited
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 2)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=die_with_parent,  # no threads yet
    )
    os.write(1, b"%d\n" % child.pid)
    os.close(1)
    threading.Thread(target=end_when_closed, args=(child,), daemon=True).start()
    code = child.wait()
    kill_group(child)  # a helper process of a server that crashed
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))
