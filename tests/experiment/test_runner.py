"""The runner of real cells, on the simulated engine; and what one process is left with after several of them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runs import write_scenario
from servebench.errors import EngineError, UsageError
from servebench.experiment.campaign import Campaign
from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.directory import ExperimentDir
from servebench.experiment.runner import ScenarioRunner, expected_seconds, prepare
from servebench.report import write_reports
from servebench.run import Observer, RunOptions
from servebench.scenario import load_scenario

LOAD = {"poisson": "40/s", "requests": 12, "drain": "5s"}
SIM = {"sim": {"base": "1ms", "per_sequence": "10us"}}


def runner(folder: Path, observer: Observer | None = None, **options: Any) -> ScenarioRunner:
    scenario = write_scenario(folder, LOAD, engine=SIM)
    return ScenarioRunner(scenario, ["load.drain=4s"], RunOptions(endpoint="sim", **options), write_reports, observer)


def experiment(folder: Path) -> ExperimentDir:
    return ExperimentDir.begin(folder / "e", "sweep", "t", {}, ["servebench"])


def left_open() -> tuple[int, int, int]:
    """File descriptors, threads and child processes of this process."""
    me = Path("/proc/self")
    children = [(task / "children").read_text().split() for task in (me / "task").iterdir()]
    return len(list((me / "fd").iterdir())), threading.active_count(), sum(map(len, children))


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Outcome], list[tuple[int, int, int]], Any]:
    """Five cells in this process, and what was open after each."""
    folder = tmp_path_factory.mktemp("five")
    campaign, after = Campaign(experiment(folder), runner(folder, telemetry=True)), []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    outcomes = []
    for number in range(1, 6):
        outcomes.append(campaign.run(Cell(f"r{number:02}", {"repeat": number}, ("load.poisson=60/s",), seed=number)))
        after.append(left_open())
    handlers = {number: signal.getsignal(number) for number in before}
    return outcomes, after, (before, handlers)


class TestFiveInOneProcess:
    def test_each_is_a_run_of_the_changed_scenario(self, five: Any) -> None:
        outcomes, _, _ = five
        for number, outcome in enumerate(outcomes, 1):
            assert outcome.status == "done", outcome.reason
            scenario = outcome.manifest["scenario"]
            assert scenario["load"]["poisson"] == 60
            assert scenario["load"]["drain"] == 4
            assert set(scenario["seed"].values()) == {number}
            assert outcome.summary["outcomes"]["ok"] == 12
            assert (outcome.path / "summary.json").exists()

    def test_seeds_change_the_plan_and_every_cell_has_a_salt_of_its_own(self, five: Any) -> None:
        plans = [outcome.manifest["plan"] for outcome in five[0]]
        assert len({plan["hash"] for plan in plans}) == 5
        assert len({plan["salt"] for plan in plans}) == 5

    def test_nothing_stays_open_between_them(self, five: Any) -> None:
        _, after, _ = five
        assert len(set(after)) == 1, f"(descriptors, threads, children) after each: {after}"
        assert after[0][2] == 0

    def test_signals_are_again_what_they_were(self, five: Any) -> None:
        before, handlers = five[2]
        assert handlers == before


def test_cells_of_one_seed_have_the_same_plan(tmp_path: Path) -> None:
    campaign = Campaign(experiment(tmp_path), runner(tmp_path, telemetry=False))
    pair = campaign.run_all([Cell("r01-base", seed=7), Cell("r01-cand", overrides=("engine.sim.base=2ms",), seed=7)])
    hashes = {outcome.manifest["plan"]["hash"] for outcome in pair if outcome.manifest}
    assert len(hashes) == 1
    slow, fast = (outcome.summary["metrics"]["itl"]["p50"] for outcome in reversed(pair) if outcome.summary)
    assert slow > 1.5 * fast


def test_a_run_that_had_ended_is_told_from_one_that_had_not(tmp_path: Path) -> None:
    made = runner(tmp_path, telemetry=False)
    done = Campaign(experiment(tmp_path), made).run(Cell("a"))
    (done.path / "summary.json").unlink()
    assert made.recover(done.path) == done.summary
    manifest = json.loads((done.path / "run.json").read_text())
    (done.path / "run.json").write_text(json.dumps(manifest | {"status": "running"}))
    assert made.recover(done.path) is None


class TestChanges:
    def test_a_cell_replaces_endpoint_and_model(self, tmp_path: Path) -> None:
        made = runner(tmp_path, workers=2).options_of(Cell("a", endpoint="http://h:1", model="m"), tmp_path / "a")
        assert made == RunOptions(endpoint="http://h:1", model="m", out=tmp_path / "a", workers=2)
        plain = runner(tmp_path, model="n").options_of(Cell("b"), tmp_path / "b")
        assert (plain.endpoint, plain.model) == ("sim", "n")

    def test_a_cell_that_makes_no_scenario_says_which_setting(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"--set load\.poison=3: load\.poison.*poisson"):
            runner(tmp_path).scenario_of(Cell("a", overrides=("load.poison=3",)))

    def test_a_file_that_is_edited_in_the_meantime_changes_nothing(self, tmp_path: Path) -> None:
        made = runner(tmp_path)
        write_scenario(tmp_path, LOAD | {"poisson": "1/s"}, engine=SIM)
        assert made.scenario_of(Cell("a", overrides=("load.drain=1s",))).load.stages[0].rate == 40
        assert made.scenario_of(Cell("b")).load.drain == 4

    def test_the_cells_setting_wins_over_that_of_the_experiment(self, tmp_path: Path) -> None:
        assert runner(tmp_path).scenario_of(Cell("a", overrides=("load.drain=1s",))).load.drain == 1.0


class TestExpected:
    @pytest.mark.parametrize(
        ("load", "seconds"),
        [
            ({"poisson": "4/s", "duration": "60s", "warmup": "10s"}, 71.5),
            ({"poisson": "4/s", "requests": 100, "warmup": "5s"}, 26.5),
            ({"closed": {"concurrency": 4}, "duration": "20s"}, 21.5),
            ({"closed": {"concurrency": 4}, "requests": 20}, None),
        ],
    )
    def test_by_the_plan(self, tmp_path: Path, load: dict[str, Any], seconds: float | None) -> None:
        scenario = load_scenario(write_scenario(tmp_path, load))
        assert expected_seconds(scenario, "http://127.0.0.1:8000") == seconds

    def test_a_local_server_has_to_start(self, tmp_path: Path) -> None:
        scenario = load_scenario(write_scenario(tmp_path, {"poisson": 1, "duration": "10s"}))
        attached, sim, vllm = (expected_seconds(scenario, to) or 0 for to in ("http://h:1", "sim", "vllm"))
        assert attached < sim < vllm

    def test_cells_get_their_own_time(self, tmp_path: Path) -> None:
        cells = [Cell("a", overrides=("load.poisson=1/s",)), Cell("b"), Cell("c", expected_s=99.0)]
        times = [cell.expected_s or 0 for cell in runner(tmp_path).with_expected(cells)]
        assert times == pytest.approx([15.5, 3.8, 99.0])


class TestFailures:
    def test_a_server_that_is_not_there(self, tmp_path: Path, free_port: int) -> None:
        campaign = Campaign(experiment(tmp_path), runner(tmp_path, telemetry=False))
        outcome = campaign.run(Cell("a", endpoint=f"http://127.0.0.1:{free_port}"))
        assert outcome.status == "failed"
        assert str(free_port) in (outcome.reason or "")
        assert not outcome.path.exists()

    def test_an_interrupted_run_is_no_outcome(self, tmp_path: Path) -> None:
        class Impatient(Observer):
            def load(self, *_: Any) -> None:
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

        campaign = Campaign(experiment(tmp_path), runner(tmp_path, Impatient(), telemetry=False))
        with pytest.raises(KeyboardInterrupt):
            campaign.run(Cell("a", overrides=("load.duration=20s",)))
        assert campaign.directory.document["cells"] == []
        assert (tmp_path / "e/cells/a/run.json").exists()
        again = Campaign(experiment(tmp_path), runner(tmp_path, telemetry=False)).run(Cell("a"))
        assert again.status == "done"
        assert (tmp_path / "e/cells/a.left-1/requests.parquet").exists()


class TestPrepare:
    def test_it_knows_the_cell(self, tmp_path: Path) -> None:
        told = tmp_path / "told"
        command = f'echo "$SERVEBENCH_CELL $SERVEBENCH_ARM" > {told}'
        cell = Cell("r01-cand", prepare=command, environ={"SERVEBENCH_ARM": "cand"})
        assert Campaign(experiment(tmp_path), runner(tmp_path, telemetry=False)).run(cell).status == "done"
        assert told.read_text() == "r01-cand cand\n"

    def test_its_failure_is_the_cells(self, tmp_path: Path) -> None:
        campaign = Campaign(experiment(tmp_path), runner(tmp_path))
        outcome = campaign.run(Cell("a", prepare="echo first >&2; echo no such flag >&2; exit 3"))
        assert (outcome.status, outcome.reason) == ("failed", "the hook command ended with exit code 3: no such flag")
        assert not outcome.path.exists()

    def test_an_interruption_ends_it_and_what_it_started(self, tmp_path: Path) -> None:
        survivor = tmp_path / "survivor"
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            prepare(f"(sleep 1; touch {survivor}) & wait", {})
        time.sleep(1.0)
        assert not survivor.exists()

    def test_a_silent_failure(self) -> None:
        with pytest.raises(EngineError, match="exit code 7: it said nothing"):
            prepare("exit 7", {})

    def test_it_may_not_take_for_ever(self, tmp_path: Path) -> None:
        survivor = tmp_path / "survivor"
        start = time.monotonic()
        with pytest.raises(EngineError, match=r"did not end within 0\.3 s"):
            prepare(f"sleep 1; touch {survivor}", {}, limit_s=0.3)
        assert time.monotonic() - start < 0.9
        time.sleep(1.0)
        assert not survivor.exists()

    def test_a_server_that_it_starts_is_not_waited_for(self) -> None:
        start = time.monotonic()
        prepare("sleep 5 & echo $! >&2", {})
        assert time.monotonic() - start < 3
