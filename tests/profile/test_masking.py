"""Secrets in what profilers write: gone, and the files as long as before."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from servebench.profile.masking import mask

SECRETS = ("a-longer-Secret-0", "Secret-0")


def test_all_are_overwritten_and_nothing_else_changes(tmp_path: Path) -> None:
    data = tmp_path / "decode" / "perf.data"
    data.parent.mkdir()
    data.write_bytes(b"\x00\xffKEY=a-longer-Secret-0\x00\xfeB=Secret-0Secret-0" + bytes(range(256)))
    assert mask(tmp_path, SECRETS) == []
    assert data.read_bytes() == b"\x00\xffKEY=" + b"*" * 17 + b"\x00\xfeB=" + b"*" * 16 + bytes(range(256))


def test_a_database_is_still_one(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "capture.sqlite") as database:
        database.execute("CREATE TABLE t (name TEXT UNIQUE)")
        database.executemany("INSERT INTO t VALUES (?)", [("A=1",), ("KEY=Secret-0",), ("PATH=/bin",)])
    database.close()
    mask(tmp_path, SECRETS)
    with sqlite3.connect(tmp_path / "capture.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT name FROM t ORDER BY rowid").fetchall()[1] == ("KEY=********",)
    database.close()


def test_run_directories_links_and_empty_files_are_passed_over(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "profile" / "decode" / "plain"
    run.mkdir(parents=True)
    outside.write_text("Secret-0")
    (run / "run.json").write_text("Secret-0")
    (tmp_path / "profile" / "link").symlink_to(outside)
    (tmp_path / "profile" / "empty").touch()
    assert mask(tmp_path / "profile", SECRETS) == []
    assert outside.read_text() == (run / "run.json").read_text() == "Secret-0"


def test_a_file_that_cannot_be_changed_is_told(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def refuses(path: Path, words: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("servebench.profile.masking._mask", refuses)
    (tmp_path / "perf.data").write_text("Secret-0")
    [line] = mask(tmp_path, SECRETS)
    assert line == "perf.data: Read-only file system; it may hold secrets of the server's environment"
    assert mask(tmp_path, ()) == []
