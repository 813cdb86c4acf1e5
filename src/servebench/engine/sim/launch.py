"""Starting the simulated engine in a process of its own."""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from servebench.engine.sim.settings import SimSettings
from servebench.errors import EngineError

START_LIMIT_S = 20.0
STOP_LIMIT_S = 5.0


class SimProcess:
    """A running simulated engine; a context manager that stops it.

    Attributes:
        url: its base URL, such as `http://127.0.0.1:40123`.
    """

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.url = url
        self._process = process

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status if it has ended, else None."""
        return self._process.poll()

    def stop(self, patience: float = STOP_LIMIT_S) -> int:
        """End it by SIGTERM, and by SIGKILL after `patience` seconds; return its exit status. May be called again."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return self._process.wait()

    def __enter__(self) -> SimProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def start_sim(
    settings: object,
    model: str,
    port: int = 0,
    log_path: str | Path | None = None,
    host: str = "127.0.0.1",
    step_log: str | Path | None = None,
) -> SimProcess:
    """Start the simulated engine and return when it answers `/health`.

    Args:
        settings: a mapping, a scenario's `engine.sim`, or `SimSettings`.
        model: the model name it serves.
        port: 0 takes a free one.
        log_path: a file for its standard error.
        step_log: a file for one JSON line a step: start and end (ns), prefill tokens, decode sequences, waiting.

    Raises:
        UsageError: the settings are wrong.
        EngineError: it died or did not answer within 20 s; with its last lines.
    """
    orders = {
        "settings": SimSettings.of(settings).to_dict(),
        "model": model,
        "host": host,
        "port": port,
        "step_log": None if step_log is None else str(Path(step_log).absolute()),
    }
    with Path(log_path).open("w+b") if log_path is not None else tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "servebench.engine.sim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            process_group=0,  # Ctrl-C in a terminal is for the parent, which lets requests in flight end first
        )
        running = SimProcess(process, "")
        try:
            running.url = _first_line(process, json.dumps(orders).encode() + b"\n")
            _expect_healthy(running.url)
        except (OSError, http.client.HTTPException) as error:
            status = running.stop()
            raise EngineError(f"the simulated engine did not start ({error}; exit {status}): {_tail(log)}") from None
        except BaseException:
            running.stop()
            raise
    return running


def _first_line(process: subprocess.Popen[bytes], orders: bytes) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(orders)
    process.stdin.flush()
    readable, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
    line = process.stdout.readline() if readable else b""
    if not line.endswith(b"\n"):
        raise OSError("it ended before it listened" if readable else f"not listening after {START_LIMIT_S:g} s")
    return line.decode("ascii").strip()


def _expect_healthy(url: str) -> None:
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=START_LIMIT_S)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    finally:
        connection.close()
    if status != 200:
        raise OSError(f"/health answered {status}")


def _tail(log: IO[bytes], lines: int = 5) -> str:
    log.seek(0)
    text = log.read().decode("utf-8", "replace").strip().splitlines()
    return " | ".join(text[-lines:]) or "no output"
