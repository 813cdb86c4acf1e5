"""Every reason code: a run that raises it, at the level it shall have, and the healthy run that does not."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from servebench.analysis.facts import gather
from servebench.analysis.verdict import Code, Level, Status, exit_code, judge, status
from servebench.errors import ExitCode
from servebench.record.columns import Outcome, TokenSource
from servebench.testing.synthetic import MS, SECOND, START_NS, SyntheticRun, anchors, closed_run, open_run

Change = Callable[[SyntheticRun], object]


def healthy() -> SyntheticRun:
    run = open_run(slo={"ttft": ["p95 < 60ms"], "itl": ["p99 < 20ms"]})
    run.manifest["selftest"] = {"tokens_per_s_at_1ms_p99": 60_000}
    run.manifest["environment"] = {"limits": {"fds_soft": 1024}}
    return run


def healthy_closed() -> SyntheticRun:
    return closed_run(concurrency=16, waves=12)


def codes_of(run: SyntheticRun) -> dict[str, Code]:
    """By name, of several with the same name the worst."""
    return {code.code: code for code in reversed(judge(gather(run.data())))}


def test_healthy_runs_are_valid_and_every_check_reports() -> None:
    for run in (healthy(), healthy_closed()):
        codes = judge(gather(run.data()))
        assert [c for c in codes if c.level is not Level.OK] == []
        assert status(codes) is Status.VALID
        assert all(c.text and not c.next for c in codes)


def telemetry(name: str, value: float) -> Change:
    def change(run: SyntheticRun) -> None:
        run.samples = [(s, d, n, t, value if n == name else v) for s, d, n, t, v in run.samples]

    return change


def fail_each(step: int, outcome: Outcome, first: int = 0) -> Change:
    def change(run: SyntheticRun) -> None:
        for index in range(first, len(run.records), step):
            run.fail(index, outcome, "boom")

    return change


def each(**fields: object) -> Change:
    """Set fields of every record."""

    def change(run: SyntheticRun) -> None:
        for record in run.records:
            for name, value in fields.items():
                setattr(record, name, value)

    return change


def delayed(ms: float) -> Change:
    """Every request is dispatched and answered so much later."""

    def change(run: SyntheticRun) -> None:
        names = ("dispatched_ns", "sent_ns", "headers_ns", "first_event_ns", "first_token_ns", "first_visible_ns")
        for record in run.records:
            for name in (*names, "last_token_ns", "end_ns"):
                setattr(record, name, getattr(record, name) + round(ms * MS))
            run.chunks[record.index] = (run.chunks[record.index][0] + round(ms * MS), run.chunks[record.index][1])

    return change


def worker(**figures: object) -> Change:
    return lambda run: run.manifest["workers"][0].update(figures)


def manifest(**entries: object) -> Change:
    return lambda run: run.manifest.update(entries)


def both(first: Change, second: Change) -> Change:
    def change(run: SyntheticRun) -> None:
        first(run)
        second(run)

    return change


def clocks(change: Callable[[list[dict[str, int]]], object]) -> Change:
    def apply(run: SyntheticRun) -> None:
        found = anchors(range(START_NS, START_NS + 40 * SECOND, SECOND))
        change(found)
        run.manifest["clocks"] = {"anchors": found}

    return apply


def slewed(rate: float) -> Change:
    """A wall clock that runs fast, without any step that stands out."""

    def change(found: list[dict[str, int]]) -> None:
        for number, anchor in enumerate(found):
            anchor["monotonic_ns"] = SECOND + round(number * 500 * MS)
            anchor["realtime_ns"] = START_NS + round(number * 500 * MS * (1 + rate))

    return clocks(change)


def stepped(ms: float) -> Change:
    def change(found: list[dict[str, int]]) -> None:
        for anchor in found[20:]:
            anchor["realtime_ns"] += round(ms * MS)

    return clocks(change)


def silence(run: SyntheticRun) -> None:
    run.samples = [s for s in run.samples if not START_NS + 10 * SECOND <= s[3] < START_NS + 15 * SECOND]


def smeared(run: SyntheticRun) -> None:
    """Sends on a grid of a second instead of the plan's instants, though no later than before on the whole."""
    for record in run.records:
        record.dispatched_ns = START_NS + (record.dispatched_ns - START_NS) // SECOND * SECOND


def slots(run: SyntheticRun) -> None:
    run.manifest["scenario"]["load"]["max_in_flight"] = {"limit": 8, "policy": "wait"}
    for record in run.records[::10]:
        record.slot_ns = record.scheduled_ns + 30 * MS


