"""Where an export goes, and what it never touches."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from servebench.errors import UsageError
from servebench.record.rundir import RunDir
from servebench.report.exports import OURS, place
from servebench.report.exports.place import export

EXAMPLE = Path(__file__).parents[3] / "results" / "example-chat"
FOLDERS = ("csv", "parquet")


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*")}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "example"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


class Failing:
    name = "csv"
    help = "fails half way"

    def write(self, run: Any, summary: dict[str, Any], out: Path) -> list[Path]:
        out.mkdir()
        (out / "half").write_text("half")
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("name", OURS)
def test_by_default_it_is_named_after_the_run_and_the_run_is_left_as_it_is(name: str, run: Path, here: Path) -> None:
    before = state(run)
    done = export(run, name)
    assert [path.name for path in here.iterdir()] == [f"example.{name}"]
    assert (here / f"example.{name}").is_dir() == (name in FOLDERS)
    assert done.files
    assert all(file.is_file() for file in done.files)
    assert state(run) == before


@pytest.mark.parametrize("name", OURS)
def test_a_run_that_ended_before_it_began(name: str, tmp_path: Path, here: Path) -> None:
    RunDir.create(tmp_path / "begun")
    done = export(tmp_path / "begun", name)
    assert done.summary["outcomes"]["planned"] == 0
    assert done.files


def test_what_is_there_is_replaced_only_when_asked(run: Path, here: Path) -> None:
    (here / "page").write_text("mine")
    with pytest.raises(UsageError, match="page exists already; choose another --out, or replace it with --force"):
        export(run, "markdown", Path("page"))
    assert (here / "page").read_text() == "mine"
    export(run, "markdown", Path("page"), force=True)
    assert (here / "page").read_text("utf-8").startswith("# chat")


def test_other_files_of_a_folder_stay(run: Path, here: Path) -> None:
    (here / "tables").mkdir()
    (here / "tables" / "mine.txt").write_text("mine")
    (here / "tables" / "requests.csv").write_text("old")
    done = export(run, "csv", Path("tables"), force=True)
    assert Path("tables/requests.csv") in done.files
    assert (here / "tables" / "mine.txt").read_text() == "mine"
    assert (here / "tables" / "requests.csv").read_text() != "old"


def test_a_file_does_not_replace_a_folder_nor_a_folder_a_file(run: Path, here: Path) -> None:
    (here / "folder").mkdir()
    (here / "file").write_text("mine")
    with pytest.raises(UsageError, match="folder is a folder and this export is a file"):
        export(run, "markdown", Path("folder"), force=True)
    with pytest.raises(UsageError, match="file is a file and this export is a folder"):
        export(run, "csv", Path("file"), force=True)
    assert sorted(path.name for path in here.iterdir()) == ["file", "folder"]


def test_it_goes_into_the_run_directory_only_by_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(run)
    monkeypatch.chdir(run)
    with pytest.raises(UsageError, match="would be inside the run directory"):
        export(Path(), "markdown")
    assert state(run) == before
    export(Path(), "markdown", Path("page.md"))
    assert set(state(run)) - set(before) == {"page.md"}


@pytest.mark.parametrize("out", ["", "summary.json", "../example/requests.parquet", "link.parquet"])
def test_the_runs_own_data_are_never_replaced(out: str, run: Path) -> None:
    (run / "link.parquet").symlink_to("chunks.parquet")
    before = state(run)
    with pytest.raises(UsageError, match="part of the run directory"):
        export(run, "parquet", run / out, force=True)
    assert state(run) == before


def test_nor_through_a_link_from_elsewhere(run: Path, here: Path) -> None:
    (here / "innocent").symlink_to(run / "summary.json")
    with pytest.raises(UsageError, match="part of the run directory"):
        export(run, "markdown", Path("innocent"), force=True)


def test_what_a_link_leads_to_is_replaced(run: Path, here: Path) -> None:
    (here / "page").write_text("old")
    (here / "link").symlink_to("page")
    export(run, "markdown", Path("link"), force=True)
    assert (here / "link").is_symlink()
    assert (here / "page").read_text("utf-8").startswith("# chat")


def test_a_device_is_no_place(run: Path, here: Path) -> None:
    os.mkfifo(here / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        export(run, "markdown", Path("pipe"), force=True)


def test_missing_folders_are_made(run: Path, here: Path) -> None:
    assert export(run, "markdown", Path("a/b/page.md")).files == [Path("a/b/page.md")]


def test_an_export_that_fails_leaves_nothing(run: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "find", lambda name: Failing())
    with pytest.raises(UsageError, match=r"cannot write example\.csv: No space left on device"):
        export(run, "csv")
    assert list(here.iterdir()) == []


def test_a_parent_that_is_a_file_is_told(run: Path, here: Path) -> None:
    (here / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"cannot write file/page\.md"):
        export(run, "markdown", Path("file/page.md"))
