"""The live view: what it shows of which counters, in 80 columns, and how it leaves the terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console, Group

from servebench.record.columns import Outcome
from servebench.record.counters import Command, LiveCounters, Slot, Snapshot, State, live_counters
from servebench.report import live
from servebench.report.live import LivePlan, LiveView, Window, figures, line, paint

SECOND = 1_000_000_000
PLAN = LivePlan("chat", "http://127.0.0.1:8000 · tiny-random", warmup_s=10, measured_s=60)


@pytest.fixture
def counters() -> Iterator[LiveCounters]:
    with live_counters(2) as made:
        made.start_at(100 * SECOND)
        for number in range(2):
            made.worker(number).set(Slot.STATE, State.RUNNING)
        yield made


def at(counters: LiveCounters, elapsed_s: float) -> Snapshot:
    """A snapshot as if taken so long after the start of the load, every worker having just shown life."""
    now = int((100 + elapsed_s) * SECOND)
    snapshot = replace(counters.snapshot(), monotonic_ns=now)
    snapshot.workers[:, Slot.HEARTBEAT_NS] = now
    return snapshot


def rendered(plan: LivePlan, before: Snapshot, now: Snapshot, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(Group(paint(plan, figures(plan, before, now))))  # as Live renders it: not joined with other text
    return capture.get().splitlines()


def busy(counters: LiveCounters) -> tuple[Snapshot, Snapshot]:
    before = at(counters, 24)
    for number in range(2):
        worker = counters.worker(number)
        worker.add(Slot.SCHEDULED, 21)
        worker.add(Slot.DISPATCHED, 20)
        worker.set(Slot.IN_FLIGHT, 7)
        worker.add(Slot.TOKENS, 5_000)
        worker.add(Slot.CPU_NS, (1 + number) * SECOND)
        worker.lag(Slot.LOOP_LAG_US, Slot.LOOP_LAG_MAX_US, 9_000)
        worker.lag(Slot.LOOP_LAG_US, Slot.LOOP_LAG_MAX_US, 300)
        worker.lag(Slot.LATE_US, Slot.LATE_MAX_US, 100)
        worker.observe("itl", np.full(99, 10_000_000))
        worker.observe("ttft", np.array([55_000_000, 340_000_000]))
        for outcome in [Outcome.OK] * 10 + [Outcome.TIMEOUT, Outcome.HTTP_ERROR, Outcome.DROPPED]:
            worker.finish(outcome)
    return before, at(counters, 34)


def test_rates_are_differences_over_the_window(counters: LiveCounters) -> None:
    shown = figures(PLAN, *busy(counters))
    assert (shown.offered, shown.sent, shown.finished, shown.tokens) == (4.2, 4.0, 2.6, 1000.0)
    assert shown.cpu == 0.2
    assert shown.failures == {Outcome.HTTP_ERROR: 2, Outcome.TIMEOUT: 2}


def test_quantiles_are_of_the_window_and_of_the_run(counters: LiveCounters) -> None:
    counters.worker(0).observe("itl", np.full(10_000, 90_000_000))
    shown = figures(PLAN, *busy(counters))
    assert shown.recent["itl"] == pytest.approx((10_000_000, 10_000_000), rel=0.05)
    assert shown.whole["itl"] == pytest.approx((90_000_000, 90_000_000), rel=0.05)
    assert shown.recent["ttft"] == pytest.approx((55_000_000, 340_000_000), rel=0.05)


def test_a_single_snapshot_has_no_rates(counters: LiveCounters) -> None:
    now = at(counters, 5)
    shown = figures(PLAN, now, now)
    assert (shown.offered, shown.sent, shown.tokens, shown.cpu) == (None, None, None, None)
    assert shown.recent["itl"] == (None, None)


def test_a_closed_loop_has_no_offered_rate(counters: LiveCounters) -> None:
    plan = replace(PLAN, open_loop=False)
    before, now = busy(counters)
    assert figures(plan, before, now).offered is None
    assert "offered" not in "\n".join(rendered(plan, before, now))


@pytest.mark.parametrize(
    ("elapsed", "phase", "done"),
    [(-1, "starting", 0), (0, "warm-up", 0), (7, "warm-up", 0.1), (10, "measured", 1 / 7), (71, "cool-down", 1)],
)
def test_the_phase_follows_the_clock(counters: LiveCounters, elapsed: float, phase: str, done: float) -> None:
    now = at(counters, elapsed)
    shown = figures(PLAN, now, now)
    assert shown.phase == phase
    assert shown.done == pytest.approx(done)


def test_the_phase_follows_the_workers(counters: LiveCounters) -> None:
    def phase() -> str:
        now = at(counters, 20)
        return figures(PLAN, now, now).phase

    counters.worker(0).state(State.DRAINING)
    assert phase() == "measured"
    counters.worker(1).state(State.DRAINING)
    assert phase() == "draining"
    for number in range(2):
        counters.worker(number).state(State.DONE)
    assert phase() == "done"


def test_an_interrupt_shows_as_draining(counters: LiveCounters) -> None:
    counters.command(Command.DRAIN)
    now = at(counters, 20)
    assert figures(PLAN, now, now).phase == "draining"


def test_without_a_start_nothing_has_elapsed() -> None:
    with live_counters(1) as fresh:
        now = fresh.snapshot()
    shown = figures(PLAN, now, now)
    assert (shown.phase, shown.elapsed_s, shown.done) == ("starting", 0.0, 0.0)


def test_a_run_by_count_progresses_by_count(counters: LiveCounters) -> None:
    plan = LivePlan("smoke", "sim", requests=52, warmup_s=10)
    before, now = busy(counters)
    shown = figures(plan, before, now)
    assert shown.done == 0.5
    assert shown.phase == "measured"
    assert "00:34 of 52 requests" in rendered(plan, before, now)[1]


def test_the_view_says_it_all_in_80_columns(counters: LiveCounters) -> None:
    lines = rendered(replace(PLAN, labels=("SIMULATED",)), *busy(counters))
    assert lines == [
        " SIMULATED  chat  http://127.0.0.1:8000 · tiny-random",
        "measured  " + "━" * 30 + " 00:34/01:10  14 in flight",
        "rate      offered 4.2/s  sent 4.0/s  done 2.6/s  1,000 tokens/s",
        "TTFT      last 10 s p50 54.0 ms  p99 334 ms     run p50 54.0 ms  p99 334 ms",
        "ITL       last 10 s p50 10.1 ms  p99 10.1 ms    run p50 10.1 ms  p99 10.1 ms",
        "requests  40 sent  20 ok  2 http_error  2 timeout  2 dropped",
        "client    lag 0.3 ms (max 9.0 ms)  late 0.1 ms (max 0.1 ms)  cpu 20%",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_ever_wrapped(counters: LiveCounters, width: int) -> None:
    plan = replace(PLAN, labels=("SIMULATED", "RANDOM WEIGHTS"), target="https://" + "long." * 60)
    lines = rendered(plan, *busy(counters), width=width)
    assert len(lines) == 7
    assert max(map(len, lines)) <= width


def test_a_silent_worker_is_named(counters: LiveCounters) -> None:
    before, now = busy(counters)
    now.workers[1, Slot.HEARTBEAT_NS] -= 4 * SECOND
    assert rendered(PLAN, before, now)[-1].startswith("client    worker 1 silent for 4 s  lag")
    counters.worker(1).state(State.DONE)
    done = at(counters, 34)
    done.workers[1, Slot.HEARTBEAT_NS] -= 4 * SECOND
    assert "silent" not in rendered(PLAN, before, done)[-1]


def test_slots_that_wait_after_a_rejection_and_a_backlog_are_named(counters: LiveCounters) -> None:
    counters.worker(0).set(Slot.PAUSED, 3)
    counters.worker(1).set(Slot.BACKLOG, 5)
    now = at(counters, 20)
    lines = rendered(PLAN, now, now)
    assert lines[-2].endswith("3 slots paused")
    assert lines[-1].endswith("backlog 5")


def test_a_log_gets_one_line_with_the_label(counters: LiveCounters) -> None:
    plan = replace(PLAN, labels=("RANDOM WEIGHTS",))
    text = line(plan, figures(plan, *busy(counters)))
    assert text.startswith("RANDOM WEIGHTS | 00:34/01:10 measured | 14 in flight | 40 sent  20 ok  2 http_error")
    assert "TTFT p50 54.0 ms  p99 334 ms | ITL p50 10.1 ms  p99 10.1 ms" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0.0 ms"),
        (12_340_000, "12.3 ms"),
        (123_400_000, "123 ms"),
        (1_234_000_000, "1.23 s"),
        (90 * SECOND, "90.0 s"),
    ],
)
def test_durations_have_about_three_digits(ns: int, text: str) -> None:
    assert live._duration(ns) == text


def test_the_window_forgets_what_is_older(counters: LiveCounters) -> None:
    window = Window(10)
    seen = [at(counters, second) for second in (0, 4, 10, 10.5, 40)]
    assert [seen.index(window.add(snapshot)) for snapshot in seen] == [0, 0, 0, 1, 4]


def terminal() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=80, height=24, _environ={"TERM": "xterm"}), file


def wait_for(file: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in file.getvalue():
        assert time.monotonic() < deadline, f"{text!r} never appeared in {file.getvalue()!r}"
        time.sleep(0.01)


HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def test_a_terminal_is_painted_and_left_as_it_was(counters: LiveCounters) -> None:
    console, file = terminal()
    with LiveView(console) as view:
        view.status("starting [vllm] ...")
        wait_for(file, "starting [vllm] ...")
        view.attach(PLAN, counters.snapshot)
        wait_for(file, "in flight")
        view.note("worker 1 died")
        view.detach()
    assert file.getvalue().count(HIDE) == file.getvalue().count(SHOW) == 1
    assert file.getvalue().rindex(SHOW) > file.getvalue().rindex("in flight")
    assert "worker 1 died" in file.getvalue()


def test_the_terminal_is_restored_after_an_interrupt() -> None:
    console, file = terminal()
    with pytest.raises(KeyboardInterrupt), LiveView(console):
        assert file.getvalue().count(HIDE) == 1
        raise KeyboardInterrupt
    assert file.getvalue().count(SHOW) == 1


def test_a_view_that_breaks_says_so_and_leaves_the_run_alone() -> None:
    def broken() -> Snapshot:
        raise RuntimeError("no counters")

    console, file = terminal()
    with LiveView(console) as view:
        view.attach(PLAN, broken)
        wait_for(file, "the live view stopped: RuntimeError: no counters")
    assert file.getvalue().count(SHOW) == 1


def test_no_terminal_gets_plain_lines(counters: LiveCounters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LINE_EVERY_S", 0.01)
    file = io.StringIO()
    with LiveView(Console(file=file, width=80)) as view:
        view.status("starting vllm")
        view.status("starting vllm")
        view.attach(PLAN, counters.snapshot)
        wait_for(file, "in flight")
    lines = file.getvalue().splitlines()
    assert lines[0] == "starting vllm"
    assert all(" in flight | 0 sent" in text for text in lines[1:])
    assert "\x1b" not in file.getvalue()


def test_quiet_shows_nothing(counters: LiveCounters) -> None:
    console, file = terminal()
    with LiveView(console, quiet=True) as view:
        view.status("starting")
        view.attach(PLAN, counters.snapshot)
        view.note("a note")
    assert file.getvalue() == ""


def test_painting_costs_less_than_one_percent_of_a_core(counters: LiveCounters) -> None:
    console, _ = terminal()
    view = LiveView(console)
    view.attach(PLAN, counters.snapshot)
    view._open_terminal()
    view.refresh()
    costs = []
    for _ in range(20):
        begin = time.thread_time()
        view.refresh()
        costs.append(time.thread_time() - begin)
    view._close_terminal()
    assert min(costs) < 0.01 * live.PAINT_EVERY_S
