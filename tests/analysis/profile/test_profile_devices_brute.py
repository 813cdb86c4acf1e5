"""The figures of devices against the same counted instant by instant."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from device_timelines import Drawn
from servebench.analysis.phases import combine, weighted
from servebench.analysis.profile.devices import describe_devices
from servebench.analysis.steps import StepFunction
from servebench.profile.timeline import COPY_KINDS, Kind

DEVICE_KINDS = (Kind.COMPUTE, Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY_HTOD, Kind.COPY_DTOH, Kind.FILL, Kind.GRAPH)
KERNELS = (Kind.COMPUTE, Kind.COMMUNICATION, Kind.GRAPH)
WAIT = "cudaStreamSynchronize"


@dataclass(frozen=True)
class Row:
    kind: Kind
    name: int
    device: int
    process: int
    start: int
    length: int
    launch: int | None  # how long before its start, negative for after

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True)
class Wait:
    process: int
    start: int
    length: int


rows = st.builds(
    Row,
    st.sampled_from(DEVICE_KINDS),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from([700, 9]),
    st.integers(0, 40),
    st.integers(0, 9),
    st.one_of(st.none(), st.integers(-3, 20)),
)
waits = st.builds(Wait, st.sampled_from([700, 9]), st.integers(-5, 45), st.integers(1, 20))
windows = st.tuples(st.integers(-3, 45), st.integers(1, 40)).map(lambda each: (each[0], each[0] + each[1]))
requests = st.lists(st.tuples(st.integers(-5, 45), st.integers(1, 20)), max_size=3)


def name_of(row: Row) -> str:
    return f"{row.kind.name}{row.name}"


def drawn(device_rows: list[Row], host_rows: list[Wait]) -> Drawn:
    made = Drawn()
    for row in device_rows:
        launch = None if row.launch is None else (row.start - row.launch, row.start - row.launch + 2)
        where: dict[str, Any] = {"device": row.device, "process": row.process}
        made.row(row.kind, name_of(row), row.start, row.end, launch, **where)
    for wait in host_rows:
        made.call(WAIT, wait.start, wait.start + wait.length, Kind.SYNC, process=wait.process)
    return made


def running(device_rows: list[Row], instant: int) -> list[Row]:
    return [row for row in device_rows if row.start <= instant < row.end]


def counted(device_rows: list[Row], start: int, end: int) -> list[Row]:
    """Rows that touch the window, in order of time."""
    return [row for row in device_rows if row.start < end and (row.end > start or row.start >= start)]


def time_where(device_rows: list[Row], start: int, end: int, condition: Any) -> int:
    return sum(1 for instant in range(start, end) if condition(running(device_rows, instant)))


def ms(time: int) -> float:
    return time / 1e6


def brute_gaps(device_rows: list[Row], start: int, end: int) -> list[tuple[int, int]]:
    idle = [not running(device_rows, instant) for instant in range(start, end)]
    edges = [start + at for at in range(len(idle) + 1) if (0 < at < len(idle) and idle[at] != idle[at - 1])]
    bounds = [start, *edges, end]
    return [(a, b) for a, b in pairwise(bounds) if idle[a - start]]


def brute_cause(
    gap: tuple[int, int], device_rows: list[Row], window: tuple[int, int], host_rows: list[Wait], sent: Any
) -> str:
    begin, end = gap
    idle = sum(1 for t in range(begin, end) if not any(b <= t < b + n for b, n in sent))
    if sent is not None and 2 * idle > end - begin:
        return "no_request"
    ordered = sorted(device_rows, key=lambda row: row.start)
    following = [row for row in ordered if row.start >= end]
    earlier = [row for row in ordered if row.end <= begin and row.start < begin]
    if begin > window[0]:
        earlier = [row for row in earlier if row.end > window[0] or row.start >= window[0]]
    since = max((row.end for row in earlier), default=begin)
    after = following[0] if following else None
    late = after is not None and after.launch is not None and after.start - after.launch >= since
    unknown = after is None or after.launch is None
    process = None if after is None else after.process
    held = sum(
        1
        for t in range(begin, min(max(after.start - after.launch, begin), end) if late else end)
        if any(w.process == process and w.start <= t < w.start + w.length for w in host_rows)
    )
    if (late or unknown) and 2 * held > end - begin:
        return "copy_or_sync"
    if late:
        return "host_late"
    ended = [row for row in earlier if row.end == since]
    if following and any(row.kind in COPY_KINDS for row in (*ended[-1:], *following[:1])):
        return "copy_or_sync"
    return "unknown" if unknown else "dependency"


@given(st.lists(rows, max_size=10), st.lists(waits, max_size=2), windows)
def test_times_equal_those_of_single_instants(
    device_rows: list[Row], host_rows: list[Wait], window: tuple[int, int]
) -> None:
    start, end = window
    found = describe_devices(drawn(device_rows, host_rows).timeline(), start, end, None)
    assert [each["device"] for each in found] == sorted({row.device for row in device_rows})
    for device in found:
        own = [row for row in device_rows if row.device == device["device"]]
        check_busy(device, own, start, end)
        check_kernels(device, own, start, end)
        check_copies(device, own, start, end)
        check_communication(device, own, start, end)


def check_busy(device: dict[str, Any], own: list[Row], start: int, end: int) -> None:
    busy = device["busy"]
    assert busy["ms"] == ms(time_where(own, start, end, bool))
    assert device["idle"]["ms"] == ms(time_where(own, start, end, lambda present: not present))
    assert busy["summed_ms"] == ms(sum(len(running(own, t)) for t in range(start, end)))
    groups = {
        "compute_ms": (Kind.COMPUTE, Kind.GRAPH),
        "communication_ms": (Kind.COMMUNICATION,),
        "copy_ms": COPY_KINDS,
        "fill_ms": (Kind.FILL,),
    }
    for key, kinds in groups.items():
        assert busy[key] == ms(time_where(own, start, end, lambda p, k=kinds: any(row.kind in k for row in p)))


def check_kernels(device: dict[str, Any], own: list[Row], start: int, end: int) -> None:
    touching = [row for row in counted(own, start, end) if row.kind in KERNELS]
    names = {name_of(row) for row in touching}
    assert {row["name"] for row in device["kernels"]} == names
    assert device["kernels_n"] == len(names)
    for row in device["kernels"]:
        same = [each for each in touching if name_of(each) == row["name"]]
        assert row["n"] == len(same)
        assert row["total_ms"] == ms(sum(min(each.end, end) - max(each.start, start) for each in same))
        alone = time_where(own, start, end, lambda p, name=row["name"]: {name_of(each) for each in p} == {name})
        assert row["exposed_ms"] == ms(alone)
        lengths = sorted(each.length for each in same)
        assert row["p50_us"] == lengths[(len(lengths) + 1) // 2 - 1] / 1e3
        assert row["p99_us"] == lengths[-1] / 1e3
    exposed = [row["exposed_ms"] for row in device["kernels"]]
    assert exposed == sorted(exposed, reverse=True)


def check_copies(device: dict[str, Any], own: list[Row], start: int, end: int) -> None:
    directions = {"host to device": Kind.COPY_HTOD, "device to host": Kind.COPY_DTOH}
    present = {row.kind for row in counted(own, start, end)}
    assert {directions[row["direction"]] for row in device["copies"]} == present & set(COPY_KINDS)
    for row in device["copies"]:
        kind = directions[row["direction"]]
        whole = time_where(own, start, end, lambda p, k=kind: any(each.kind == k for each in p))
        bare = time_where(
            own,
            start,
            end,
            lambda p, k=kind: any(each.kind == k for each in p) and not any(each.kind in KERNELS for each in p),
        )
        assert (row["ms"], row["exposed_ms"]) == (ms(whole), ms(bare))
        assert row["overlapped_share"] == (round((whole - bare) / whole, 6) if whole else None)


def check_communication(device: dict[str, Any], own: list[Row], start: int, end: int) -> None:
    kinds = (Kind.COMMUNICATION,)
    whole = time_where(own, start, end, lambda p: any(row.kind in kinds for row in p))
    if device["communication"] is None:
        assert whole == 0
        return
    only = time_where(own, start, end, lambda p: bool(p) and all(row.kind in kinds for row in p))
    assert device["communication"]["ms"] == ms(whole)
    assert device["communication"]["exposed_ms"] == ms(only)


@given(st.lists(rows.filter(lambda row: row.length > 0), max_size=8), st.lists(waits, max_size=2), windows, requests)
def test_gaps_and_causes_equal_those_of_single_instants(
    device_rows: list[Row], host_rows: list[Wait], window: tuple[int, int], sent: list[tuple[int, int]]
) -> None:
    start, end = window
    begin = np.array([b for b, _ in sent], np.int64)
    until = np.array([b + n for b, n in sent], np.int64)
    nothing = np.zeros(0, np.int64)
    level = StepFunction.of_intervals(begin, until)
    phases = combine(StepFunction.of_intervals(nothing, nothing), level, weighted(nothing, nothing, nothing))
    for device in describe_devices(drawn(device_rows, host_rows).timeline(), start, end, phases):
        own = [row for row in device_rows if row.device == device["device"]]
        wanted: dict[str, list[int]] = {row["cause"]: [] for row in device["idle"]["causes"]}
        for gap in brute_gaps(own, start, end):
            wanted[brute_cause(gap, own, window, host_rows, sent)].append(gap[1] - gap[0])
        found = {row["cause"]: (row["n"], row["ms"]) for row in device["idle"]["causes"]}
        assert found == {cause: (len(lengths), ms(sum(lengths))) for cause, lengths in wanted.items()}
        assert sum(row["n"] for row in device["idle"]["sizes"]) == sum(n for n, _ in found.values())
