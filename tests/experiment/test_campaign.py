from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from servebench.errors import EngineError, UsageError
from servebench.experiment.campaign import Campaign, Watcher
from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.directory import ExperimentDir

CELLS = [Cell(f"r0{number}", {"repeat": number}, expected_s=10.0) for number in (1, 2, 3)]


class Runner:
    """Answers at once; what is in `faults` is raised instead, once."""

    def __init__(self, **faults: BaseException) -> None:
        self.ran: list[str] = []
        self.faults = faults

    def __call__(self, cell: Cell, path: Path) -> dict[str, Any]:
        assert not path.exists()
        self.ran.append(cell.name)
        if fault := self.faults.pop(cell.name, None):
            path.mkdir(parents=True)
            (path / "half").write_text("what was recorded")
            raise fault
        return {"verdict": {"status": "VALID"}, "name": cell.name, "simulated": True}


class Heard(Watcher):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def planned(self, cells: Any, seconds: float | None) -> None:
        self.calls.append(("planned", [cell.name for cell in cells], seconds))

    def found(self, outcome: Outcome) -> None:
        self.calls.append(("found", outcome.cell.name))

    def begins(self, cell: Cell, number: int, of: int | None, left_s: float | None) -> None:
        self.calls.append(("begins", cell.name, number, of, left_s))

    def ends(self, outcome: Outcome, left_s: float | None) -> None:
        self.calls.append(("ends", outcome.cell.name, outcome.status, left_s))


def begin(path: Path) -> ExperimentDir:
    return ExperimentDir.begin(path, "sweep", "t", {"n": 3}, ["servebench", "sweep"])


def names(path: Path) -> list[str]:
    return sorted(folder.name for folder in (path / "cells").iterdir())


def test_each_cell_is_run_once_and_stored(tmp_path: Path) -> None:
    runner = Runner()
    outcomes = Campaign(begin(tmp_path), runner).run_all(CELLS)
    assert runner.ran == ["r01", "r02", "r03"]
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    document = json.loads((tmp_path / "experiment.json").read_text())
    assert [record["labels"] for record in document["cells"]] == [{"repeat": number} for number in (1, 2, 3)]
    assert document["simulated"] is True
    assert json.loads((tmp_path / "cells/r02/summary.json").read_text())["name"] == "r02"


def test_what_is_finished_is_never_repeated(tmp_path: Path) -> None:
    first = Campaign(begin(tmp_path), Runner()).run_all(CELLS[:2])
    runner = Runner()
    outcomes = Campaign(begin(tmp_path), runner).run_all(CELLS)
    assert runner.ran == ["r03"]
    assert [o.summary for o in outcomes[:2]] == [o.summary for o in first]
    assert [o.seconds for o in outcomes[:2]] == pytest.approx([o.seconds for o in first], abs=0.001)
    assert outcomes[0].cell is CELLS[0]


def test_a_cell_asked_for_twice_is_run_once(tmp_path: Path) -> None:
    runner = Runner()
    campaign = Campaign(begin(tmp_path), runner)
    assert campaign.run(CELLS[0]).summary == campaign.run(CELLS[0]).summary
    assert runner.ran == ["r01"]


def test_a_failed_cell_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    runner = Runner(r02=EngineError("vLLM died: out of memory"))
    outcomes = Campaign(begin(tmp_path), runner).run_all(CELLS)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert (outcomes[1].reason, outcomes[1].summary, outcomes[1].verdict) == ("vLLM died: out of memory", None, None)
    record = begin(tmp_path).record("r02")
    assert record is not None
    assert (record["status"], record["reason"]) == ("failed", "vLLM died: out of memory")
    assert (tmp_path / "cells/r02/half").exists()  # what was recorded of it stays


def test_failed_cells_are_tried_again_only_when_asked_for_and_once(tmp_path: Path) -> None:
    Campaign(begin(tmp_path), Runner(r02=EngineError("gone"))).run_all(CELLS)
    plain = Runner()
    assert [o.status for o in Campaign(begin(tmp_path), plain).run_all(CELLS)] == ["done", "failed", "done"]
    assert plain.ran == []
    failing = Runner(r02=EngineError("gone again"))
    campaign = Campaign(begin(tmp_path), failing, retry_failed=True)
    assert [o.reason for o in campaign.run_all(CELLS)] == [None, "gone again", None]
    assert campaign.run(CELLS[1]).status == "failed"
    assert failing.ran == ["r02"]
    assert [o.status for o in Campaign(begin(tmp_path), Runner(), retry_failed=True).run_all(CELLS)] == ["done"] * 3
    assert names(tmp_path) == ["r01", "r02", "r02.left-1", "r02.left-2", "r03"]


def test_an_interruption_keeps_what_is_finished_and_the_cell_is_run_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Campaign(begin(tmp_path), Runner(r02=KeyboardInterrupt())).run_all(CELLS)
    assert begin(tmp_path).record("r02") is None
    runner = Runner()
    assert [o.status for o in Campaign(begin(tmp_path), runner).run_all(CELLS)] == ["done"] * 3
    assert runner.ran == ["r02", "r03"]
    assert (tmp_path / "cells/r02.left-1/half").read_text() == "what was recorded"


def test_a_finished_cell_without_its_summary_is_run_again(tmp_path: Path) -> None:
    Campaign(begin(tmp_path), Runner()).run_all(CELLS)
    (tmp_path / "cells/r03/summary.json").unlink()
    runner = Runner()
    Campaign(begin(tmp_path), runner).run_all(CELLS)
    assert runner.ran == ["r03"]


