"""The wait for a launched vLLM: it must be our own child, and answer a real request for the right model."""

from __future__ import annotations

import http.client
import json
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from servebench.clock import monotonic_ns, realtime_ns
from servebench.engine.interrupted import LaunchInterruptedError
from servebench.errors import EngineError

POLL_S = 0.05
ANSWER_LIMIT_S = 30.0

Progress = Callable[[str], None]


@dataclass(slots=True)
class Launch:
    """A launch under way: how to ask after the child, and the instants so far.

    Attributes:
        alive, why_dead, tail: see `VllmServer`.
        should_stop: whether to give up at once.
        timeout: seconds from the launch to the first token.
        progress: told what is awaited.
        realtime, monotonic: ns of the named instants.
    """

    alive: Callable[[], bool]
    why_dead: Callable[[], str]
    tail: Callable[[], str]
    should_stop: Callable[[], bool]
    timeout: float
    progress: Progress
    realtime: dict[str, int] = field(default_factory=dict)
    monotonic: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mark("launch")

    def mark(self, instant: str) -> None:
        """Record that `instant` is now."""
        self.realtime[instant], self.monotonic[instant] = realtime_ns(), monotonic_ns()

    def seconds(self, start: str, end: str) -> float:
        """Return the time between two instants."""
        return (self.monotonic[end] - self.monotonic[start]) / 1e9

    def check(self) -> None:
        """Raise if it makes no sense to wait any longer."""
        if self.should_stop():
            raise LaunchInterruptedError("the start of vLLM was interrupted")
        if not self.alive():
            raise EngineError(self.why_dead())
        if monotonic_ns() - self.monotonic["launch"] > self.timeout * 1e9:
            raise EngineError(f"vLLM was not ready within {self.timeout:g} s; its last lines:\n{self.tail()}")

    def summary(self) -> dict[str, Any]:
        """Return all instants (ns, realtime) and the durations in seconds."""
        return {
            **{f"{name}_ns": instant for name, instant in self.realtime.items()},
            "ready_s": self.seconds("launch", "ready"),
            "first_token_s": self.seconds("launch", "first_token"),
            "first_request_s": self.seconds("first_request", "first_token"),
        }


def await_ready(launch: Launch, url: str, model: str, nonce: str) -> tuple[str | None, dict[str, Any]]:
    """Wait for the server at `url`; return its version and the cold start's instants.

    Args:
        launch: watched throughout.
        url: where it will listen.
        model: the name to ask for.
        nonce: a name that only our child lists.

    Raises:
        EngineError, LaunchInterruptedError: see `launch_vllm`.
    """
    launch.progress("starting vLLM")
    _await_port(launch, url)
    launch.mark("listening")
    while _ask(launch, url, "GET", "/health")[0] != 200:
        time.sleep(POLL_S)
    launch.mark("ready")
    _require_own(launch, url, nonce)
    launch.progress("waiting for the first token")
    launch.mark("first_request")
    _require_token(launch, url, model)
    launch.mark("first_token")
    return _version(launch, url), launch.summary()


def _await_port(launch: Launch, url: str) -> None:
    address = (urlsplit(url).hostname, urlsplit(url).port)
    while True:
        launch.check()
        try:
            socket.create_connection(address, POLL_S).close()
        except OSError:
            time.sleep(POLL_S)
        else:
            return


def _require_own(launch: Launch, url: str, nonce: str) -> None:
    status, body = _ask(launch, url, "GET", "/v1/models")
    listed = [entry.get("id") for entry in _json(body).get("data", []) if isinstance(entry, dict)]
    if status != 200 or nonce not in listed:
        raise EngineError(
            f"another server answers at {url}, where vLLM should: its port was taken meanwhile; try again"
        )


def _require_token(launch: Launch, url: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0})
    status, answer = _ask(launch, url, "POST", "/v1/completions", body)
    usage = _json(answer).get("usage")
    if status != 200 or not isinstance(usage, dict) or usage.get("completion_tokens") != 1:
        text = answer[:300].decode(errors="replace")
        raise EngineError(f'vLLM did not answer a one-token request for "{model}": status {status}, {text}')


def _version(launch: Launch, url: str) -> str | None:
    version = _json(_ask(launch, url, "GET", "/version")[1]).get("version")
    return version if isinstance(version, str) else None


def _ask(launch: Launch, url: str, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    """Send one request and return status and body; the child is watched while the answer is awaited."""
    launch.check()
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=ANSWER_LIMIT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        while not select.select([connection.sock], [], [], POLL_S)[0]:
            launch.check()
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        time.sleep(1.0)  # a server that dies takes its connections along first
        launch.check()
        raise EngineError(f"vLLM broke off {method} {path}: {error}; its last lines:\n{launch.tail()}") from None
    finally:
        connection.close()


def _json(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
