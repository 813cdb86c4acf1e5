"""The self-test: the load generator against a server whose truth is known, on this very machine.

Every event of the ground-truth server carries the instant at which it was handed to the kernel; the client's stamp less
that instant is its error. Where there are two processors or more, server and client each have their own.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servebench import __version__
from servebench.analysis.quantiles import Quantile, nearest
from servebench.errors import ServebenchError
from servebench.record.ceiling import write_ceiling
from servebench.record.raw import read_raw
from servebench.run import RunOptions, run
from servebench.scenario.loading import load_scenario
from servebench.testing.groundtruth import GroundTruth

if TYPE_CHECKING:
    import pyarrow as pa

    from servebench.record.rundir import RunDir

STEP_US, TTFT_US = 10_000, 50_000
WAVES = 2  # requests of each stream, so that all end and start again at once in mid-trial
LIMIT_US = 1000.0  # p99 of the stamp error that a worker may have at a rate that it is said to carry
FIRST_STREAMS, MOST_STREAMS, RESOLUTION = 512, 1024, 128  # start, end and grain of the search
SEARCH_UNTIL_S = 45.0  # after the start; the last trial may still take its seconds within the minute
LATE_STEPS = 0.02  # share of steps that the server may leave out before it, not the client, is the limit
_SCENARIO = """\
servebench: 1
name: selftest
description: equal requests against the ground-truth server
workload: {{input_tokens: 100, output_tokens: {tokens}}}
load: {{{load}, requests: {requests}}}
"""
_EVENT = re.compile(rb'"t_ns":(\d{19})[^\n]*\n')

Json = dict[str, Any]


class SelfTestError(ServebenchError):
    """The self-test could not be carried out."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of equal streams in a closed loop.

    Attributes:
        streams: how many ran at a time.
        tokens: all that were received.
        lost: sent by the server but not recorded.
        failed: requests with another outcome than ok.
        tokens_per_s: received, over the time from the first to the last of them.
        cpu_us_per_token: of the worker process under load.
        error_us: the client's stamp less the server's, one a token, sorted; empty where no raw bytes were kept.
        server_late: share of engine steps that the server had to leave out.
    """

    streams: int
    tokens: int
    lost: int
    failed: int
    tokens_per_s: float
    cpu_us_per_token: float
    server_late: float
    error_us: NDArray[np.float64] = field(repr=False)

    @property
    def carried(self) -> bool:
        """Whether nothing was lost and the stamps were right enough."""
        return self.badness() < (0, LIMIT_US)

    def badness(self) -> tuple[int, float]:
        """Orders trials from good to bad: by what was lost, then by the p99 of the stamp error."""
        p99 = _spread(self.error_us)["p99"]
        return self.lost + self.failed, math.inf if p99 is None else p99

    @property
    def server_kept_up(self) -> bool:
        """Whether the server ran at its own pace, without which the client was not tested at this rate."""
        return self.server_late <= LATE_STEPS

    def summary(self) -> Json:
        """The trial as JSON."""
        figures = {"streams": self.streams, "tokens_per_s": round(self.tokens_per_s), "carried": self.carried}
        counts = {"lost": self.lost, "failed": self.failed, "server_late_steps_share": round(self.server_late, 4)}
        return figures | counts | {"stamp_error_us": _spread(self.error_us)}


def selftest(quick: bool = False, tell: Callable[[str], None] = lambda text: None) -> Json:
    """Measure this machine's load generator and remember the result for `run`.

    Args:
        quick: in some 15 s instead of a minute: shorter trials, and no search between 64 and 512 streams and beyond.
        tell: called with a line on what is being measured.

    Returns:
        `stamp_error_us` (64 streams) and `dispatch_late_us` (poisson, 200/s), each p50, p99 and max;
        `cpu_us_per_token` by number of streams; `tokens_per_s_at_1ms_p99`, the highest rate that one worker carried
        with nothing lost and the p99 of its stamp error under 1 ms (None if it carried none); `limited_by`, what ended
        the search; the trials; and the machine.

    Raises:
        SelfTestError: a trial could not be run, or this is not Linux.
        KeyboardInterrupt: it was interrupted; nothing is remembered.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise SelfTestError("the self-test needs Linux: its server runs on epoll and timerfd")
    with (
        tempfile.TemporaryDirectory(prefix="servebench-selftest-") as folder,
        _apart() as server_cpu,
        GroundTruth(STEP_US, TTFT_US, cpu=server_cpu) as server,
    ):
        figures = _measure(Bench(server, Path(folder), tokens=50 if quick else 150, tell=tell), quick)
        figures["machine"] = {"processors": os.cpu_count(), "apart": server_cpu is not None}
    write_ceiling(figures)
    return figures


