"""`server.*` and `time.telemetry_gap` by the server's figures: for each a run that raises it, and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from servebench.analysis.facts import gather
from servebench.analysis.verdict import Code, Level, judge
from servebench.record.columns import Outcome
from servebench.testing.synthetic import SECOND, START_NS, SyntheticRun, open_run

Change = Callable[[SyntheticRun], object]
TELEMETRY = {"server.restarted", "server.preemptions", "server.prefix_hits", "server.counts", "time.telemetry_gap"}
CODES = TELEMETRY | {"server.config_changed"}


def span(run: SyntheticRun, hz: float = 2.0) -> list[int]:
    """Instants of samples from a second before the load to a second after the last request."""
    first, last = START_NS - SECOND, max(record.end_ns or 0 for record in run.records) + SECOND
    step = round(SECOND / hz)
    return list(range(first, last + step, step))


def counted(run: SyntheticRun, name: str, total: float) -> None:
    """A counter that grows in a straight line from 1000 by `total`."""
    t = span(run)
    run.samples += [("server", "engine-0", name, at, 1000 + total * i / (len(t) - 1)) for i, at in enumerate(t)]


def watched() -> SyntheticRun:
    """A healthy run of which the server counts the same as the client."""
    run = open_run()
    run.manifest["prompts"]["leading_tokens"] = 20
    run.manifest["server_identity"] = {"version": "1", "checked_again": True, "changed": []}
    source = {"state": "sampled", "asked_hz": 2.0, "failures": {}, "restarts": []}
    run.manifest["telemetry"] = {"sources": {"server": source}, "cpu_share": 0.01}
    sent = len(run.records)
    totals = {
        "requests_success": sent,
        "generation_tokens": 40 * sent,
        "prompt_tokens": 200 * sent,
        "preemptions": 0,
        "prefix_queries": 200 * sent,
        "prefix_hits": 16 * sent,
    }
    for name, total in totals.items():
        counted(run, name, total)
    run.samples += [("server", "engine-0", "up", at, 1.0) for at in span(run)]
    return run


def codes_of(run: SyntheticRun) -> dict[str, Code]:
    return {code.code: code for code in judge(gather(run.data()))}


def grows(name: str, total: float) -> Change:
    """Let a counter grow by `total` instead."""

    def change(run: SyntheticRun) -> None:
        run.samples = [sample for sample in run.samples if sample[2] != name]
        counted(run, name, total)

    return change


def without(name: str) -> Change:
    def change(run: SyntheticRun) -> None:
        run.samples = [sample for sample in run.samples if sample[2] != name]

    return change


def silent(start: float, end: float) -> Change:
    """No answer of the server between these seconds of the load."""

    def change(run: SyntheticRun) -> None:
        began, ended = START_NS + round(start * SECOND), START_NS + round(end * SECOND)
        gone = [s for s in run.samples if s[0] == "server" and began <= s[3] < ended]
        run.samples = [s for s in run.samples if s not in gone]
        run.samples += [(*s[:4], 0.0) for s in gone if s[2] == "up"]
        run.manifest["telemetry"]["sources"]["server"]["failures"] = {"no whole answer in time": 9}

    return change


def restarted(at: float) -> Change:
    """All counters begin again at 0."""

    def change(run: SyntheticRun) -> None:
        when = START_NS + round(at * SECOND)
        base: dict[str, float] = {}
        for number, (source, device, name, t, value) in enumerate(run.samples):
            if source == "server" and name != "up" and t >= when and value is not None:
                base.setdefault(name, value)
                run.samples[number] = (source, device, name, t, value - base[name])

    return change


def source(**facts: Any) -> Change:
    return lambda run: run.manifest["telemetry"]["sources"]["server"].update(facts)


def identity(**facts: Any) -> Change:
    return lambda run: run.manifest["server_identity"].update(facts)


def some_fail(run: SyntheticRun) -> None:
    for index in range(0, 40, 4):
        run.fail(index, Outcome.TIMEOUT, "late")


SENT = 800
CHANGED = [{"what": "version", "before": "1", "after": "2"}]

CASES: list[tuple[str, str, Change]] = [
    ("server.restarted", "fail", restarted(20)),
    (
        "server.restarted",
        "fail",
        source(restarts=[{"t_ns": START_NS + 9 * SECOND, "how": "its process is another one"}]),
    ),
    ("server.restarted", "ok", source(restarts=[{"t_ns": START_NS - SECOND // 2, "how": "before the load"}])),
    ("server.preemptions", "warn", grows("preemptions", 0.03 * SENT)),
    ("server.preemptions", "ok", grows("preemptions", 2)),
    ("server.preemptions", "ok", without("preemptions")),
    ("server.prefix_hits", "warn", grows("prefix_hits", 16 * SENT + 0.05 * 200 * SENT)),
    ("server.prefix_hits", "fail", grows("prefix_hits", 0.9 * 200 * SENT)),
    ("server.prefix_hits", "ok", grows("prefix_hits", 0)),
    ("server.prefix_hits", "ok", lambda run: run.manifest["prompts"].pop("leading_tokens")),
    ("server.counts", "warn", grows("generation_tokens", 40 * SENT + 1)),
    ("server.counts", "warn", grows("requests_success", SENT + 3)),
    ("server.counts", "fail", grows("requests_success", 1.5 * SENT)),
    ("server.counts", "ok", some_fail),
    (
        "server.counts",
        "ok",
        lambda run: [without(name)(run) for name in ("requests_success", "generation_tokens", "prompt_tokens")],
    ),
    ("server.config_changed", "fail", identity(changed=CHANGED)),
    ("time.telemetry_gap", "warn", silent(10, 13)),
    ("time.telemetry_gap", "ok", silent(10, 11)),
    ("time.telemetry_gap", "ok", silent(-1, 0)),
    ("time.telemetry_gap", "warn", source(state="lost", reason="the sampler ended with status -9: it said nothing")),
    ("time.telemetry_gap", "ok", source(asked_hz=0.2)),
]


@pytest.mark.parametrize(("name", "level", "change"), CASES, ids=[f"{c[0]}-{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_code(name: str, level: str, change: Change) -> None:
    run = watched()
    change(run)
    code = codes_of(run)[name]
    assert code.level == level, code
    assert bool(code.next) == (level != "ok")
    assert code.value is None or code.limit is not None


def test_a_watched_run_without_fault_raises_none() -> None:
    codes = codes_of(watched())
    assert codes.keys() >= CODES
    assert [code for code in codes.values() if code.level is not Level.OK] == []


def test_every_code_has_a_case_that_raises_it() -> None:
    assert {name for name, level, _ in CASES if level != "ok"} == CODES


def test_without_telemetry_nothing_is_claimed() -> None:
    assert not codes_of(open_run()).keys() & CODES
    absent = watched()
    source(state="absent", reason="answered 404 Not Found")(absent)
    assert not codes_of(absent).keys() & TELEMETRY


def test_the_reasons_are_told() -> None:
    run = watched()
    identity(changed=CHANGED)(run)
    silent(10, 13)(run)
    restarted(20)(run)
    codes = codes_of(run)
    assert "version 1, then 2" in codes["server.config_changed"].text
    assert "mostly: no whole answer in time" in codes["time.telemetry_gap"].text
    assert "seen after 20.0 s" in codes["server.restarted"].text
    assert "restarted" in codes["server.counts"].text


def test_a_difference_that_has_a_reason_raises_nothing() -> None:
    run = watched()
    some_fail(run)
    code = codes_of(run)["server.counts"]
    assert (code.level, code.value) == (Level.OK, pytest.approx(100 * 10 / 790))
    assert "10 requests did not end well" in code.text


def test_a_server_that_was_not_asked_again_is_not_judged_by_its_identity() -> None:
    run = watched()
    identity(checked_again=False)(run)
    assert "server.config_changed" not in codes_of(run)
