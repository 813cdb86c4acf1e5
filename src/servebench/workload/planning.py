"""From a scenario to its plan: a pure function of the scenario and its three seeds."""

from __future__ import annotations

from enum import IntEnum
from typing import cast

import numpy as np
from numpy.typing import NDArray

from servebench.errors import UsageError
from servebench.scenario.load import Load
from servebench.scenario.schema import Scenario, Seeds, TrafficClass
from servebench.units import format_duration
from servebench.workload.arrivals import Floats, Uniforms, due_times, stretches
from servebench.workload.lengths import couple_ranks, draw_lengths
from servebench.workload.plan import Plan

MAX_ROWS = 5_000_000
# Rows for a closed loop that is bounded by time, whose pace the server sets: no server answers faster than this.
CLOSED_PER_SLOT = 200.0
CLOSED_IN_ALL = 2_000.0
CLOSED_ROWS = 1_000_000
# Due times are whole microseconds: pacing is no finer, and the last digits of a logarithm, which differ between
# processors and libraries, do not reach the plan's hash.
TICK_NS = 1_000


class Purpose(IntEnum):
    """What a stream of random numbers is for; each has its own, so that none shifts another."""

    ARRIVALS = 0
    CLASSES = 1
    INPUT = 2
    OUTPUT = 3
    CONTENT = 4
    PREFIX = 5


def uniforms(seed: int, purpose: Purpose, part: int = 0) -> Uniforms:
    """Endless uniforms strictly between 0 and 1, from a seed and what they are for."""
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), part))
    generator = np.random.Generator(np.random.PCG64(sequence))
    return lambda size: np.maximum(generator.random(size), 2**-54)


def make_plan(scenario: Scenario) -> Plan:
    """Fix everything that `scenario` will send.

    An open loop of a given duration is planned from the start of the warm-up to the end of the drain; a number of
    requests gives exactly so many rows. A closed loop's rows have no due time (−1), and one that is bounded by time
    gets more rows than any server can answer in it.

    Raises:
        UsageError: more rows than a plan may have, or none at all.
    """
    due = _due(scenario)
    rows = due.size
    seeds = scenario.seeds
    classes = scenario.workload.classes
    class_id = _class_ids(classes, uniforms(seeds.lengths, Purpose.CLASSES)(rows))
    inputs, outputs = _lengths(classes, class_id, seeds)
    group, prefix = _prefixes(classes, class_id, uniforms(seeds.content, Purpose.PREFIX)(rows))
    return Plan(
        scheduled_ns=due,
        input_tokens=inputs,
        output_tokens=outputs,
        class_id=class_id,
        content_seed=_content_seeds(seeds.content, rows),
        prefix_group=group,
        prefix_tokens=prefix,
        classes=tuple(item.name for item in classes),
    )


def cohort_bounds_ns(load: Load) -> tuple[int, int]:
    """The measured window in ns after the start of the load: requests due in [first, second) are the cohort.

    Bounded by a number of requests, the window has no planned end and the second is 2⁶³ − 1.
    """
    start = round(load.warmup_s * 1e9)
    return start, 2**63 - 1 if load.duration is None else start + round(load.duration * 1e9)


def _due(scenario: Scenario) -> NDArray[np.int64]:
    load = scenario.load
    if load.closed:
        return np.full(_check_rows(_closed_rows(load), scenario), -1, dtype=np.int64)
    expected = load.requests or sum(item.expected for item in stretches(load))
    _check_rows(expected, scenario)
    seconds = due_times(load, lambda part: uniforms(scenario.seeds.arrivals, Purpose.ARRIVALS, part))
    due = np.rint(seconds * (1e9 / TICK_NS)).astype(np.int64) * TICK_NS
    _check_cohort(due, scenario)
    return due


def _closed_rows(load: Load) -> int:
    if load.requests is not None:
        return load.requests
    assert load.closed is not None and load.duration is not None
    slots = load.closed.concurrency
    rate = min(slots * CLOSED_PER_SLOT, CLOSED_IN_ALL)
    return slots + min(CLOSED_ROWS, int(rate * (load.warmup_s + load.duration)))


def _check_rows(rows: float, scenario: Scenario) -> int:
    if rows > MAX_ROWS:
        raise UsageError(f"{scenario.name}: the load means {rows:.3g} requests; a plan holds at most {MAX_ROWS:,}")
    return int(rows)


def _check_cohort(due: NDArray[np.int64], scenario: Scenario) -> None:
    start, end = cohort_bounds_ns(scenario.load)
    if np.searchsorted(due, end) > np.searchsorted(due, start):
        return
    window = "after the warm-up" if scenario.load.duration is None else f"in {format_duration(scenario.load.duration)}"
    raise UsageError(f"{scenario.name}: no request is due {window}; raise the rate, the length or seed.arrivals")


def _class_ids(classes: tuple[TrafficClass, ...], ranks: Floats) -> NDArray[np.int16]:
    edges = np.cumsum([item.weight for item in classes])
    return np.searchsorted(edges[:-1] / edges[-1], ranks, side="right").astype(np.int16)


def _lengths(
    classes: tuple[TrafficClass, ...], class_id: NDArray[np.int16], seeds: Seeds
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    input_ranks = uniforms(seeds.lengths, Purpose.INPUT)(class_id.size)
    output_ranks = uniforms(seeds.lengths, Purpose.OUTPUT)(class_id.size)
    inputs, outputs = np.empty((2, class_id.size), dtype=np.int32)
    for number, item in enumerate(classes):
        rows = class_id == number
        first, second = input_ranks[rows], output_ranks[rows]
        inputs[rows] = draw_lengths(item.input_tokens, first)
        outputs[rows] = draw_lengths(item.output_tokens, couple_ranks(first, second, item.correlation))
    return inputs, outputs


def _prefixes(
    classes: tuple[TrafficClass, ...], class_id: NDArray[np.int16], ranks: Floats
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Prefix group and length of each row; groups are numbered through all classes, so that none is shared by two."""
    group = np.full(class_id.size, -1, dtype=np.int32)
    prefix = np.zeros(class_id.size, dtype=np.int32)
    first = 0
    for number, item in enumerate(classes):
        if item.shared_prefix:
            rows = class_id == number
            group[rows] = first + np.floor(ranks[rows] * item.shared_prefix.groups).astype(np.int32)
            prefix[rows] = item.shared_prefix.tokens
            first += item.shared_prefix.groups
    return group, prefix


def _content_seeds(seed: int, rows: int) -> NDArray[np.int64]:
    """Distinct seeds, one a row: a bijection of 63-bit words (SplitMix64's steps) of consecutive numbers."""
    start = np.random.SeedSequence(seed, spawn_key=(int(Purpose.CONTENT),)).generate_state(1, np.uint64)[0]
    mask = np.uint64(2**63 - 1)
    words = (start + np.arange(rows, dtype=np.uint64)) & mask
    for shift, factor in ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words = (words * np.uint64(factor)) & mask
    return cast("NDArray[np.int64]", (words ^ (words >> np.uint64(32))).astype(np.int64))
