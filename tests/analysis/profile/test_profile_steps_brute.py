"""The figures of steps, and what a faster kernel is worth in them, against the same counted instant by instant.

Several processes have steps of their own, on clocks that may begin before 0, and launch on two devices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from device_timelines import Drawn
from servebench.analysis.profile import hot_parts
from servebench.analysis.profile.stepping import find_steps
from servebench.profile.timeline import NONE, Kind

PROCESSES = (9, 30, 700)
KINDS = (Kind.COMPUTE, Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY_HTOD)


@dataclass(frozen=True, order=True)
class Step:
    process: int
    start: int
    end: int


@dataclass(frozen=True)
class Row:
    kind: Kind
    device: int
    process: int
    start: int
    length: int
    ahead: int | None  # of its launch

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def name(self) -> str:
        return f"{self.kind.name}"

    @property
    def launch(self) -> int | None:
        return None if self.ahead is None else self.start - self.ahead


lengths_and_breaks = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 1, 5])), max_size=6)
steps_of = st.tuples(st.sampled_from(PROCESSES), st.integers(0, 6), lengths_and_breaks)
rows_of = st.builds(
    Row,
    st.sampled_from(KINDS),
    st.integers(0, 1),
    st.sampled_from(PROCESSES),
    st.integers(-5, 60),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(-2, 15)),
)
windows = st.tuples(st.integers(-10, 30), st.integers(1, 80)).map(lambda each: (each[0], sum(each)))


def laid_out(drawn: list[tuple[int, int, list[tuple[int, int]]]]) -> list[Step]:
    """Steps of each process one after the other, with breaks."""
    found = []
    for process, first, parts in {process: (process, first, parts) for process, first, parts in drawn}.values():
        starts = accumulate((length + pause for length, pause in parts), initial=first)
        found += [Step(process, start, start + length) for start, (length, _) in zip(starts, parts, strict=False)]
    return sorted(found)


def moved(offset: int, steps: list[Step], rows: list[Row]) -> tuple[list[Step], list[Row]]:
    later = [Step(each.process, each.start + offset, each.end + offset) for each in steps]
    return later, [Row(r.kind, r.device, r.process, r.start + offset, r.length, r.ahead) for r in rows]


def works(steps: list[Step], rows: list[Row]) -> dict[Step, list[Row]]:
    """What each step gave the devices: what its process launched from its start to that of its next one."""
    linked = any(row.launch is not None for row in rows)
    following = {a: b for a, b in pairwise(steps) if a.process == b.process}
    found: dict[Step, list[Row]] = {}
    for step in steps:
        until = following[step].start if step in following else 1 << 40
        causes = [(row.launch if linked else row.start, row) for row in rows if row.process == step.process]
        found[step] = [row for at, row in causes if at is not None and step.start <= at < until]
    return found


def took(steps: list[Step], work: dict[Step, list[Row]]) -> dict[Step, int]:
    """To the start of the next step, or to the end of its work; no pause here is a long one."""
    time = {step: max([step.end, *(row.end for row in work[step])]) - step.start for step in steps}
    return time | {a: b.start - a.start for a, b in pairwise(steps) if a.process == b.process}


def instants(parts: list[tuple[int, int]]) -> set[int]:
    return {instant for start, end in parts for instant in range(start, end)}


@given(st.lists(steps_of, min_size=1, max_size=3), st.lists(rows_of, max_size=12), windows, st.sampled_from([0, -300]))
def test_steps_equal_those_counted_by_instants(
    drawn: list[tuple[int, int, list[tuple[int, int]]]], rows: list[Row], window: tuple[int, int], offset: int
) -> None:
    steps, rows = moved(offset, laid_out(drawn), rows)
    start, end = (edge + offset for edge in window)
    made = Drawn()
    for step in steps:
        made.call("execute_context_0(0)_generation_1(1)", step.start, step.end, Kind.RANGE, process=step.process)
    for row in rows:
        launch = None if row.launch is None else (row.launch, row.launch + 1)
        made.row(row.kind, row.name, row.start, row.end, launch, device=row.device, process=row.process)
    timeline = made.timeline(span=(offset - 20, offset + 500))

    found = find_steps(timeline, start, end)
    whole = [step for step in steps if start <= step.start and step.end <= end]
    work, time = works(steps, rows), took(steps, works(steps, rows))
    working = {row.process for row in rows}
    assert [Step(*each) for each in zip(found.process, found.start, found.end, strict=True)] == whole
    assert found.truncated == sum(step.start < end and step.end > start for step in steps) - len(whole)
    assert found.time.tolist() == [time[step] for step in whole]
    busy = {step: len(instants([(row.start, row.end) for row in work[step]])) for step in whole}
    assert found.busy.tolist() == [busy[step] if step.process in working else NONE for step in whole]
    kernels = [sum(row.kind != Kind.COPY_HTOD for row in work[step]) for step in whole]
    wanted = [n if step.process in working else NONE for n, step in zip(kernels, whole, strict=True)]
    assert found.kernels.tolist() == wanted

    parts, total = hot_parts.kernels(timeline, found, start, end)
    exposed, whole_time = worth(whole, time, rows, start, end)
    assert (total, {part.what: part.ns for part in parts}) == (whole_time, exposed)


def worth(
    whole: list[Step], time: dict[Step, int], rows: list[Row], start: int, end: int
) -> tuple[dict[str, int], int]:
    """Exposed time of each name within the steps, and the time of the steps, both summed over devices."""
    exposed: Counter[str] = Counter()
    total = 0
    for device in {row.device for row in rows}:
        own = [row for row in rows if row.device == device]
        launching = {row.process for row in own if row.start < end and row.end > start}
        chosen = [step for step in whole if step.process in launching] or whole
        within = (
            instants([(step.start, step.start + time[step]) for step in chosen]) if whole else set(range(start, end))
        )
        within &= set(range(start, end))
        total += len(within)
        for instant in within:
            names = {row.name for row in own if row.start <= instant < row.end}
            exposed.update(names if len(names) == 1 else ())
    return dict(exposed), total
