"""The self-test finds the errors that are there, and the rate that is carried."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from servebench.cli.selftest import command
from servebench.record.ceiling import ceiling_path, read_ceiling
from servebench.record.raw import RAW
from servebench.selftest import Bench, Trial, search, selftest, stamp_errors
from servebench.testing import GroundTruth
from servebench.testing.groundtruth.answers import token_parts

SENT = 1_796_000_000_000_000_000


def event(t_ns):
    before, behind = token_parts(True, None)
    return before + b"%d" % t_ns + behind


def raw(*rows):
    requests, arrivals, data = zip(*rows, strict=True)
    return pa.table({"request": requests, "arrival_ns": arrivals, "data": data}, schema=RAW)


def trial(streams, *, p99_us=5.0, lost=0, failed=0, server_late=0.0):
    error = np.full(100, p99_us)
    return Trial(streams, streams * 100, lost, failed, streams * 95.0, 10.0, server_late, error)


def below(limit, **worse):
    """A machine on which trials of `limit` streams and more have stamps 5 ms late."""
    return lambda streams: trial(streams, p99_us=5000.0 if streams >= limit else 5.0, **worse)


def test_an_event_has_the_stamp_of_the_read_that_ends_it():
    one, two, three = event(SENT), event(SENT + 10), event(SENT + 20)
    table = raw(
        (1, SENT + 1_005, one + two[:40]),
        (0, SENT + 9_000, event(SENT + 5_000)),
        (1, SENT + 2_010, two[40:] + three[:-20]),
        (1, SENT + 3_020, three[-20:]),
    )
    assert stamp_errors(table).tolist() == [4_000, 1_005, 2_000, 3_000]


def test_no_events_no_errors():
    assert stamp_errors(raw((0, SENT, b"data: [DONE]\n\n"))).size == 0


def test_a_trial_is_carried_only_whole_and_in_time():
    assert trial(64).carried
    assert not trial(64, lost=1).carried
    assert not trial(64, failed=1).carried
    assert not trial(64, p99_us=1000.0).carried
    assert trial(64).summary()["stamp_error_us"] == {"p50": 5.0, "p99": 5.0, "max": 5.0}


@pytest.mark.parametrize(
    ("limit", "tried", "best", "ended_by"),
    [
        (5000, [64, 512, 768, 896, 1024], 1024, "search"),
        (700, [64, 512, 640, 768], 640, "client"),
        (512, [64, 256, 384, 512], 384, "client"),
        (200, [64, 128, 256, 512], 128, "client"),
        (64, [64], None, "client"),
    ],
)
def test_the_search_ends_at_the_largest_number_carried(limit, tried, best, ended_by):
    machine = below(limit)
    trials, limited_by = search(machine, machine(64))
    carried = [one.streams for one in trials if one.carried]
    assert [one.streams for one in trials] == tried
    assert (max(carried, default=None), limited_by) == (best, ended_by)


def test_the_search_says_when_the_server_was_too_slow():
    machine = below(512, server_late=0.5)
    assert search(machine, trial(64))[1] == "server"


def test_a_moment_of_noise_does_not_end_the_search():
    noisy = iter([trial(512, p99_us=9000.0), trial(512), trial(768), trial(896), trial(1024)])
    trials, limited_by = search(lambda streams: next(noisy), trial(64))
    assert (trials[-1].streams, limited_by) == (1024, "search")


def test_the_search_ends_when_its_time_is_over():
    trials, limited_by = search(below(700), trial(64), until=time.monotonic() - 1)
    assert ([one.streams for one in trials], limited_by) == ([64, 512], "time")


def test_a_quick_search_tries_once():
    assert [one.streams for one in search(below(5000), trial(64), once=True)[0]] == [64, 512]


def test_a_trial_against_the_real_server(tmp_path):
    told = []
    with GroundTruth(5000, 20_000) as server:
        bench = Bench(server, tmp_path, tokens=20, tell=told.append)
        result = bench.trial(4)
        late = bench.dispatch_lateness(seconds=1)
    assert (result.tokens, result.lost, result.failed, result.error_us.size) == (160, 0, 0, 160)
    assert result.error_us.min() > -50
    assert np.median(result.error_us) < 2000
    assert result.cpu_us_per_token > 0
    assert late.size == 200
    assert late.min() >= 0
    assert told == ["4 streams, stamps", "dispatch"]


@pytest.mark.slow
def test_a_quick_selftest_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.sched_getaffinity(0)
    figures = selftest(quick=True)
    assert figures == read_ceiling()
    assert set(figures["cpu_us_per_token"]) == {"64", "512"}
    assert [one["streams"] for one in figures["trials"]] in ([64, 512], [64])  # only 64 where even those were late
    assert all(one["lost"] == one["failed"] == 0 for one in figures["trials"])
    for key in ("stamp_error_us", "dispatch_late_us"):
        assert figures[key]["p50"] <= figures[key]["p99"] <= figures[key]["max"]
    assert os.sched_getaffinity(0) == before


FIGURES = {
    "stamp_error_us": {"p50": 2.0, "p99": 23.0, "max": 46.0},
    "dispatch_late_us": {"p50": 41.0, "p99": 90.0, "max": 100.0},
    "cpu_us_per_token": {"64": 14.0, "512": 10.0},
    "tokens_per_s_at_1ms_p99": 48_000,
    "limited_by": "search",
    "machine": {"processors": 2, "apart": False},
    "trials": [trial(512).summary(), trial(1024, p99_us=5000.0).summary()],
}


def test_the_command_prints_json(monkeypatch):
    monkeypatch.setattr("servebench.selftest.selftest", lambda quick, tell: tell("64 streams") or FIGURES)
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == FIGURES
    assert result.stderr == "selftest: 64 streams\n"


@pytest.mark.parametrize(("rate", "says"), [(48_000, "48,000 tokens/s"), (None, "is this machine busy?")])
def test_the_command_prints_a_table(monkeypatch, rate, says):
    figures = FIGURES | {"tokens_per_s_at_1ms_p99": rate}
    monkeypatch.setattr("servebench.selftest.selftest", lambda quick, tell: figures)
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(command, []).stdout
    assert says in shown
    assert "1024 streams, 97,280 tokens/s: too much" in shown
    assert "14.0 us at 64 streams" in shown


def test_the_result_lies_in_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ceiling_path() == tmp_path / "servebench" / "selftest.json"
