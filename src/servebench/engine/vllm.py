"""Launches a local vLLM, waits until it really serves, and ends it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from servebench.engine import guard
from servebench.engine.interrupted import LaunchInterruptedError
from servebench.engine.tiny_model import NAME as TINY
from servebench.engine.tiny_model import ensure_tiny_model, has_random_weights
from servebench.engine.vllm_defaults import default_env, default_flags, inspect_build
from servebench.engine.vllm_flags import Scalar, flag_arguments
from servebench.engine.vllm_log import explain_death, last_lines, read_log
from servebench.engine.vllm_ready import Launch, Progress, await_ready
from servebench.errors import EngineError

__all__ = ["LaunchInterruptedError", "Settings", "VllmServer", "VllmSettings", "launch_vllm"]

HOST = "127.0.0.1"


class Settings(Protocol):
    """What to launch; `scenario.engine.VllmEngine` and `VllmSettings` are such."""

    @property
    def model(self) -> str: ...
    @property
    def flags(self) -> Mapping[str, Scalar]: ...
    @property
    def env(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """Settings without a scenario.

    Attributes:
        model: a name or a folder for vLLM, or "tiny-random".
        flags: of ``vllm serve``, without the leading dashes.
        env: environment variables.
    """

    model: str = TINY
    flags: Mapping[str, Scalar] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class VllmServer:
    """A vLLM that is our own child. Ends with `stop`, with the `with` block, and when this process dies.

    Attributes:
        url: base URL, on loopback.
        model: the name that it serves the model by.
        pid: of vLLM's front end, the leader of its own process group.
        version: its own word for it; None if it does not say.
        random_weights: whether the model's folder is marked so.
        command: what was started.
        flags: those of the command, defaults included.
        env: the variables that were set for it: the defaults, the scenario's, and what the user's environment made of
            the defaults.
        cold_start: realtime ns of `launch_ns`, `listening_ns` (the port accepts), `ready_ns` (/health answers),
            `first_request_ns` (a one-token request is sent), `first_token_ns` (answered); and in seconds `ready_s` and
            `first_token_s` from the launch, `first_request_s` for that request.
        log_path: its output.
    """

    url: str
    model: str
    pid: int
    command: list[str]
    flags: dict[str, Scalar]
    env: dict[str, str]
    log_path: Path
    random_weights: bool
    version: str | None = None
    cold_start: dict[str, Any] = field(default_factory=dict)
    _guard: subprocess.Popen[bytes] = field(repr=False, kw_only=True)

    def alive(self) -> bool:
        """Whether vLLM still runs."""
        return self._guard.poll() is None

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        return "\n".join(last_lines(read_log(self.log_path), lines))

    def why_dead(self) -> str:
        """Say why it ended, with the last lines of its log; only after `alive()` was false."""
        code = self._guard.poll()
        assert code is not None
        return explain_death(read_log(self.log_path), self.log_path, code)

    def stop(self) -> None:
        """End it: SIGTERM, after 30 s SIGKILL to the whole group. Returns when it has ended; harmless if it has."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            self._guard.wait(guard.PATIENCE_S + 10.0)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def __enter__(self) -> VllmServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def launch_vllm(
    settings: Settings,
    python: Path,
    log_path: Path,
    timeout: float = 600.0,
    should_stop: Callable[[], bool] | None = None,
    port: int = 0,
    progress: Progress | None = None,
    prefix: Sequence[str] = (),
) -> VllmServer:
    """Start vLLM on loopback and return once it has answered a real request.

    Ready means: the child lives, and the server at its port lists a name that only this child was given and answers
    a one-token request for the model. No other server can be taken for it.

    Args:
        settings: model, flags and environment.
        python: of the environment that has vLLM, see `locate.find_vllm_python`.
        log_path: the file for its output, made or appended to.
        timeout: seconds from the launch to the first token.
        should_stop: asked at least every 0.1 s; true ends the launch.
        port: 0 takes a free one.
        progress: told what is awaited, once for each stage.
        prefix: put before the command: a profiler's launcher, which must hand SIGTERM on and end with its child.

    Raises:
        EngineError: it ended, with the reason and its last lines; or it was not ready in time.
        UsageError: a flag that servebench sets itself.
        LaunchInterruptedError: `should_stop` said so; nothing is left running.
    """
    should_stop = should_stop or _never
    progress = progress or _silent
    server, nonce = _start(settings, python, log_path, port, should_stop, progress, prefix)
    launch = Launch(server.alive, server.why_dead, server.tail, should_stop, timeout, progress)
    try:
        server.version, server.cold_start = await_ready(launch, server.url, server.model, nonce)
    except BaseException:
        server.stop()
        raise
    return server


def _start(
    settings: Settings,
    python: Path,
    log_path: Path,
    port: int,
    should_stop: Callable[[], bool],
    progress: Progress,
    prefix: Sequence[str],
) -> tuple[VllmServer, str]:
    """Start the process; return it with the second name of its model, which is nobody else's."""
    tiny, build = settings.model == TINY, inspect_build(python)
    flags = {**default_flags(build.cpu, tiny), **settings.flags}
    arguments = flag_arguments(flags)
    if tiny:
        progress("making sure of the model tiny-random")
    folder = str(ensure_tiny_model(python, should_stop)) if tiny else settings.model
    nonce = f"{settings.model}-{secrets.token_hex(6)}"
    port = _take_port(port)
    command = [*prefix, str(python), *build.arguments, folder, "--served-model-name", settings.model, nonce]
    command += ["--host", HOST, "--port", str(port), *arguments]
    env = _environment(default_env(build.cpu, tiny, flags), settings.env)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    guarding, pid = _start_guarded(command, env, python, log_path)
    server = VllmServer(
        url=f"http://{HOST}:{port}",
        model=settings.model,
        pid=pid,
        command=command,
        flags=flags,
        env=env,
        log_path=log_path,
        random_weights=has_random_weights(folder),
        _guard=guarding,
    )
    return server, nonce


def _environment(defaults: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set: the scenario's, over the user's, over the defaults."""
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | dict(ours)


def _start_guarded(
    command: list[str], env: Mapping[str, str], python: Path, log_path: Path
) -> tuple[subprocess.Popen[bytes], int]:
    inherited = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # its ninja and its compilers, first
    guarding = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(log_path), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for servebench, which then ends vLLM in its own time
        env={**inherited, "PATH": path, **env},
    )
    assert guarding.stdout is not None
    with guarding.stdout as output:
        told = output.readline()
    if not told:
        guarding.communicate()
        raise EngineError(f"cannot start {command[0]}: {' '.join(last_lines(read_log(log_path), 1))}")
    return guarding, int(told)


def _take_port(port: int) -> int:
    """Return `port` if it is free, for 0 a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise EngineError(f"cannot listen on {HOST}:{port}: {error.strerror}") from None
        number: int = probe.getsockname()[1]
        return number


def _never() -> bool:
    return False


def _silent(_: str) -> None:
    return None
