from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from servebench.errors import UsageError
from servebench.experiment import JUDGES, judge
from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.directory import ExperimentDir, record_of
from servebench.experiment.portable import portable_command, portable_text, shown

KEY = "sk-canary-0123456789abcdef"
QUESTION: dict[str, Any] = {"rates": [1, 2, 4], "scenario": {"name": "chat", "load": {"poisson": 4.0}}}


def begin(path: Path | None, question: dict[str, Any] = QUESTION, kind: str = "sweep", **more: Any) -> ExperimentDir:
    return ExperimentDir.begin(path, kind, "chat", question, ["servebench", kind, "chat"], **more)


def done(directory: ExperimentDir, name: str, summary: dict[str, Any], **labels: Any) -> Outcome:
    path = directory.cell_path(name)
    path.mkdir(parents=True)
    (path / "summary.json").write_text(json.dumps(summary))
    outcome = Outcome(Cell(name, labels), "done", summary, None, None, 1.25, path)
    directory.note(record_of(outcome))
    return outcome


def stored(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "experiment.json").read_text("utf-8"))
    return document


class TestBegin:
    def test_a_new_experiment_says_what_is_asked(self, tmp_path: Path) -> None:
        directory = begin(tmp_path / "a" / "b")
        document = stored(directory.path)
        assert document == directory.document
        assert (document["kind"], document["name"], document["question"]) == ("sweep", "chat", QUESTION)
        assert document["command"] == ["servebench", "sweep", "chat"]
        assert (document["cells"], document["result"], document["simulated"]) == ([], None, False)
        assert {path.name for path in directory.path.iterdir()} == {"experiment.json"}

    def test_the_same_question_goes_on(self, tmp_path: Path) -> None:
        first = begin(tmp_path)
        done(first, "r01", {"verdict": {"status": "VALID"}})
        again = begin(tmp_path)
        assert again.document == first.document
        assert again.record("r01") is not None

    @pytest.mark.parametrize(
        ("question", "said"),
        [
            ({**QUESTION, "rates": [1, 2, 8]}, "rates.2 is 4 there and 8 now"),
            ({**QUESTION, "rates": [1, 2]}, r"rates is \[1, 2, 4\] there and \[1, 2\] now"),
            ({**QUESTION, "more": "x"}, 'more is null there and "x" now'),
            ({**QUESTION, "scenario": {"name": "chat", "load": {"poisson": 5}}}, "scenario.load.poisson is 4.0 there"),
        ],
    )
    def test_another_question_names_the_first_key_that_differs(
        self, tmp_path: Path, question: dict[str, Any], said: str
    ) -> None:
        begin(tmp_path)
        before = stored(tmp_path)
        with pytest.raises(UsageError, match=f"another question: {said}.*; choose another --out"):
            begin(tmp_path, question)
        assert stored(tmp_path) == before

    def test_another_kind_and_a_run_are_left_alone(self, tmp_path: Path) -> None:
        begin(tmp_path / "e")
        with pytest.raises(UsageError, match="of the kind sweep, not ab"):
            begin(tmp_path / "e", kind="ab")
        (tmp_path / "run.json").write_text("{}")
        with pytest.raises(UsageError, match="holds a run, not an experiment"):
            begin(tmp_path)

    def test_runs_whose_question_is_gone_are_not_taken_for_answers(self, tmp_path: Path) -> None:
        done(begin(tmp_path), "a", {})
        (tmp_path / "experiment.json").unlink()
        with pytest.raises(UsageError, match=r"an experiment that has lost its experiment\.json; choose another --out"):
            begin(tmp_path)

    def test_without_a_path_each_has_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        paths = [begin(None).path for _ in range(3)]
        assert len(set(paths)) == 3
        assert all(re.fullmatch(r"results/sweep-chat-\d{8}-\d{6}(-\d)?", str(path)) for path in paths)

    def test_a_place_that_cannot_be_had_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=r"cannot make the directory .*: Not a directory"):
            begin(tmp_path / "file" / "e")


