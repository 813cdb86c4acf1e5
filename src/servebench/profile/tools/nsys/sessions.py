"""Interactive sessions of nsys: a server launched in one, captured any number of times while it runs on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from servebench.profile.tool import ProfileError
from servebench.profile.tools.nsys.command import run_nsys

QUICK_S = 60.0  # for what takes a fraction of a second
GOING_S = 15.0  # a session goes by itself within seconds of its server's end


class Session:
    """One session, by the name that `nsys launch --session-new` gives it.

    Attributes:
        nsys: the program.
        name: of the session.
        environment: variables that all commands of a session must share, see `Session.commands`.
    """

    def __init__(self, nsys: Path, name: str, environment: dict[str, str]) -> None:
        self.nsys = nsys
        self.name = name
        self.environment = environment

    @classmethod
    def new(cls, nsys: Path, environment: dict[str, str]) -> Session:
        """A session that nobody has: a name stays taken for seconds after its server has ended."""
        return cls(nsys, f"servebench-{secrets.token_hex(4)}", environment)

    def state(self) -> str | None:
        """What nsys calls it: "Launched", "Collection", ...; None where there is no such session."""
        for line in self._run(["sessions", "list"]).splitlines():
            fields = line.split()
            if len(fields) >= 4 and line.rstrip().endswith(f" {self.name}"):
                return fields[2]
        return None

    def must_be_idle(self) -> None:
        """Raise ProfileError unless its server runs and nothing collects: `nsys start` takes a dead one, too."""
        state = self.state()
        if state is None:
            raise ProfileError(f"nsys has no session {self.name}: did the server end, or is its TMPDIR another?")
        if state != "Launched":
            raise ProfileError(f"the session {self.name} of nsys is in state {state}, not Launched")

    def start(self, output: Path, options: Sequence[str]) -> None:
        """Begin to collect into `output` (without its ending). Raises ProfileError."""
        self.must_be_idle()
        path = str(output).replace("%", "%%")  # nsys has patterns
        arguments = ["start", f"--session={self.name}", f"--output={path}", "--force-overwrite=true", *options]
        with self._cancelled_on_failure():
            self._run(arguments)

    def stop(self, limit_s: float) -> str:
        """End the collection; returns what nsys says of the report, which it calls a success even when there is none.

        Raises:
            ProfileError: it failed or took too long.
        """
        with self._cancelled_on_failure():
            return run_nsys(self.nsys, ["stop", f"--session={self.name}"], limit_s, self.environment)

    def shut_down(self) -> None:
        """End the session and the server in it, where they are still there; return when they have gone."""
        deadline = time.monotonic() + GOING_S
        with suppress(ProfileError):
            while self.state() is not None and time.monotonic() < deadline:
                self._run(["shutdown", f"--session={self.name}", "--kill=sigterm"])
                time.sleep(0.2)

    @contextmanager
    def _cancelled_on_failure(self) -> Iterator[None]:
        """Leave no collection half begun or half ended, so that there can be another."""
        try:
            yield
        except ProfileError:
            with suppress(ProfileError):
                self._run(["cancel", f"--session={self.name}"])
            raise

    def _run(self, arguments: Sequence[str]) -> str:
        return run_nsys(self.nsys, arguments, QUICK_S, self.environment)
