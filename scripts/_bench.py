"""The client bench: drives `servebench run` against a ground-truth server and compares what it says with the truth.

Each number of streams is run twice: plain, for figures, verdict and CPU; and with --keep-raw, for the stamps
and for the server's own TTFT in that very run (the t_ns in its first event, less the instant the request was sent).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _bench_truth import Truth, first_sent_ns, read_truth

STEP_US, TTFT_US = 10_000, 50_000
LOAD = os.getloadavg()[0]  # of the machine, before the bench adds its own: over some 0.2 the figures are not its best
OUR_SERVER = f"{sys.executable} -m servebench.testing.groundtruth {{port}} {STEP_US} {TTFT_US}"
SCENARIO = """\
servebench: 1
name: bench
description: closed loop of equal requests, for the client bench
workload: {{input_tokens: 200, output_tokens: {tokens}}}
load: {{closed: {{concurrency: {streams}}}, requests: {requests}}}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the command.

    Attributes:
        summary: as the command wrote it.
        path: the run directory.
        cpu_s: CPU seconds of all its processes, start-up and report included.
        first_s: seconds from the command to its first request.
    """

    summary: dict[str, Any]
    path: Path
    cpu_s: float
    first_s: float

    def metric(self, name: str, figure: str) -> float:
        """A figure of a metric, in ms; NaN where there is none."""
        value = self.summary["metrics"].get(name, {}).get(figure)
        return float("nan") if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: with its unit.
        value: from the plain run, the raw run and the truth.
        limits: what acceptance allows (lowest, highest), by number of streams.
        digits: after the point.
    """

    name: str
    value: Callable[[Run, Run, Truth], float]
    limits: dict[int, tuple[float, float]]
    digits: int = 2

    def misses(self, streams: int, value: float) -> bool:
        """Whether the value is outside its limits, or missing."""
        low, high = self.limits.get(streams, (-np.inf, np.inf))
        return not low <= value <= high


def up_to(*limits: float) -> dict[int, tuple[float, float]]:
    """Upper limits at 64, 256 and 512 streams; NaN for none."""
    pairs = zip((64, 256, 512), limits, strict=True)
    return {streams: (-np.inf, limit) for streams, limit in pairs if not np.isnan(limit)}


NONE = float("nan")
ROWS = (
    Row("ITL p50 ms", lambda plain, raw, truth: plain.metric("itl", "p50"), {64: (9.95, 10.05)}, 3),
    Row("ITL p99 ms", lambda plain, raw, truth: plain.metric("itl", "p99"), up_to(10.5, NONE, NONE), 3),
    Row("TPOT mean ms", lambda plain, raw, truth: plain.metric("tpot", "mean"), {64: (9.98, 10.02)}, 3),
    Row("TTFT p50 ms", lambda plain, raw, truth: plain.metric("ttft", "p50"), {64: (50, 61)}),
    Row("TTFT mean ms", lambda plain, raw, truth: raw.metric("ttft", "mean"), {}),
    Row("  the server's", lambda plain, raw, truth: truth.ttft_ms, {}),
    Row(
        "  difference ms",
        lambda plain, raw, truth: abs(raw.metric("ttft", "mean") - truth.ttft_ms),
        up_to(2, 2, 2),
        3,
    ),
    Row("stamp error p50 us", lambda plain, raw, truth: truth.late_us(50), up_to(20, NONE, NONE), 1),
    Row("stamp error p99 us", lambda plain, raw, truth: truth.late_us(99), up_to(200, 200, 1000), 1),
    Row("stamp error max us", lambda plain, raw, truth: truth.late_us(100), {}, 0),
    Row("tokens not stamped", lambda plain, raw, truth: truth.missing, dict.fromkeys((64, 256, 512), (0, 0)), 0),
    Row("CPU us a token", lambda plain, raw, truth: cpu_us(plain), up_to(18, NONE, 13)),
    Row("  with start-up", lambda plain, raw, truth: plain.cpu_s * 1e6 / plain.summary["tokens"]["output"], {}),
    Row("first request s", lambda plain, raw, truth: plain.first_s, {}),  # all on one core here
)


def cpu_us(run: Run) -> float:
    """CPU of the workers under load, as reported."""
    value = run.summary["client"]["cpu_us_per_token"]
    return NONE if value is None else float(value)


