import dataclasses

import numpy as np
import pytest

from servebench.analysis.window import BY_COUNT, DERIVED, RAMP_DOWN, find_window
from servebench.record.columns import Outcome
from servebench.testing.synthetic import MS, SECOND, START_NS, SyntheticRun, closed_run, open_run


def cohort_of(run: SyntheticRun) -> list[int]:
    data = run.data()
    return np.flatnonzero(find_window(data).cohort(data)).tolist()


def test_cohort_is_half_open() -> None:
    run = open_run(requests=4, warmup=1, cooldown=0)
    offsets = np.array([SECOND - 1, SECOND, 2 * SECOND - 1, 2 * SECOND], np.int64)
    run.plan = dataclasses.replace(run.plan, scheduled_ns=offsets)
    for record, offset in zip(run.records, offsets.tolist(), strict=True):
        record.scheduled_ns = START_NS + offset + 40  # by the worker's own reading of the clocks
    run.manifest["phases"] |= {"warmup_end_ns": START_NS + SECOND, "measured_end_ns": START_NS + 2 * SECOND}
    assert cohort_of(run) == [1, 2]


def test_a_closed_loops_first_slots_belong_to_it_whatever_the_workers_clock_reads() -> None:
    run = closed_run(concurrency=4, waves=3)
    run.manifest["phases"] |= {"start_ns": START_NS + 70, "warmup_end_ns": START_NS + 70}
    assert len(cohort_of(run)) == 12


def test_a_run_by_duration_keeps_its_stated_window() -> None:
    run = open_run()
    window, phases = find_window(run.data()), run.manifest["phases"]
    assert window.warmup_end == phases["warmup_end_ns"]
    assert window.measured_end == window.throughput_end == phases["measured_end_ns"]
    assert window.notes == ()


def test_a_run_by_count_ends_with_its_last_request_which_belongs_to_it() -> None:
    run = closed_run(concurrency=4, waves=5)
    window = find_window(run.data())
    assert window.measured_end == max(r.scheduled_ns for r in run.records) + 1
    assert len(cohort_of(run)) == 20
    assert window.notes == (BY_COUNT,)
    assert window.throughput_end == window.measured_end


def test_one_wave_counts_throughput_to_its_last_end() -> None:
    run = closed_run(concurrency=8, waves=1)
    window = find_window(run.data())
    assert window.throughput_end == max(r.end_ns for r in run.records) + 1
    assert window.notes == (BY_COUNT, RAMP_DOWN)


def test_without_phases_the_plan_gives_the_start_to_the_nanosecond() -> None:
    run = open_run(warmup=5, cooldown=5)
    stated = find_window(run.data())
    run.manifest["phases"] = {}
    run.manifest["status"] = "running"
    run.records = run.records[3:-400]  # the first few were lost as well
    derived = find_window(run.data())
    assert derived.start == stated.start == START_NS
    assert derived.warmup_end == stated.warmup_end
    assert derived.measured_end == run.records[-1].scheduled_ns + 1
    assert DERIVED in derived.notes


def test_an_interrupted_run_is_measured_to_its_interruption() -> None:
    run = open_run()
    stop = START_NS + 12 * SECOND
    run.records = [r for r in run.records if r.scheduled_ns < stop]
    run.manifest["status"] = "interrupted"
    run.manifest["phases"]["load_end_ns"] = stop
    assert find_window(run.data()).measured_end == stop + 1


def test_an_interruption_during_the_warmup_leaves_an_empty_cohort() -> None:
    run = open_run()
    stop = START_NS + 2 * SECOND
    run.records = [r for r in run.records if r.scheduled_ns < stop]
    run.manifest["status"] = "interrupted"
    run.manifest["phases"]["load_end_ns"] = stop
    assert cohort_of(run) == []
    assert find_window(run.data()).cohort_seconds == 0


def test_a_run_without_any_request() -> None:
    run = open_run(requests=1, warmup=0, cooldown=0)
    run.records, run.chunks, run.manifest["phases"], run.manifest["status"] = [], {}, {}, "failed"
    window = find_window(run.data())
    assert window.start == window.end == 0
    assert window.notes == (DERIVED,)


def slow_start(due: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Half a second to the first token at the beginning, falling to 50 ms within 8 s."""
    return 0.050 * rng.uniform(0.9, 1.1, due.size) + 0.450 * np.clip(1 - due / 8, 0, 1)


def test_auto_warmup_cuts_the_transient() -> None:
    run = open_run(requests=1600, rate=40, warmup=0, cooldown=0, ttft=slow_start)
    run.manifest["scenario"]["load"]["warmup"] = "auto"
    window = find_window(run.data())
    assert window.truncation is not None
    assert not window.truncation.rejected
    assert 5 < (window.warmup_end - window.start) / SECOND < 12


def test_auto_warmup_cuts_little_of_a_steady_run() -> None:
    run = open_run(requests=1600, rate=40, warmup=0, cooldown=0)
    run.manifest["scenario"]["load"]["warmup"] = "auto"
    window = find_window(run.data())
    assert window.truncation is not None
    assert window.truncation.share < 0.25


def test_auto_warmup_is_rejected_when_the_run_never_settles() -> None:
    run = open_run(requests=1600, rate=40, warmup=0, cooldown=0, ttft=lambda due, rng: 0.05 + 0.1 * due)
    run.manifest["scenario"]["load"]["warmup"] = "auto"
    window = find_window(run.data())
    assert window.truncation is not None
    assert window.truncation.rejected
    assert window.warmup_end == window.start


@pytest.mark.parametrize("outcome", [Outcome.DROPPED, Outcome.TIMEOUT, Outcome.IN_FLIGHT])
def test_requests_of_any_outcome_belong_to_the_cohort(outcome: Outcome) -> None:
    run = open_run(requests=50, warmup=0, cooldown=0)
    before = cohort_of(run)
    run.fail(before[5], outcome)
    assert cohort_of(run) == before


def test_end_of_throughput_is_not_moved_by_the_last_few() -> None:
    run = closed_run(concurrency=4, waves=4)
    window = find_window(run.data())
    assert window.throughput_end - window.start < max(r.end_ns for r in run.records) - START_NS - 100 * MS