def free_slots(run: SyntheticRun) -> None:
    run.manifest["scenario"]["load"]["max_in_flight"] = {"limit": 8, "policy": "wait"}


def lost_rows(run: SyntheticRun) -> None:
    run.records = run.records[:700]


def longer_prompts(run: SyntheticRun) -> None:
    for record in run.records[::20]:
        record.input_tokens = 203


def unknown_overhead(spread: int) -> Change:
    def change(run: SyntheticRun) -> None:
        run.manifest["prompts"] = {"exact": True, "overhead": None}
        for record in run.records:
            record.input_tokens = 200 + 7 + (spread if record.index % 5 == 0 else 0)

    return change


def inexact(off: int) -> Change:
    def change(run: SyntheticRun) -> None:
        run.manifest["prompts"] = {"exact": False, "overhead": 9}
        each(input_tokens=200 + off)(run)

    return change


def shorter(reason: str, extras: tuple[str, ...] = ()) -> Change:
    """Answers that end before the planned length."""

    def change(run: SyntheticRun) -> None:
        run.manifest["endpoint"]["extras"] = list(extras)
        each(output_planned=50, finish_reason=reason)(run)

    return change


def overload(run: SyntheticRun) -> None:
    other = open_run(ttft=lambda due, rng: 0.05 + 0.2 * due)
    run.records, run.chunks = other.records, other.chunks


def auto_warmup(run: SyntheticRun) -> None:
    other = open_run(requests=1600, rate=40, warmup=0, cooldown=0, ttft=lambda due, rng: 0.05 + 0.1 * due)
    run.records, run.chunks, run.plan, run.manifest = other.records, other.chunks, other.plan, other.manifest
    run.manifest["scenario"]["load"]["warmup"] = "auto"


def short_window(run: SyntheticRun) -> None:
    run.manifest["phases"]["measured_end_ns"] = run.manifest["phases"]["warmup_end_ns"] + 2 * SECOND


def no_window(run: SyntheticRun) -> None:
    run.manifest["phases"]["measured_end_ns"] = run.manifest["phases"]["warmup_end_ns"]


def contradicting_usage(run: SyntheticRun) -> None:
    each(token_source=TokenSource.CHUNK_USAGE)(run)
    run.records[100].output_tokens = 41


def two_gaps(run: SyntheticRun) -> None:
    run.records[100].last_token_ns += 5


@dataclass(frozen=True)
class Case:
    code: str
    level: str
    change: Change
    closed: bool = False

    def run(self) -> SyntheticRun:
        run = healthy_closed() if self.closed else healthy()
        self.change(run)
        return run


def half_empty(run: SyntheticRun) -> None:
    """Every second request ends at once, so that its slot stands empty."""
    for record in run.records[::2]:
        run.fail(record.index, Outcome.REJECTED)
        record.end_ns = record.sent_ns + MS


def exhausted(seconds: float) -> Change:
    def change(run: SyntheticRun) -> None:
        load = run.manifest["scenario"]["load"]
        load["duration"] = load.pop("requests") * 0 + 10.0
        last = max(r.dispatched_ns for r in run.records)
        run.manifest["phases"]["measured_end_ns"] = last + round(seconds * SECOND)

    return change