def test_an_error_of_the_programs_own_is_not_a_failed_cell(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        Campaign(begin(tmp_path), Runner(r02=ZeroDivisionError())).run_all(CELLS)
    assert begin(tmp_path).record("r02") is None


def test_a_full_disk_ends_the_experiment_instead_of_failing_every_cell(tmp_path: Path) -> None:
    full = UsageError("the run in cells/r01 cannot go on: No space left on device")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(UsageError, match="No space left"):
        Campaign(begin(tmp_path), Runner(r01=full)).run_all(CELLS)
    assert begin(tmp_path).document["cells"] == []


def test_the_watcher_hears_of_every_cell_and_of_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 4))  # each cell takes four seconds
    monkeypatch.setattr("servebench.experiment.campaign.time.monotonic", lambda: float(next(clock)))
    heard = Heard()
    Campaign(begin(tmp_path), Runner(), heard).run_all(CELLS)
    assert heard.calls == [
        ("planned", ["r01", "r02", "r03"], 30.0),
        ("begins", "r01", 1, 3, 30.0),
        ("ends", "r01", "done", 8.0),
        ("begins", "r02", 2, 3, 8.0),
        ("ends", "r02", "done", 4.0),
        ("begins", "r03", 3, 3, 4.0),
        ("ends", "r03", "done", 0.0),
    ]


def test_the_watcher_hears_of_what_was_there_before(tmp_path: Path) -> None:
    Campaign(begin(tmp_path), Runner()).run_all(CELLS[:2])
    heard = Heard()
    Campaign(begin(tmp_path), Runner(), heard).run_all(CELLS)
    assert heard.calls == [
        ("planned", ["r03"], 10.0),
        ("found", "r01"),
        ("found", "r02"),
        ("begins", "r03", 3, 3, 10.0),
        ("ends", "r03", "done", 0.0),
    ]


def test_a_failed_cell_says_nothing_of_the_time_that_the_others_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    Campaign(begin(tmp_path), Runner(r01=EngineError("no")), heard).run_all(CELLS)
    assert ("begins", "r02", 2, 3, 20.0) in heard.calls


def test_a_cell_tried_again_counts_in_the_time_left(tmp_path: Path) -> None:
    Campaign(begin(tmp_path), Runner(r02=EngineError("no"))).run_all(CELLS)
    heard = Heard()
    Campaign(begin(tmp_path), Runner(), heard, retry_failed=True).run_all(CELLS)
    assert heard.calls == [
        ("planned", ["r02"], 10.0),
        ("found", "r01"),
        ("begins", "r02", 2, 3, 10.0),
        ("ends", "r02", "done", 0.0),
        ("found", "r03"),
    ]


def test_cells_found_out_one_by_one_have_no_known_number(tmp_path: Path) -> None:
    heard = Heard()
    campaign = Campaign(begin(tmp_path), Runner(), heard)
    campaign.run(CELLS[0])
    campaign.run(Cell("more"))
    begun = [call for call in heard.calls if call[0] == "begins"]
    assert [call[1:] for call in begun] == [("r01", 1, None, None), ("more", 2, None, None)]


def test_time_left_is_unknown_when_that_of_one_cell_is(tmp_path: Path) -> None:
    heard = Heard()
    Campaign(begin(tmp_path), Runner(), heard).run_all([Cell("a", expected_s=3.0), Cell("b")])
    assert heard.calls[0] == ("planned", ["a", "b"], None)


class TestRecovered:
    """Cells whose run had ended when the session was killed, before experiment.json said so."""

    def half_done(self, folder: Path) -> ExperimentDir:
        directory = begin(folder)
        path = directory.cell_path("r01")
        path.mkdir(parents=True)
        stamps = {"created_ns": 1_000_000_000, "phases": {"end_ns": 4_500_000_000}}
        (path / "run.json").write_text(json.dumps(stamps))
        return directory

    def test_a_whole_run_is_taken_over(self, tmp_path: Path) -> None:
        runner, heard = Runner(), Heard()

        def recover(path: Path) -> dict[str, Any]:
            (path / "summary.json").write_text('{"n": 1}')
            return {"n": 1}

        outcome = Campaign(self.half_done(tmp_path), runner, heard, recover=recover).run(CELLS[0])
        assert (outcome.status, outcome.summary, outcome.seconds) == ("done", {"n": 1}, 3.5)
        assert runner.ran == []
        assert heard.calls == [("found", "r01")]
        assert [stored.summary for stored in begin(tmp_path).outcomes()] == [{"n": 1}]

    def test_half_a_run_is_not(self, tmp_path: Path) -> None:
        runner = Runner()
        Campaign(self.half_done(tmp_path), runner, recover=lambda path: None).run(CELLS[0])
        assert runner.ran == ["r01"]
        assert names(tmp_path) == ["r01", "r01.left-1"]

    def test_nor_one_that_is_damaged(self, tmp_path: Path) -> None:
        def recover(path: Path) -> None:
            raise UsageError("requests.parquet is damaged")

        runner = Runner()
        Campaign(self.half_done(tmp_path), runner, recover=recover).run(CELLS[0])
        assert runner.ran == ["r01"]

    def test_nor_one_that_has_failed(self, tmp_path: Path) -> None:
        Campaign(begin(tmp_path), Runner(r01=EngineError("no"))).run(CELLS[0])
        runner = Runner()
        Campaign(begin(tmp_path), runner, retry_failed=True, recover=lambda path: {"n": 1}).run(CELLS[0])
        assert runner.ran == ["r01"]
