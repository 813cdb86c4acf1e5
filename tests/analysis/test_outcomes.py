import numpy as np

from servebench.analysis import outcomes
from servebench.analysis.window import find_window
from servebench.record.columns import Outcome
from servebench.testing.synthetic import SECOND, START_NS, SyntheticRun, closed_run, open_run


def count(run: SyntheticRun, cohort: bool = False) -> outcomes.Outcomes:
    data = run.data()
    window = find_window(data)
    return outcomes.count(data, window, window.cohort(data) if cohort else None)


def test_groups() -> None:
    run = open_run(requests=100)
    for index, outcome in enumerate(o for o in Outcome if o != Outcome.OK):
        run.fail(index, outcome)
    found = count(run)
    assert (found.planned, found.ok, found.failed, found.dropped, found.in_flight) == (100, 88, 10, 1, 1)
    assert found.sent == 99


def test_requests_of_the_plan_that_never_came_due_are_not_planned() -> None:
    run = open_run()
    stop = START_NS + 20 * SECOND
    run.records = [r for r in run.records if r.scheduled_ns < stop]
    run.manifest["phases"]["load_end_ns"] = stop
    found = count(run)
    assert found.planned == len(run.records)
    assert found.unrecorded == 0


def test_a_due_request_without_a_record_is_counted() -> None:
    run = open_run()
    lost = [run.records[3], run.records[400]]
    run.records = [r for r in run.records if r not in lost]
    assert (count(run).unrecorded, count(run).planned) == (2, 800)
    assert (count(run, cohort=True).unrecorded) == 1  # the other one was due in the warm-up


def test_every_request_of_a_run_by_count_is_due() -> None:
    run = open_run(requests=50, warmup=0, cooldown=0)
    run.manifest["scenario"]["load"].pop("duration")
    run.manifest["scenario"]["load"]["requests"] = 50
    run.records = run.records[:30]
    assert count(run).unrecorded == 20


def test_a_closed_loop_misses_only_what_lies_between() -> None:
    run = closed_run(concurrency=4, waves=4)
    run.manifest["scenario"]["load"] = {"closed": {"concurrency": 4}, "duration": 10.0}
    run.records = [r for r in run.records if r.index != 5][:-3]
    assert count(run).unrecorded == 1


def test_without_a_plan_nothing_is_missing() -> None:
    data = open_run(requests=10).data()
    bare = type(data)(data.manifest, None, data.requests, data.chunks, data.telemetry, data.incomplete)
    assert outcomes.count(bare, find_window(bare)).unrecorded == 0


def test_cohort_is_a_part_of_the_whole() -> None:
    run = open_run()
    data = run.data()
    assert count(run, cohort=True).planned == int(np.sum(find_window(data).cohort(data)))