def _measure(bench: Bench, quick: bool) -> Json:
    until = time.monotonic() + SEARCH_UNTIL_S
    base = bench.trial(64)
    cpu = {str(streams): round(bench.trial(streams, keep_raw=False).cpu_us_per_token, 2) for streams in (64, 512)}
    late = bench.dispatch_lateness(seconds=2 if quick else 5)
    trials, limited_by = search(bench.trial, base, once=quick, until=until)
    carried = [trial.tokens_per_s for trial in trials if trial.carried]
    return {
        "schema": 1,
        "servebench": __version__,
        "created_ns": time.time_ns(),
        "quick": quick,
        "stamp_error_us": _spread(base.error_us),
        "dispatch_late_us": _spread(late),
        "cpu_us_per_token": cpu,
        "tokens_per_s_at_1ms_p99": round(max(carried)) if carried else None,
        "limited_by": limited_by,
        "trials": [trial.summary() for trial in trials],
    }


def search(
    try_out: Callable[[int], Trial], base: Trial, once: bool = False, until: float = math.inf
) -> tuple[list[Trial], str]:
    """Trials at rising and falling numbers of streams, until the largest that one worker carries is known.

    Args:
        try_out: runs a trial.
        base: a trial at few streams, already run.
        once: stop after the first one.
        until: CLOCK_MONOTONIC seconds after which no trial is started.

    Returns:
        the trials by streams, and what ended the search: "client"; "server", which left steps out, so nobody knows;
        "search", the worker carried the largest number that there is to try; or "time".
    """
    trials, low, high, limited_by = [base], base.streams, MOST_STREAMS + RESOLUTION, "search"
    if not base.carried:
        return trials, "client"
    streams = FIRST_STREAMS
    while True:
        trial = try_out(streams)
        # Something else may have needed the processor for a moment: a bad trial has a second chance.
        if not (trial.carried or once or time.monotonic() > until):
            trial = min(trial, try_out(streams), key=Trial.badness)
        trials.append(trial)
        if trial.carried:
            low = streams
        else:
            high, limited_by = streams, "client" if trial.server_kept_up else "server"
        middle = (low + high) // 2 // RESOLUTION * RESOLUTION
        if once or not low < middle < high:
            break
        if time.monotonic() > until:
            limited_by = "time"
            break
        streams = middle
    return sorted(trials, key=lambda trial: trial.streams), limited_by


