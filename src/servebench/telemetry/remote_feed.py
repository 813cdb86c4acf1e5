"""A `servebench telemetry serve` as a feed: pulls sweeps, puts their stamps on our clock, notices losses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from servebench.telemetry.offset import Exchange, OffsetPoint, OffsetTrack
from servebench.telemetry.remote_client import Link
from servebench.telemetry.remote_messages import Batch, ClockReading, Series, Sweep
from servebench.telemetry.source import Reading, SampleFailed

FIRST_BURST = 16  # round trips before the run, and after it
BURST = 4
MEASURE_EVERY_S = 0.9  # with every pull, at the usual one a second; at most 5 s may pass
RECENT_NS = 2_000_000_000  # what was sampled so shortly before us counts as the baseline
MAX_PAGES = 20
LAST_WAIT_S = 0.6

T = TypeVar("T")


class Stretch:
    """How a source of the other machine was sampled, as far as it reached us. Instants are ns of our clock."""

    def __init__(self) -> None:
        self.samples = 0
        self._first = self._last = 0
        self._gap = 0

    def note(self, t_ns: int) -> None:
        """Note a sweep."""
        if self.samples:
            self._gap = max(self._gap, t_ns - self._last)
        else:
            self._first = t_ns
        self._last = max(self._last, t_ns)
        self.samples += 1

    def figures(self) -> dict[str, Any]:
        """Achieved rate and longest gap between two samples."""
        span = (self._last - self._first) / 1e9
        rate = (self.samples - 1) / span if self.samples > 1 and span > 0 else None
        gap = self._gap / 1e9 if self.samples > 1 else None
        return {"received": self.samples, "received_hz": rate, "received_longest_gap_s": gap}


class ServerFeed:
    """Pulls from one telemetry server.

    Args:
        link: to its base URL.
        host: its name, in front of every device.
    """

    def __init__(self, link: Link, host: str) -> None:
        self._link = link
        self._host = host
        self._track = OffsetTrack()
        self._measured_at = 0.0
        self._next = 0
        self._boot: str | None = None
        self._series: dict[tuple[str, str], None] = {}
        self._stretches: dict[str, Stretch] = {}
        self._document: dict[str, Any] = {}
        self._lost = self._restarts = self._malformed = 0
        self._broken = False
        self._trouble: str | None = None
        self._pull_ms: float | None = None

    def begin(self) -> None:
        """Measure the clock before the run."""
        self._measure(FIRST_BURST)

    def sample(self) -> Sequence[Reading]:
        """All sweeps since the last call; raises SampleFailed."""
        return self._pull(BURST if time.monotonic() - self._measured_at >= MEASURE_EVERY_S else 0)

    def final_sample(self) -> Sequence[Reading]:
        """All sweeps since the last call and one of the GPUs from after it, and the clock after the run."""
        time.sleep(self._last_wait_s())
        return self._pull(FIRST_BURST)

    def _last_wait_s(self) -> float:
        """A period of the server's GPU samples, and a little; 0 where it has none."""
        sources = self._document.get("sources")
        nvml = sources.get("nvml") if isinstance(sources, dict) else None
        hz = nvml.get("asked_hz") if isinstance(nvml, dict) and nvml.get("state") == "sampled" else None
        return min(LAST_WAIT_S, 1 / hz + 0.1) if isinstance(hz, int | float) and hz > 0 else 0.0

    def _pull(self, burst: int) -> list[Reading]:
        began = time.monotonic()
        batches = self._fetch()
        self._pull_ms = (time.monotonic() - began) * 1e3
        if burst:
            self._measure(burst)  # after the sweeps were read, so that they lie between two measurements
        readings = [reading for batch in batches for reading in self._readings(batch)]
        self._series.update((reading[:2], None) for reading in readings)
        return readings + self._own()

    def _own(self) -> list[Reading]:
        """How the link itself fares."""
        device, facts = f"{self._host}/link", self._track.facts()
        return [
            (device, "pull_ms", self._pull_ms),
            (device, "offset_ms", facts["offset_ms"]),
            (device, "offset_error_ms", facts["error_ms"]),
        ]

    def _fetch(self) -> list[Batch]:
        """All answers that it takes to catch up; one that fails after others is asked for again at the next pull."""
        batches: list[Batch] = []
        while len(batches) < MAX_PAGES and (not batches or batches[-1].more):
            try:
                batches.append(self._page())
            except SampleFailed as failed:
                self._trouble = str(failed)
                if not batches:
                    raise
                break
        return batches

    def _page(self) -> Batch:
        batch = self._ask(f"/samples?since={self._next}&after={self._after()}")
        if self._boot is not None and batch.boot != self._boot:
            self._restarted()
            batch = self._ask("/samples?since=0")
        if self._boot is not None and batch.lost:
            self._lost += batch.lost
            self._broken = True
        self._boot, self._next = batch.boot, batch.next
        return batch

    def _ask(self, path: str) -> Batch:
        return _decoded(self._link.expect(path).body, Batch, "/samples")

    def _after(self) -> int:
        """On the first pull, what the server sampled long before us is left with it: a stamp of its clock."""
        offset = self._track.offset_ns
        return time.time_ns() + offset - RECENT_NS if self._boot is None and offset is not None else 0

    def _restarted(self) -> None:
        """Another server, or the same one anew: its numbers begin again, and its clock may be another one."""
        self._restarts += 1
        self._broken = True
        self._next = 0
        self._track.restart()
        self._measure(BURST)

    def _readings(self, batch: Batch) -> list[Reading]:
        known = {each.id: each for each in batch.series}
        whole = [sweep for sweep in batch.sweeps if _fits(sweep, known)]
        if len(whole) < len(batch.sweeps):
            self._malformed += len(batch.sweeps) - len(whole)
            self._broken = True
            self._trouble = "/samples: sweeps with values that belong to no series"
        stamps: list[int] = self._track.to_ours(np.array([sweep.t_ns for sweep in whole], np.int64)).tolist()
        readings = self._break(stamps[0] if stamps else time.time_ns())
        for sweep, t_ns in zip(whole, stamps, strict=True):
            series = [known[number] for number in sweep.series]
            for source in {each.source for each in series}:
                self._stretches.setdefault(source, Stretch()).note(t_ns)
            later = sweep.later_ns or [0] * len(series)
            for each, value, delay in zip(series, sweep.values, later, strict=True):
                readings.append((f"{self._host}/{each.device}", each.name, value, t_ns + delay))
        return readings

    def _break(self, before_ns: int) -> list[Reading]:
        """A null for every known series where sweeps were overwritten, broken or died with the server."""
        broken, self._broken = self._broken, False
        return [(device, name, None, before_ns - 1) for device, name in self._series] if broken else []

    def _measure(self, count: int) -> None:
        """Measure the clock; where that fails, the last offset is held, and the facts say so."""
        self._measured_at = time.monotonic()
        try:
            self._track.add(OffsetPoint.of([self._exchange() for _ in range(count)]))
        except SampleFailed as failed:
            if not self._track:
                raise
            self._trouble = str(failed)

    def _exchange(self) -> Exchange:
        answer = self._link.expect("/clock")
        reading = _decoded(answer.body, ClockReading, "/clock")
        return Exchange(answer.sent_ns, reading.received_ns, reading.replied_ns, answer.returned_ns)

    def facts(self) -> dict[str, Any]:
        """The server, its sources as it reports them and as they reached us, the offset, and what was lost."""
        try:
            self._document = msgspec.json.decode(self._link.expect("/facts").body, type=dict[str, Any])
        except (SampleFailed, msgspec.DecodeError) as error:
            self._trouble = str(error) if isinstance(error, SampleFailed) else "/facts: not a JSON object"
        reported = self._document.get("sources")
        sources = self._sources(reported if isinstance(reported, dict) else {})
        return {
            "kind": "servebench",
            "host": self._host,
            "version": self._document.get("version"),
            "devices": self._devices(sources),
            "sources": sources,
            "offset": self._track.facts(),
            "lost_sweeps": self._lost,
            "malformed_sweeps": self._malformed,
            "restarts": self._restarts,
            "trouble": self._trouble,
        }

    def _sources(self, reported: dict[str, Any]) -> dict[str, Any]:
        """Each source as the server reports it, and how it reached us."""
        known = {name: each if isinstance(each, dict) else {} for name, each in reported.items()}
        names = [*known, *(name for name in self._stretches if name not in known)]
        return {name: {**known.get(name, {}), **self._stretches.get(name, Stretch()).figures()} for name in names}

    def _devices(self, sources: dict[str, Any]) -> list[dict[str, Any]]:
        """The GPUs that the server's NVML describes, each with the name that its rows have here."""
        listed = sources.get("nvml", {}).get("devices")
        gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []
        return [{**gpu, "device": f"{self._host}/gpu-{gpu.get('index')}", "host": self._host} for gpu in gpus]


def _fits(sweep: Sweep, known: Mapping[int, Series]) -> bool:
    count = len(sweep.values)
    lengths = count == len(sweep.series) and len(sweep.later_ns) in (0, count)
    return lengths and all(number in known for number in sweep.series)


def _decoded(body: bytes, kind: type[T], path: str) -> T:
    """Decode an answer; raises SampleFailed with where it is wrong, without its text."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise SampleFailed(f"{path}: not the answer of a telemetry server: {error}") from None
    except msgspec.DecodeError:
        raise SampleFailed(f"{path}: not the answer of a telemetry server: no JSON") from None
