"""A source of telemetry, and the loop that samples it at its rate for as long as it is wanted."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from servebench.errors import ServebenchError

Reading = tuple[str, str, float | None] | tuple[str, str, float | None, int]
"""device, name, value (None: the source has none) and, where it knows better than the loop, CLOCK_REALTIME ns."""

Sink = Callable[[str, int, Sequence[Reading]], None]
"""Takes the source's name, CLOCK_REALTIME ns and the readings; called in the source's thread, and quick."""


class SourceAbsent(Exception):  # noqa: N818 not an error: it carries the reason why a source is missing
    """The source cannot be had; the text says why, in a form that a report may print."""


class SampleFailed(Exception):  # noqa: N818 it says what is wrong with one sample
    """One sample cannot be had; the text says why.

    Attributes:
        readings: what is known all the same; the source's other series get nulls.
    """

    readings: Sequence[Reading] = ()


class Source(Protocol):
    """What is sampled. All calls come from one thread.

    A source may also have `final_sample()`, which the loop calls instead of `sample` for the last one: it may wait
    longer.
    """

    @property
    def name(self) -> str:
        """The `source` column of its rows."""

    @property
    def hz(self) -> float:
        """Samples a second that are asked for."""

    def open(self) -> None:
        """Get ready; raises SourceAbsent."""

    def sample(self) -> Sequence[Reading]:
        """Read everything once; any exception makes this one sample a failed one."""

    def facts(self) -> dict[str, Any]:
        """What the manifest keeps of it: JSON-able, without secrets."""

    def close(self) -> None:
        """Let go of everything."""


class Tally:
    """How well a loop kept its rate. Instants are CLOCK_MONOTONIC seconds."""

    def __init__(self) -> None:
        self.samples = 0
        self.missed = 0
        self.failures: Counter[str] = Counter()
        self._began: float | None = None
        self._first = self._last = self._last_beat = 0.0
        self._beats = 0
        self._gap = 0.0

    def begin(self, now: float) -> None:
        """Note when the first sample was due."""
        self._began = now

    def success(self, now: float, on_beat: bool = True) -> None:
        """Note a sample that was read at `now`; the final one, which comes when it is asked for, is not on the beat."""
        if self.samples:
            self._gap = max(self._gap, now - self._last)
        else:
            self._first = now
        self._last = now
        self.samples += 1
        if on_beat:
            self._beats += 1
            self._last_beat = now

    def failure(self, reason: str) -> None:
        """Note a sample that failed."""
        self.failures[reason] += 1

    def figures(self, now: float) -> dict[str, Any]:
        """Achieved rate, longest time without a sample up to `now`, and what failed how often."""
        span = self._last_beat - self._first
        return {
            "achieved_hz": round((self._beats - 1) / span, 4) if span > 0 else None,
            "samples": self.samples,
            "longest_gap_s": self._longest_gap(now),
            "missed_beats": self.missed,
            "failures": dict(self.failures),
        }

    def _longest_gap(self, now: float) -> float | None:
        if self._began is None:
            return None
        if not self.samples:
            return round(now - self._began, 6)
        return round(max(self._gap, self._first - self._began, now - self._last), 6)


class SourceLoop:
    """Samples one source in a thread of its own: a baseline, then at absolute deadlines, then a final one.

    An error costs the one sample it happens in: the series that are known so far get a null, and the reason is counted.
    A source that hangs holds up nobody else; deadlines that pass meanwhile are left out, and the phase is kept.

    Args:
        name: of the source, for the case that it cannot even be made.
        make: makes the source; called in the thread, since it may import slowly.
        sink: takes the readings.
    """

    def __init__(self, name: str, make: Callable[[], Source], sink: Sink) -> None:
        self.name = name
        self.baselined = threading.Event()
        self._make = make
        self._sink = sink
        self._stop = threading.Event()
        self._tally = Tally()
        self._hz: float | None = None
        self._absent: str | None = None
        self._series: dict[tuple[str, str], None] = {}
        self._facts: dict[str, Any] = {}
        self._cpu_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"telemetry {name}", daemon=True)

    def start(self) -> None:
        """Begin; `baselined` is set once the baseline sample was taken, or there is no source."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for the final sample and the end; does not wait."""
        self._stop.set()

    def join(self, timeout: float) -> bool:
        """Wait for the end; False if it has not come within `timeout` seconds."""
        self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def report(self) -> dict[str, Any]:
        """The manifest's part on this source."""
        tally = self._tally
        figures = tally.figures(time.monotonic())
        reason = self._absent
        if not tally.samples and reason is None:
            reason = tally.failures.most_common(1)[0][0] if tally.failures else "it gave no answer"
        hung = self._thread.is_alive() and self._stop.is_set()
        own = {"asked_hz": self._hz, **figures, "cpu_s": round(self._cpu_s, 6), "hung": hung}
        return {**self._facts, "state": "sampled" if tally.samples else "absent", "reason": reason, **own}

    def _run(self) -> None:
        source = self._opened()
        try:
            if source is not None:
                self._follow(source)
        finally:
            self.baselined.set()
            self._cpu_s = time.thread_time()

    def _opened(self) -> Source | None:
        try:
            source = self._make()
            self._hz = source.hz
            source.open()
        except SourceAbsent as absent:
            self._absent = str(absent)
        except Exception as error:  # noqa: BLE001  whatever it is, the run goes on without this source
            self._absent = explain(error)
        else:
            return source
        return None

    def _follow(self, source: Source) -> None:
        self._tally.begin(time.monotonic())
        self._sample(source.sample)
        self._learn(source)
        self.baselined.set()
        self._beat(source)
        self._sample(getattr(source, "final_sample", source.sample), on_beat=False)
        self._learn(source)
        try:
            source.close()
        except Exception as error:  # noqa: BLE001  its samples are safe already
            self._tally.failure(f"at its end: {explain(error)}")

    def _beat(self, source: Source) -> None:
        """Sample at multiples of the period until the end; those that have passed already are left out."""
        period, began, beat = 1.0 / source.hz, time.monotonic(), 0
        while True:
            due = max(beat + 1, math.ceil((time.monotonic() - began) / period))
            self._tally.missed += due - beat - 1
            beat = due
            if self._stop.wait(began + beat * period - time.monotonic()):
                return
            self._sample(source.sample)

    def _sample(self, read: Callable[[], Sequence[Reading]], on_beat: bool = True) -> None:
        before = time.time_ns()
        try:
            readings = read()
        except Exception as error:  # noqa: BLE001  this sample is lost, not the source
            self._tally.failure(explain(error))
            readings = self._nulls(getattr(error, "readings", ()))
        else:
            self._tally.success(time.monotonic(), on_beat)
            for reading in readings:
                self._series[reading[:2]] = None
        self._sink(self.name, (before + time.time_ns()) // 2, readings)
        self._cpu_s = time.thread_time()

    def _nulls(self, known: Sequence[Reading]) -> list[Reading]:
        """A null for each series that was ever read, but for what is known."""
        told = {reading[:2] for reading in known}
        return [*known, *((device, name, None) for device, name in self._series if (device, name) not in told)]

    def _learn(self, source: Source) -> None:
        try:
            self._facts = source.facts()
        except Exception as error:  # noqa: BLE001  facts are an extra
            self._tally.failure(f"its facts: {explain(error)}")


def explain(error: BaseException) -> str:
    """One line on an error: the reason alone where the error is ours, else with its type."""
    text = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, SourceAbsent | SampleFailed | ServebenchError):
        return text
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror  # without the file's name
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
