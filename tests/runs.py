"""What tests of whole runs share: scenarios in one line, a scripted OpenAI server, and the command as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from servebench.record.rundir import RunDir
from servebench.report import write_reports
from servebench.run import RunOptions, run
from servebench.scenario import Scenario, load_scenario
from servebench.testing import DONE, Events, Script, ScriptedServer, json_response, sse, sse_response, usage

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
EVENTS = Events("chat")


def write_scenario(folder: Path, load: dict[str, Any], **more: Any) -> Path:
    """A scenario file with 20 tokens in and 10 out; `more` are further top-level keys."""
    path = folder / "scenario.yaml"
    document = {"servebench": 1, "name": "t", "workload": {"input_tokens": 20, "output_tokens": 10}, "load": load}
    path.write_text(yaml.safe_dump(document | more))
    return path


def scenario(folder: Path, load: dict[str, Any], **more: Any) -> Scenario:
    return load_scenario(write_scenario(folder, load, **more))


@dataclass
class Result:
    """A finished run with its report."""

    rundir: RunDir
    summary: dict[str, Any]

    @classmethod
    def of(cls, rundir: RunDir) -> Result:
        return cls(rundir, write_reports(rundir))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.rundir.requests().to_pylist()

    @property
    def chunks(self) -> pa.Table:
        return self.rundir.chunks()

    @property
    def outcomes(self) -> dict[str, int]:
        """Those that occurred, and how many were planned."""
        return {name: n for name, n in self.summary["outcomes"].items() if n and name not in ("sent", "failed")}

    @property
    def verdict(self) -> str:
        return self.summary["verdict"]["status"]

    def code(self, name: str) -> dict[str, Any]:
        return next(code for code in self.summary["verdict"]["codes"] if code["code"] == name)

    def column(self, name: str) -> list[Any]:
        return self.rundir.requests()[name].to_pylist()


def execute(scenario: Scenario, url: str, out: Path, **options: Any) -> Result:
    """Run in this process (the workers have theirs)."""
    return Result.of(run(scenario, RunOptions(endpoint=url, out=out, **options)))


def tokens(count: int) -> Script:
    """An answer of so many tokens at once, with its usage."""
    texts = [sse(EVENTS.text(" tok")) for _ in range(count)]
    return sse_response([*texts, sse(EVENTS.finish("length")), sse(EVENTS.usage(20, count)), DONE])


class OpenAI(ScriptedServer):
    """Answers what is asked before the load in a regular way, and each request of the load as `answer` says.

    Attributes:
        load: the requests of the load, in order of arrival.
    """

    def __init__(self, answer: Callable[[int], Script]) -> None:
        super().__init__(self._answer)
        self._of_load = answer
        self.load: list[Any] = []

    def _answer(self, seen: Any) -> Script:
        if seen.path == "/v1/models":
            return json_response(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        if seen.path != EVENTS.path:
            return json_response(404, {"error": "no such path"})
        body = seen.json()
        if body.get("stream"):
            self.load.append(seen)
            return self._of_load(len(self.load) - 1)
        words = len(body["messages"][0]["content"].split())
        return json_response(200, EVENTS.whole("tok", usage(words + 5, 1)))


def most_at_once(rows: list[dict[str, Any]]) -> int:
    """Largest number of requests between dispatch and end, exact from their instants."""
    steps = [(row["dispatched_ns"], 1) for row in rows] + [(row["end_ns"], -1) for row in rows]
    level = most = 0
    for _, step in sorted(steps):
        level += step
        most = max(most, level)
    return most


class Command:
    """`servebench ARGUMENTS` as a process, its output in files, so that it can be watched and hit by signals."""

    def __init__(self, folder: Path, *arguments: str | Path, env: dict[str, str] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._out, self._err = folder / "stdout", folder / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "servebench", *map(str, arguments)],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env=os.environ | (env or {}),
                start_new_session=True,  # its session tells its processes from all others
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def wait(self, timeout: float = 40.0) -> int:
        return self.process.wait(timeout)

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def processes(self) -> dict[int, str]:
        """Living processes of its session, zombies not counted: pid and command line."""
        return {pid: line for pid, session, line in _processes() if session == self.process.pid}

    def workers(self) -> list[int]:
        return sorted(pid for pid, line in self.processes().items() if "servebench.dispatch.worker" in line)

    def end(self) -> None:
        """Kill whatever is left of it."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


@contextmanager
def command(folder: Path, *arguments: str | Path, env: dict[str, str] | None = None) -> Iterator[Command]:
    """Start the command, and leave nothing of it behind."""
    started = Command(folder, *arguments, env=env)
    try:
        yield started
    finally:
        started.end()


def _processes() -> Iterator[tuple[int, int, str]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if state not in "ZX":
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    yield int(folder.name), int(session), line


def until(true: Callable[[], Any], limit: float = 20.0, what: str = "") -> Any:
    """Wait until `true()` is, and return it."""
    end = time.monotonic() + limit
    while not (found := true()):
        assert time.monotonic() < end, f"not within {limit:g} s: {what or true}"
        time.sleep(0.01)
    return found


def document(text: str) -> Any:
    """`text` as exactly one JSON document."""
    return json.loads(text)