class Bench:
    """Runs trials against one server."""

    def __init__(self, server: GroundTruth, folder: Path, tokens: int, tell: Callable[[str], None]) -> None:
        self._server, self._folder, self._tokens, self._tell = server, folder, tokens, tell
        self._number = 0

    def trial(self, streams: int, keep_raw: bool = True) -> Trial:
        """A closed loop of `streams`; without raw bytes there are no stamp errors, but CPU is as in any run."""
        self._tell(f"{streams} streams, {'stamps' if keep_raw else 'CPU'}")
        before, began = self._server.stats()["late_steps"], time.monotonic_ns()
        count = streams * WAVES
        rundir = self._run(f"closed: {{concurrency: {streams}}}", self._tokens, count, keep_raw)
        left_out, steps = self._server.stats()["late_steps"] - before, (time.monotonic_ns() - began) / 1000 / STEP_US
        chunks = rundir.chunks()
        tokens = int(chunks["tokens"].to_numpy().sum())
        return Trial(
            streams=streams,
            tokens=tokens,
            lost=count * self._tokens - tokens,
            failed=sum(outcome != "ok" for outcome in rundir.requests()["outcome"].to_pylist()),
            tokens_per_s=tokens * 1e9 / max(1, int(np.ptp(chunks["arrival_ns"].to_numpy()))),
            cpu_us_per_token=rundir.manifest["workers"][0]["cpu_load_s"] * 1e6 / max(1, tokens),
            server_late=left_out / steps,
            error_us=stamp_errors(read_raw(rundir.path / "raw")) / 1000 if keep_raw else np.empty(0),
        )

    def dispatch_lateness(self, seconds: int) -> NDArray[np.float64]:
        """How late requests were dispatched in an open loop of 200/s, in microseconds."""
        self._tell("dispatch")
        rows = self._run("poisson: 200/s", 4, 200 * seconds, keep_raw=False).requests()
        late: NDArray[np.float64] = (rows["dispatched_ns"].to_numpy() - rows["scheduled_ns"].to_numpy()) / 1000
        return late

    def _run(self, load: str, tokens: int, requests: int, keep_raw: bool) -> RunDir:
        self._number += 1
        path = self._folder / f"{self._number}.yaml"
        path.write_text(_SCENARIO.format(load=load, tokens=tokens, requests=requests))
        out = self._folder / str(self._number)
        rundir = run(load_scenario(path), RunOptions(endpoint=self._server.url, out=out, workers=1, keep_raw=keep_raw))
        if rundir.manifest["status"] == "interrupted":
            raise KeyboardInterrupt
        if rundir.manifest["workers"][0]["exit"] != "clean":
            raise SelfTestError(f"the worker of the self-test died: {'; '.join(rundir.manifest['warnings'])}")
        return rundir


def stamp_errors(raw: pa.Table) -> NDArray[np.int64]:
    """The client's stamp less the server's `t_ns` of every event in raw bytes (see `read_raw`), in ns.

    An event's stamp is that of the read that brought its end.
    """
    order = np.argsort(raw["request"].to_numpy(), kind="stable")  # a request's pieces stay in the order they came in
    pieces = raw["data"].take(order).to_pylist()
    arrivals = raw["arrival_ns"].to_numpy()[order]
    found = list(_EVENT.finditer(b"".join(pieces)))
    ends = np.fromiter((match.end() - 1 for match in found), np.int64, len(found))
    sent = np.fromiter((int(match[1]) for match in found), np.int64, len(found))
    edges = np.cumsum([len(piece) for piece in pieces])
    errors: NDArray[np.int64] = arrivals[edges.searchsorted(ends, "right")] - sent
    return errors


def _spread(values_us: NDArray[np.float64]) -> dict[str, float | None]:
    """p50, p99 and max of durations in microseconds, by nearest rank; None each where nothing was measured."""
    if not values_us.size:
        return dict.fromkeys(("p50", "p99", "max"))
    ordered = np.sort((values_us * 1000).astype(np.int64))
    quantiles = {name: nearest(ordered, Quantile.parse(name)) / 1000 for name in ("p50", "p99")}
    return {**quantiles, "max": int(ordered[-1]) / 1000}


@contextmanager
def _apart() -> Iterator[int | None]:
    """Keep the last processor for the server, and this process with its workers on the others; None where there is one.

    What processors this process may run on is as before at the end.
    """
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        yield None
        return
    server = max(before)
    os.sched_setaffinity(0, before - {server})
    try:
        yield server
    finally:
        os.sched_setaffinity(0, before)
