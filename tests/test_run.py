"""Runs from a scenario to a result, on real sockets and worker processes, against servers whose truth is known."""

from __future__ import annotations

import collections
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import MILLISECOND, SECOND, OpenAI, Result, execute, most_at_once, scenario, tokens
from servebench.errors import UsageError
from servebench.record.raw import read_raw
from servebench.record.rundir import RunDir
from servebench.run import RunOptions, run
from servebench.testing import GroundTruth
from servebench.wire.answer import Answer
from servebench.workload.plan import Plan
from servebench.workload.planning import make_plan

ORDER = (
    "scheduled_ns",
    "slot_ns",
    "dispatched_ns",
    "connected_ns",
    "sent_ns",
    "headers_ns",
    "first_event_ns",
    "first_token_ns",
    "last_token_ns",
    "end_ns",
)


@pytest.fixture(scope="module")
def truth() -> Any:
    with GroundTruth(step_us=2000, ttft_us=10_000) as server:
        yield server


def check_instants(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        instants = [(name, row[name]) for name in ORDER if row[name] is not None]
        for (one, before), (other, after) in pairwise(instants):
            assert before <= after, f"request {row['index']}: {one} is {before - after} ns after {other}"


@pytest.fixture(scope="module")
def closed(truth: GroundTruth, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, dict[str, int]]:
    """A closed loop of 60 requests in 6 slots, raw bytes kept; and what the server counted of it."""
    folder = tmp_path_factory.mktemp("closed")
    before = truth.stats()
    load = {"closed": {"concurrency": 6}, "requests": 60, "drain": "5s"}
    result = execute(scenario(folder, load), truth.url, folder / "run", keep_raw=True, workers=1)
    return result, {name: count - before[name] for name, count in truth.stats().items()}


class TestClosed:
    def test_every_request_of_the_plan_ends_well_and_the_server_counted_the_same(
        self, closed: tuple[Result, dict[str, int]]
    ) -> None:
        result, counted = closed
        assert result.outcomes == {"planned": 60, "ok": 60}
        assert result.column("index") == list(range(60))
        assert (counted["requests"], counted["tokens"]) == (60, 600)
        assert sum(result.column("output_tokens")) == 600
        assert sum(result.chunks["tokens"].to_pylist()) == 600
        assert result.column("input_tokens") == [20] * 60
        assert all(identity["ok"] for identity in result.summary["identities"].values())
        assert result.rundir.manifest["status"] == "complete"
        assert not result.rundir.incomplete

    def test_instants_are_in_order(self, closed: tuple[Result, dict[str, int]]) -> None:
        rows = closed[0].rows
        check_instants(rows)
        assert all(row[name] is not None for row in rows for name in ORDER if name not in ("slot_ns", "connected_ns"))

    def test_slots_are_never_exceeded_and_all_used(self, closed: tuple[Result, dict[str, int]]) -> None:
        assert most_at_once(closed[0].rows) == 6

    def test_connections_are_kept(self, closed: tuple[Result, dict[str, int]]) -> None:
        result, _ = closed
        assert sum(row["connected_ns"] is not None for row in result.rows) <= 6
        assert result.rundir.manifest["workers"][0]["connections"] <= 6
        assert result.code("client.connection_churn")["value"] == 0

    def test_raw_bytes_parse_to_the_same_chunks(self, closed: tuple[Result, dict[str, int]]) -> None:
        result, _ = closed
        parts: dict[int, tuple[list[bytes], list[int]]] = collections.defaultdict(lambda: ([], []))
        for piece in read_raw(result.rundir.path / "raw").to_pylist():
            parts[piece["request"]][0].append(piece["data"])
            parts[piece["request"]][1].append(piece["arrival_ns"])
        chunks = result.chunks
        for row in result.rows:
            answer = Answer(stream=True)
            answer.feed(*parts[row["index"]])
            again = answer.finish()
            mine = chunks.filter(np.asarray(chunks["request"]) == row["index"])
            assert again.arrival_ns.tolist() == mine["arrival_ns"].to_pylist()
            assert again.tokens.tolist() == mine["tokens"].to_pylist()
            assert row["bytes_received"] == sum(map(len, parts[row["index"]][0]))

    def test_the_worker_says_how_it_was(self, closed: tuple[Result, dict[str, int]]) -> None:
        (worker,) = closed[0].rundir.manifest["workers"]
        assert worker["exit"] == "clean"
        assert 0 < worker["cpu_load_s"] < worker["cpu_s"]
        assert worker["reads"] >= worker["kernel_stamped_reads"] > 500
        names = set(closed[0].rundir.telemetry()["name"].to_pylist())
        assert {"loop_lag_ms", "cpu_share", "rss_bytes", "fds", "in_flight", "backlog"} <= names

    def test_nothing_but_results_is_left(self, closed: tuple[Result, dict[str, int]]) -> None:
        left = {path.name for path in closed[0].rundir.path.iterdir()}
        tables = {f"{name}.parquet" for name in ("plan", "requests", "chunks", "telemetry")}
        assert left == tables | {"run.json", "summary.json", "histograms.hlog", "raw"}

    def test_a_slot_waits_its_think_time(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"closed": {"concurrency": 1, "think": "60ms"}, "requests": 8}
        rows = execute(scenario(tmp_path, load), truth.url, tmp_path / "run").rows
        waits = [(after["scheduled_ns"] - before["end_ns"]) / MILLISECOND for before, after in pairwise(rows)]
        assert min(waits) >= 59.0  # the loop's own clock ticks in milliseconds
        assert float(np.median(waits)) < 120

    def test_bounded_by_time_it_ends_by_time_and_owes_nothing(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"closed": {"concurrency": 3}, "duration": "1s", "warmup": "300ms", "drain": "5s"}
        result = execute(scenario(tmp_path, load), truth.url, tmp_path / "run")
        rows, phases = result.rows, result.rundir.manifest["phases"]
        assert result.outcomes["ok"] == result.outcomes["planned"] == len(rows) > 20
        assert [row["index"] for row in rows] == list(range(len(rows)))
        assert phases["warmup_end_ns"] - phases["start_ns"] == 300 * MILLISECOND
        assert phases["measured_end_ns"] - phases["start_ns"] == 1300 * MILLISECOND
        assert phases["measured_end_ns"] <= phases["load_end_ns"] <= phases["end_ns"]
        assert max(row["scheduled_ns"] for row in rows) < phases["load_end_ns"] + 100 * MILLISECOND
        assert result.verdict != "INVALID", result.summary["verdict"]


@pytest.fixture(scope="module")
def opened(truth: GroundTruth, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """An open loop of a second and a half, with warm-up and cool-down."""
    folder = tmp_path_factory.mktemp("open")
    load = {"poisson": "60/s", "duration": "1500ms", "warmup": "400ms", "drain": "4s"}
    return execute(scenario(folder, load), truth.url, folder / "run")


class TestOpen:
    def test_due_times_are_the_plans_to_the_nanosecond(self, opened: Result) -> None:
        plan = Plan.read(opened.rundir.plan_path)
        start = opened.rundir.manifest["phases"]["start_ns"]
        off = {row["scheduled_ns"] - start - int(plan.scheduled_ns[row["index"]]) for row in opened.rows}
        assert len(off) == 1  # the worker pairs the clocks once, for all of its requests
        assert abs(off.pop()) < 100_000

    def test_nothing_is_sent_before_it_is_due(self, opened: Result) -> None:
        late = [(row["dispatched_ns"] - row["scheduled_ns"]) / MILLISECOND for row in opened.rows]
        assert min(late) >= 0
        assert float(np.median(late)) < 8  # half the mean gap: the sends follow the plan, not each other
        check_instants(opened.rows)

    def test_the_cohort_is_what_was_due_in_the_window_and_load_goes_on_until_it_is_done(self, opened: Result) -> None:
        plan = Plan.read(opened.rundir.plan_path)
        inside = (plan.scheduled_ns >= 400 * MILLISECOND) & (plan.scheduled_ns < 1900 * MILLISECOND)
        assert opened.summary["cohort"]["planned"] == opened.summary["cohort"]["ok"] == int(inside.sum())
        phases = opened.rundir.manifest["phases"]
        cohort = [row for row in opened.rows if inside[row["index"]]]
        assert max(row["end_ns"] for row in cohort) <= phases["load_end_ns"] <= phases["end_ns"]
        assert phases["load_end_ns"] < phases["measured_end_ns"] + SECOND  # and not until the drain limit
        assert opened.outcomes["ok"] == opened.outcomes["planned"] == len(opened.rows) < len(plan)

    def test_requests_are_the_first_of_the_plan_without_a_gap(self, opened: Result) -> None:
        assert opened.column("index") == list(range(len(opened.rows)))

    def test_bounded_by_a_number_it_sends_exactly_so_many(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"constant": "100/s", "requests": 50, "drain": "5s"}
        result = execute(scenario(tmp_path, load), truth.url, tmp_path / "run")
        phases = result.rundir.manifest["phases"]
        assert result.outcomes == {"planned": 50, "ok": 50}
        assert phases["measured_end_ns"] is None
        assert 480 * MILLISECOND < phases["load_end_ns"] - phases["start_ns"] < 3 * SECOND

    def test_whole_answers_without_a_stream(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"constant": "50/s", "requests": 10}
        result = execute(scenario(tmp_path, load, endpoint={"stream": False}), truth.url, tmp_path / "run")
        assert result.outcomes == {"planned": 10, "ok": 10}
        assert result.column("output_tokens") == [10] * 10
        assert result.column("chunks") == [1] * 10


class TestCaps:
    def test_a_full_cap_makes_requests_wait_and_the_wait_is_in_the_latency(
        self, truth: GroundTruth, tmp_path: Path
    ) -> None:
        load = {"constant": "200/s", "requests": 40, "max_in_flight": 4}
        result = execute(scenario(tmp_path, load), truth.url, tmp_path / "run")
        rows = result.rows
        assert result.outcomes == {"planned": 40, "ok": 40}
        assert most_at_once(rows) == 4
        check_instants(rows)
        waited = [row for row in rows if row["slot_ns"] is not None]
        assert len(waited) > 20
        assert all(row["slot_ns"] is None for row in rows[:4])
        order = [row["index"] for row in sorted(rows, key=lambda row: row["dispatched_ns"])]
        assert order == list(range(40))  # first due, first sent
        assert result.summary["metrics"]["ttft"]["max"] > result.summary["metrics"]["ttft_service"]["max"] + 50
        assert result.code("load.max_in_flight")["level"] == "warn"

    def test_a_full_cap_drops_when_it_shall(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"constant": "200/s", "requests": 40, "max_in_flight": {"limit": 4, "policy": "drop"}}
        before = truth.stats()["requests"]
        result = execute(scenario(tmp_path, load), truth.url, tmp_path / "run")
        dropped = [row for row in result.rows if row["outcome"] == "dropped"]
        assert result.outcomes == {"planned": 40, "ok": 40 - len(dropped), "dropped": len(dropped)}
        assert truth.stats()["requests"] - before == 40 - len(dropped)
        assert 10 < len(dropped) < 36
        assert all(row["dispatched_ns"] is None and "slots of max_in_flight" in row["error"] for row in dropped)
        assert most_at_once([row for row in result.rows if row["outcome"] == "ok"]) <= 4
        assert result.code("load.dropped")["level"] == "warn"
        assert result.verdict != "VALID"

    @pytest.mark.parametrize("law", [{"constant": "200/s"}, {"closed": {"concurrency": 4}}], ids=["open", "closed"])
    def test_a_throttle_holds_in_every_period(self, law: dict[str, Any], truth: GroundTruth, tmp_path: Path) -> None:
        load = {**law, "requests": 35, "throttle": {"limit": 10, "period": "500ms"}}
        result = execute(scenario(tmp_path, load), truth.url, tmp_path / "run")
        sent = sorted(result.column("sent_ns"))
        assert result.outcomes == {"planned": 35, "ok": 35}
        assert all(sent[at + 10] - sent[at] > 490 * MILLISECOND for at in range(25))
        assert sent[-1] - sent[0] < 5 * SECOND
        check_instants(result.rows)

    def test_a_throttle_and_a_cap_hold_together(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"constant": "200/s", "requests": 30, "throttle": "1000/s", "max_in_flight": 3}
        result = execute(scenario(tmp_path, load), truth.url, tmp_path / "run")
        assert result.outcomes == {"planned": 30, "ok": 30}
        assert most_at_once(result.rows) == 3


class TestWorkers:
    def prompts(self, server: OpenAI) -> dict[str, int]:
        return dict(collections.Counter(seen.json()["messages"][0]["content"] for seen in server.load))

    def send(self, folder: Path, workers: int, salt: int | None, out: str) -> tuple[Result, dict[str, int]]:
        load = {"poisson": "100/s", "requests": 30}
        workload = {"input_tokens": {"uniform": {"min": 10, "max": 60}}, "output_tokens": 3}
        with OpenAI(lambda number: tokens(3)) as server:
            result = execute(
                scenario(folder, load, workload=workload), server.url, folder / out, workers=workers, salt=salt
            )
        assert server.errors == []
        return result, self.prompts(server)

    def test_seed_salt_and_workers(self, tmp_path: Path) -> None:
        one, first = self.send(tmp_path, 1, 7, "one")
        two, second = self.send(tmp_path, 2, 7, "two")
        other, third = self.send(tmp_path, 1, 8, "other")
        assert first == second
        assert len(first) == 30
        assert not set(first) & set(third)
        assert sorted(len(text.split()) for text in first) == sorted(len(text.split()) for text in third)
        assert {row["worker"] for row in two.rows} == {0, 1}
        assert {row["index"] % 2 for row in two.rows if row["worker"] == 1} == {1}
        plans = {result.rundir.manifest["plan"]["hash"] for result in (one, two, other)}
        assert len(plans) == 1
        assert len({result.rundir.plan_path.read_bytes() for result in (one, two, other)}) == 1
        assert one.rundir.manifest["plan"]["salt"] == 7

    def test_without_a_salt_no_two_runs_say_the_same(self, tmp_path: Path) -> None:
        one, first = self.send(tmp_path, 1, None, "one")
        two, second = self.send(tmp_path, 1, None, "two")
        assert not set(first) & set(second)
        assert one.rundir.manifest["plan"]["salt"] != two.rundir.manifest["plan"]["salt"]

    def test_caps_are_shared_out(self, truth: GroundTruth, tmp_path: Path) -> None:
        load = {"closed": {"concurrency": 5}, "requests": 40}
        result = execute(scenario(tmp_path, load), truth.url, tmp_path / "run", workers=2)
        by_worker = {n: most_at_once([row for row in result.rows if row["worker"] == n]) for n in (0, 1)}
        assert by_worker == {0: 3, 1: 2}
        assert result.outcomes == {"planned": 40, "ok": 40}

    def test_workers_of_a_closed_loop_that_are_not_equally_fast_leave_no_gaps(
        self, truth: GroundTruth, tmp_path: Path
    ) -> None:
        load = {"closed": {"concurrency": 3}, "duration": "1500ms", "drain": "5s"}  # two slots here, one there
        result = execute(scenario(tmp_path, load), truth.url, tmp_path / "run", workers=2)
        last = {n: max(row["index"] for row in result.rows if row["worker"] == n) for n in (0, 1)}
        assert last[0] > last[1] + 10
        assert result.outcomes == {"planned": len(result.rows), "ok": len(result.rows)}
        assert result.code("load.dropped")["level"] == "ok"

    @pytest.mark.parametrize(
        ("load", "text"),
        [
            ({"closed": {"concurrency": 2}, "requests": 9}, "load.closed.concurrency"),
            ({"constant": "50/s", "requests": 9, "max_in_flight": 2}, "load.max_in_flight"),
            ({"constant": "50/s", "requests": 9, "throttle": "2/s"}, "load.throttle"),
        ],
    )
    def test_more_workers_than_slots_are_refused(
        self, load: dict[str, Any], text: str, truth: GroundTruth, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError, match=f"3 workers.*{text}"):
            execute(scenario(tmp_path, load), truth.url, tmp_path / "run", workers=3)


def test_the_simulated_engine_from_its_scenario_alone(tmp_path: Path) -> None:
    from servebench.scenario.loading import load_scenario, resolve_scenario

    smoke = load_scenario(resolve_scenario("smoke"), ["load.duration=1s", "load.warmup=200ms", "load.poisson=30/s"])
    result = execute(smoke, "sim", tmp_path / "run")
    plan = make_plan(smoke)
    rows = result.rows
    assert result.outcomes["ok"] == result.outcomes["planned"] == len(rows) > 20
    assert [row["input_tokens"] for row in rows] == plan.input_tokens[: len(rows)].tolist()
    assert [row["output_tokens"] for row in rows] == plan.output_tokens[: len(rows)].tolist()
    assert result.summary["simulated"] is True
    assert result.summary["endpoint"]["engine"]["name"] == "sim"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["plan"]["hash"] == plan.hash


def test_a_directory_is_named_after_the_scenario_and_its_time(truth: GroundTruth, tmp_path: Path) -> None:
    load = {"constant": "50/s", "requests": 2}
    options = RunOptions(endpoint=truth.url, results=tmp_path / "results")
    found = [run(scenario(tmp_path, load), options) for _ in range(2)]
    assert [rundir.path.parent for rundir in found] == [tmp_path / "results"] * 2
    assert found[0].path != found[1].path
    assert all(rundir.path.name.startswith("t-2") for rundir in found)
    assert RunDir.open(found[0].path).manifest["status"] == "complete"