CASES = [
    Case("server.failures", "warn", fail_each(50, Outcome.TIMEOUT)),
    Case("server.failures", "fail", fail_each(2, Outcome.HTTP_ERROR)),
    Case("server.failures", "fail", fail_each(1, Outcome.CONNECT_ERROR)),
    Case("server.unfinished", "warn", fail_each(700, Outcome.IN_FLIGHT, first=300)),
    Case("load.dropped", "warn", fail_each(100, Outcome.DROPPED)),
    Case("load.dropped", "fail", fail_each(10, Outcome.DROPPED)),
    Case("load.dropped", "fail", lost_rows),
    Case("load.rate", "warn", fail_each(20, Outcome.DROPPED)),
    Case("load.rate", "fail", fail_each(5, Outcome.DROPPED)),
    Case("load.gaps", "fail", smeared),
    Case("load.max_in_flight", "ok", free_slots),
    Case("load.max_in_flight", "warn", slots),
    Case("load.input_tokens", "warn", longer_prompts),
    Case("load.input_tokens", "ok", unknown_overhead(0)),
    Case("load.input_tokens", "warn", unknown_overhead(9)),
    Case("load.input_tokens", "ok", inexact(2)),
    Case("load.input_tokens", "warn", inexact(9)),
    Case("load.input_tokens", "warn", each(input_tokens=None)),
    Case("load.output_tokens", "ok", shorter("stop")),
    Case("load.output_tokens", "warn", shorter("length")),
    Case("load.output_tokens", "warn", shorter("stop", ("ignore_eos",))),
    Case("load.output_tokens", "warn", each(output_planned=30, finish_reason="stop")),
    Case("load.concurrency", "warn", half_empty, closed=True),
    Case("load.plan_exhausted", "ok", exhausted(0.0), closed=True),
    Case("load.plan_exhausted", "warn", exhausted(0.2), closed=True),
    Case("load.plan_exhausted", "fail", exhausted(5.0), closed=True),
    Case("client.dispatch_late", "ok", delayed(3)),
    Case("client.dispatch_late", "warn", delayed(12)),
    Case("client.dispatch_late", "fail", delayed(2000)),
    Case("client.loop_lag", "warn", worker(loop_lag_p99_ms=150)),
    Case("client.loop_lag", "warn", lambda run: (worker(kernel_stamped_reads=0)(run), worker(loop_lag_p99_ms=2)(run))),
    Case("client.loop_lag", "fail", lambda run: (worker(kernel_stamped_reads=0)(run), worker(loop_lag_p99_ms=20)(run))),
    Case("client.loop_lag", "warn", both(worker(loop_lag_p99_ms=None), telemetry("loop_lag_ms", 150))),
    Case("client.loop_lag", "warn", both(worker(loop_lag_p99_ms=None), lambda run: run.samples.clear())),
    Case("client.cpu", "warn", telemetry("cpu_share", 0.93)),
    Case("client.cpu", "fail", telemetry("cpu_share", 0.99)),
    Case("client.cpu", "warn", lambda run: run.samples.clear()),
    Case("client.gc", "ok", worker(gc_collections=1)),
    Case("client.gc", "warn", worker(gc_collections=5)),
    Case("client.gc", "warn", worker(gc_collections=None)),
    Case("client.fds", "warn", worker(fds_max=1000)),
    Case("client.fds", "warn", worker(fds_max=None)),
    Case("client.connection_churn", "warn", each(connected_ns=START_NS)),
    Case("client.stamp_source", "warn", worker(kernel_stamped_reads=30_000)),
    Case("client.stamp_source", "warn", both(worker(reads=None), each(kernel_stamps=False))),
    Case("client.coalesced_reads", "ok", each(coalesced_reads=2)),
    Case("client.coalesced_reads", "warn", lambda run: (each(coalesced_reads=2)(run), worker(loop_lag_p99_ms=9)(run))),
    Case("client.coalesced_reads", "fail", lambda run: (each(coalesced_reads=20)(run), worker(loop_lag_p99_ms=9)(run))),
    Case("client.worker_died", "warn", worker(exit="died")),
    Case("client.worker_died", "warn", manifest(workers=[])),
    Case("client.selftest_ceiling", "ok", manifest(selftest=None)),
    Case("client.selftest_ceiling", "warn", manifest(selftest={"tokens_per_s_at_1ms_p99": 1000})),
    Case("time.rate", "ok", slewed(0.0005)),
    Case("time.rate", "warn", slewed(0.0015)),
    Case("time.rate", "fail", slewed(0.02)),
    Case("time.rate", "warn", manifest(clocks=None)),
    Case("time.step", "ok", stepped(0.5)),
    Case("time.step", "fail", stepped(1.5)),
    Case("time.step", "fail", stepped(-1.5)),
    Case("time.heartbeats", "warn", silence),
    Case("time.heartbeats", "warn", lambda run: run.samples.clear()),
    Case("stats.cohort", "fail", no_window),
    Case("stats.incomplete", "warn", manifest(status="interrupted")),
    Case("stats.incomplete", "warn", manifest(status="running")),
    Case("stats.too_few", "warn", short_window),
    Case("stats.not_steady", "warn", overload),
    Case("stats.warmup", "warn", auto_warmup),
    Case("stats.assumed_tokens", "warn", each(token_source=TokenSource.ASSUMED)),
    Case("stats.usage", "ok", each(token_source=TokenSource.TOKEN_IDS)),
    Case("stats.usage", "warn", contradicting_usage),
    Case("analysis.identity", "fail", two_gaps),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{c.code}-{c.level}-{i}" for i, c in enumerate(CASES)])
def test_code(case: Case) -> None:
    code = codes_of(case.run())[case.code]
    assert code.level == case.level, code
    if case.level != "ok":
        assert code.next
        assert code.value is None or code.limit is not None


def test_every_code_has_a_case_that_raises_it() -> None:
    reported = {c.code for run in (healthy(), healthy_closed()) for c in judge(gather(run.data()))}
    assert reported <= {case.code for case in CASES if case.level != "ok"}


def test_an_incomplete_run_is_never_valid() -> None:
    run = healthy()
    run.manifest["status"] = "interrupted"
    assert status(judge(gather(run.data()))) is Status.SUSPECT


def test_codes_are_sorted_by_gravity() -> None:
    run = healthy()
    worker(exit="died")(run)
    stepped(5)(run)
    levels = [c.level for c in judge(gather(run.data()))]
    assert levels == sorted(levels, key=["fail", "warn", "ok"].index)
    assert levels[:2] == [Level.FAIL, Level.WARN]


def test_drops_that_the_policy_wants_do_not_fail_the_run() -> None:
    run = healthy()
    run.manifest["scenario"]["load"]["max_in_flight"] = {"limit": 8, "policy": "drop"}
    fail_each(5, Outcome.DROPPED)(run)
    assert codes_of(run)["load.dropped"].level is Level.WARN


def test_a_cut_stream_owes_no_usage() -> None:
    run = healthy()
    run.records[300].outcome = Outcome.TRUNCATED
    run.records[300].token_source = TokenSource.ASSUMED
    assert codes_of(run)["stats.assumed_tokens"].level is Level.OK


def test_a_run_that_never_began_is_invalid_for_one_reason_each() -> None:
    run = healthy()
    run.records, run.chunks, run.samples = [], {}, []
    run.manifest = {"status": "failed", "scenario": run.manifest["scenario"]}
    codes = judge(gather(run.data()))
    assert status(codes) is Status.INVALID
    assert {c.code for c in codes if c.level is Level.FAIL} == {"server.failures", "stats.cohort"}
    assert not [c for c in codes if c.code.startswith(("client.", "time."))]


def test_the_most_frequent_error_is_named() -> None:
    run = healthy()
    for index in (200, 210, 220):
        run.fail(index, Outcome.HTTP_ERROR, "HTTP 500: out of memory", 500)
    run.fail(230, Outcome.RESET, "reset by peer")
    text = codes_of(run)["server.failures"].text
    assert "3 http_error, 1 reset" in text
    assert '"HTTP 500: out of memory"' in text


def test_the_templates_tokens_are_told() -> None:
    run = healthy()
    unknown_overhead(0)(run)
    assert "adds 7 tokens to every prompt" in codes_of(run)["load.input_tokens"].text


def test_an_overload_is_told_from_a_warm_up_that_was_too_short() -> None:
    run = healthy()
    overload(run)
    assert "lower it" in codes_of(run)["stats.not_steady"].next
    falling = open_run(requests=1600, rate=40, warmup=0, cooldown=0, ttft=lambda due, rng: 2 - 0.04 * due)
    assert "warm-up" in codes_of(falling)["stats.not_steady"].next


def test_lateness_of_a_closed_loop_is_judged_by_its_concurrency() -> None:
    run = healthy_closed()
    for record in run.records:
        record.dispatched_ns = record.scheduled_ns + 100 * MS
    assert codes_of(run)["client.dispatch_late"].level is Level.OK


@pytest.mark.parametrize(
    ("verdict", "met", "code"),
    [
        (Status.VALID, None, ExitCode.GOOD),
        (Status.VALID, True, ExitCode.GOOD),
        (Status.VALID, False, ExitCode.OBJECTIVE),
        (Status.SUSPECT, None, ExitCode.GOOD),
        (Status.SUSPECT, False, ExitCode.OBJECTIVE),
        (Status.INVALID, True, ExitCode.INVALID),
        (Status.INVALID, False, ExitCode.INVALID),
    ],
)
def test_exit_code(verdict: Status, met: bool | None, code: ExitCode) -> None:
    assert exit_code(verdict, met) is code


def test_a_hundred_percent_of_failures_has_no_latencies() -> None:
    run = healthy()
    fail_each(1, Outcome.CONNECT_ERROR)(run)
    facts = gather(run.data())
    assert facts.metrics["ttft"].n == 0
    assert facts.attainment == 0.0
    assert status(judge(facts)) is Status.INVALID
    assert np.isfinite(facts.throughput.seconds)