def main() -> int:
    """Measure, print, and exit 1 when a limit was missed."""
    options = arguments()
    client, server = cores()
    with serving(options.server, server) as url, folder(options.keep) as kept:
        bench = Bench(url, client, kept, options.tokens, options.waves)
        results = [bench.measure(streams) for streams in options.streams]
    document = {"machine": machine(), "server": options.server, "tokens": options.tokens, "results": results}
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        print_table(document)
    return 1 if any(result["missed"] for result in results) else 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731 - argparse shows its name nowhere
    parser.add_argument("--streams", type=numbers, default=[64, 256, 512], help="closed loops (default 64,256,512)")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer (default 200)")
    parser.add_argument("--waves", type=int, default=4, help="requests of each stream (default 4)")
    parser.add_argument(
        "--server", default=OUR_SERVER, help="another command that serves on 127.0.0.1:{port}, with t_ns in each event"
    )
    parser.add_argument("--keep", type=Path, help="keep the run directories in this folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def cores() -> tuple[int, int]:
    """One core for the client and one for the server, the last two that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        sys.exit("scripts/bench needs two cores: one for the server, one for the client")
    return usable[-2], usable[-1]


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """The folder for the run directories: a named one, or one that goes away."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="servebench-bench-") as scratch:
        yield Path(scratch)


@contextmanager
def serving(command: str, cpu: int) -> Iterator[str]:
    """Run the server pinned to `cpu` on a free port; yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [word.replace("{port}", str(port)) for word in shlex.split(command)]
    process = subprocess.Popen(words, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}), stdout=subprocess.DEVNULL)
    try:
        await_health(process, f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def await_health(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server answers."""
    for _ in range(100):
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    sys.exit(f"the server does not answer at {url}")


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs against `url` from core `cpu`, with run directories below `path`."""

    url: str
    cpu: int
    path: Path
    tokens: int
    waves: int

    def measure(self, streams: int) -> dict[str, Any]:
        """Run with that many streams and return the figures."""
        before = self.served()
        plain = self.run(streams)
        tokens = self.served() - before
        raw = self.run(streams, "--keep-raw")
        truth = read_truth(raw.path, streams * self.waves * self.tokens)
        figures = {row.name.strip(): row.value(plain, raw, truth) for row in ROWS}
        verdict = plain.summary["verdict"]["status"]
        lost = streams * self.waves * self.tokens - plain.summary["tokens"]["output"]
        missed = [row.name.strip() for row in ROWS if row.misses(streams, figures[row.name.strip()])]
        missed += [name for name, wrong in (("verdict", verdict != "VALID"), ("tokens lost", lost != 0)) if wrong]
        return {
            "streams": streams,
            "verdict": verdict,
            "codes": [code for code in plain.summary["verdict"]["codes"] if code["level"] != "ok"],
            "tokens lost": lost,
            "tokens served beyond": tokens - plain.summary["tokens"]["output"],
            "figures": {name: None if np.isnan(value) else value for name, value in figures.items()},
            "missed": missed,
        }

    def run(self, streams: int, *flags: str) -> Run:
        """Run the command pinned to the client's core; its messages pass through."""
        out = self.path / f"{streams}{'-raw' if flags else ''}"
        scenario = self.path / f"{streams}.yaml"
        scenario.write_text(
            SCENARIO.format(tokens=self.tokens, streams=streams, requests=streams * self.waves), encoding="utf-8"
        )
        command = [sys.executable, "-m", "servebench", "run", str(scenario), "--endpoint", self.url, "--workers", "1"]
        before, start_ns = resource.getrusage(resource.RUSAGE_CHILDREN), time.time_ns()
        done = subprocess.run(
            [*command, "--out", str(out), "--quiet", "--json", *flags],
            preexec_fn=lambda: os.sched_setaffinity(0, {self.cpu}),
            stdout=subprocess.DEVNULL,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        summary = out / "summary.json"
        if not summary.exists():
            sys.exit(f"the run left no summary (exit code {done.returncode})")
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        first_s = (first_sent_ns(out) - start_ns) / 1e9
        return Run(json.loads(summary.read_text(encoding="utf-8")), out, cpu_s, first_s)

    def served(self) -> int:
        """Tokens that the server has sent so far, by its own count."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=10) as response:
            return int(json.load(response)["tokens"])


def machine() -> str:
    """The hardware and software that the figures belong to."""
    names = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in names if line.startswith("model name")), "unknown CPU")
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {system}, load average before {LOAD:.1f}"


def print_table(document: dict[str, Any]) -> None:
    """Print the results for people; `!` marks a missed limit."""
    results = document["results"]
    print(document["machine"])
    print(f"server: {document['server']}; closed loop, {document['tokens']} tokens an answer, one worker\n")
    print(line("streams", [str(result["streams"]) for result in results], "limits"))
    print(line("verdict", [result["verdict"] for result in results], "VALID"))
    print(line("tokens lost", [str(result["tokens lost"]) for result in results], "0"))
    for row in ROWS:
        cells = [cell(row, result) for result in results]
        print(line(row.name, cells, limits(row, [result["streams"] for result in results])))
    for result in results:
        for code in result["codes"]:
            print(f"{result['streams']}: {code['code']} {code['level']}: {code['value']} (limit {code['limit']})")


def cell(row: Row, result: dict[str, Any]) -> str:
    """A figure, marked when it misses its limit."""
    value = result["figures"][row.name.strip()]
    mark = "!" if row.name.strip() in result["missed"] else ""
    return f"{mark}-" if value is None else f"{mark}{value:.{row.digits}f}"


def limits(row: Row, streams: Sequence[int]) -> str:
    """The limits of a row as text, one for each number of streams that has one."""
    texts = []
    for number in streams:
        low, high = row.limits.get(number, (-np.inf, np.inf))
        if np.isfinite(low):
            texts.append(f"{low:g} to {high:g}")
        else:
            texts.append(f"<= {high:g}" if np.isfinite(high) else "-")
    return "" if set(texts) == {"-"} else " / ".join(texts)


def line(name: str, cells: Sequence[str], last: str) -> str:
    """A line of the table."""
    return f"{name:<20}" + "".join(f"{cell:>12}" for cell in cells) + f"   {last}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