class TestOpen:
    def test_what_is_none(self, tmp_path: Path) -> None:
        assert not ExperimentDir.is_one(tmp_path)
        with pytest.raises(UsageError, match=r"is no experiment: it has no experiment.json"):
            ExperimentDir.open(tmp_path)
        assert ExperimentDir.is_one(begin(tmp_path).path)

    @pytest.mark.parametrize(("key", "value"), [("cells", None), ("question", []), ("kind", 1)])
    def test_a_document_that_is_edited_badly(self, tmp_path: Path, key: str, value: Any) -> None:
        document = begin(tmp_path).document
        (tmp_path / "experiment.json").write_text(json.dumps(document | {key: value}))
        with pytest.raises(UsageError, match=f"is damaged: {key} is not what it should be"):
            ExperimentDir.open(tmp_path)

    def test_damage_and_a_newer_schema(self, tmp_path: Path) -> None:
        (tmp_path / "experiment.json").write_text('{"schema": 1, "kin')
        with pytest.raises(UsageError, match="is damaged"):
            ExperimentDir.open(tmp_path)
        (tmp_path / "experiment.json").write_text('{"schema": 9}')
        with pytest.raises(UsageError, match="has schema 9; this version of servebench reads schema 1"):
            ExperimentDir.open(tmp_path)


class TestCells:
    def test_outcomes_are_read_back_in_their_order(self, tmp_path: Path) -> None:
        directory = begin(tmp_path)
        first = done(directory, "b", {"verdict": {"status": "INVALID"}}, rate=1.5)
        second = done(directory, "a", {"verdict": {"status": "VALID"}}, rate=3)
        assert ExperimentDir.open(tmp_path).outcomes() == [first, second]
        assert [record["verdict"] for record in stored(tmp_path)["cells"]] == ["INVALID", "VALID"]
        assert [record["path"] for record in stored(tmp_path)["cells"]] == ["cells/b", "cells/a"]

    def test_a_second_record_takes_the_place_of_the_first(self, tmp_path: Path) -> None:
        directory = begin(tmp_path)
        failed = Outcome(Cell("a"), "failed", None, None, "no server", 0.5, directory.cell_path("a"))
        directory.note(record_of(failed))
        assert directory.outcomes() == [failed]
        done(directory, "a", {})
        assert [record["status"] for record in stored(tmp_path)["cells"]] == ["done"]

    def test_a_cell_whose_summary_is_gone_is_no_outcome(self, tmp_path: Path) -> None:
        directory = begin(tmp_path)
        done(directory, "a", {})
        (directory.cell_path("a") / "summary.json").unlink()
        assert directory.outcomes() == []

    def test_a_moved_experiment_is_still_whole(self, tmp_path: Path) -> None:
        directory = begin(tmp_path / "here")
        done(directory, "a", {"n": 1})
        (tmp_path / "here").rename(tmp_path / "there")
        (outcome,) = ExperimentDir.open(tmp_path / "there").outcomes()
        assert outcome.summary == {"n": 1}
        assert outcome.path == tmp_path / "there" / "cells" / "a"

    @pytest.mark.parametrize("name", ["", "Base", "a/b", "..", ".a", "a b", "ä", "x" * 200])
    def test_a_name_that_is_no_folder_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match="cannot be the name of a cell"):
            Cell(name)


class TestWhatIsWritten:
    def test_no_secret_and_no_path_of_this_machine(self, tmp_path: Path) -> None:
        folder = tmp_path / "e"
        question = {
            "scenario": {"endpoint": {"headers": {"X-Tenant-Key": KEY}}},
            "arms": [
                {"overrides": [f"endpoint.headers.Authorization={KEY}"], "endpoint": "http://u:passw0rd99@h:8000"},
            ],
            "hypothesis": f"it helps with {KEY}",
        }
        command = ["servebench", "ab", f"--set=endpoint.headers.X={KEY}", "--out", str(folder), f"--api-key={KEY}"]
        directory = ExperimentDir.begin(folder, "ab", "chat", question, command, [KEY])
        reason = f"{folder}/cells/a/server.log: it says\n {KEY}"
        directory.note(record_of(Outcome(Cell("a"), "failed", None, None, reason, 1.0, directory.cell_path("a"))))
        directory.finish({"text": f"told by {KEY}", "j_per_output_token": {"verdict": "better"}})
        text = (folder / "experiment.json").read_text()
        assert KEY not in text
        assert "passw0rd99" not in text
        assert str(tmp_path) not in text
        assert stored(folder)["cells"][0]["reason"] == "cells/a/server.log: it says [withheld]"
        assert stored(folder)["result"]["j_per_output_token"] == {"verdict": "better"}
        ExperimentDir.begin(folder, "ab", "chat", question, command, [KEY])  # asks the same, secrets or not

    def test_a_command_line_keeps_relative_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        given = ["servebench", "sweep", "s/chat.yaml", f"--out={tmp_path}/r/e", "/elsewhere/x.yaml", "--set", "a.b=/c"]
        assert portable_command(given) == [*given[:3], "--out=r/e", "x.yaml", "--set", "a.b=/c"]

    def test_a_message_is_one_line(self, tmp_path: Path) -> None:
        assert portable_text(f"at {tmp_path}/cells/a:\n  broken", tmp_path) == "at cells/a: broken"

    @pytest.mark.parametrize(
        ("folder", "here", "home", "text", "said"),
        [
            ("/", "/", "/", "http://h:1/x: no", "http://h:1/x: no"),
            (".", "/w", "/h", "at ../x and http://h", "at ../x and http://h"),
            ("e", "/w", "/h", "in cache/dir, e/cells/a and /w/e/b", "in cache/dir, cells/a and b"),
            ("/w/e", "/w", "/h", "/w/e/a, /w/f, /h/c/python, /x/w/e/a", "a, f, ~/c/python, /x/w/e/a"),
        ],
    )
    def test_only_whole_paths_are_shortened(
        self, folder: str, here: str, home: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", home)
        monkeypatch.setattr(Path, "cwd", lambda: Path(here))
        monkeypatch.setattr(Path, "resolve", lambda path: Path(here) / path)
        assert portable_text(text, Path(folder)) == said

    def test_what_a_hook_is_told_is_held_to_the_rules_of_the_settings(self) -> None:
        told = {
            "SERVEBENCH_ARM": "a",
            "SERVEBENCH_ARM_ENDPOINT_HEADERS_X_TENANT": "acme",
            "SERVEBENCH_ARM_API_KEY": "k",
        }
        more = {"SERVEBENCH_ARM_VLLM_ENV_HF_TOKEN": "t", "SERVEBENCH_ARM_VLLM_ENV_OMP_NUM_THREADS": "2"}
        hidden = (
            "SERVEBENCH_ARM_ENDPOINT_HEADERS_X_TENANT",
            "SERVEBENCH_ARM_API_KEY",
            "SERVEBENCH_ARM_VLLM_ENV_HF_TOKEN",
        )
        expected = told | more | dict.fromkeys(hidden, "[withheld]")
        assert shown({"environ": told | more}) == {"environ": expected}
        assert shown({"environ": expected}) == {"environ": expected}

    def test_what_is_shown_stays_the_same_when_it_is_shown_again(self) -> None:
        once = shown({"scenario": QUESTION["scenario"], "arms": [f"endpoint.headers.X={KEY}"], "n": [1, None, 2.5]})
        assert shown(once) == once
        assert once["n"] == [1, None, 2.5]

    def test_a_full_disk_is_one_line_and_leaves_the_old_document(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory = begin(tmp_path)
        before = stored(tmp_path)
        (tmp_path / ".experiment.json.new").symlink_to("/dev/full")
        with pytest.raises(UsageError, match=f"the experiment in {tmp_path} cannot go on: No space left on device"):
            directory.finish({"answer": 1})
        assert stored(tmp_path) == before


class TestJudge:
    def test_an_unknown_kind_is_answered_with_the_nearest(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r'unknown kind "sweeps" \(did you mean "sweep"\?\)'):
            judge(begin(tmp_path, kind="sweeps"))

    @pytest.mark.parametrize("module", JUDGES.values())
    def test_every_kind_has_its_judge(self, module: str) -> None:
        assert callable(importlib.import_module(f"servebench.experiment.{module}").judge)
