"""Files are told by their content; what cannot be read is one clear line."""

from __future__ import annotations

import gzip
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kineto_files
from ncu_files import WHOLE, write_raw
from nsys_files import NsysFile
from servebench.errors import UsageError
from servebench.profile.readers import Told, open_file, open_files
from servebench.profile.readers.formats import content, identify
from servebench.profile.stacks import Stacks
from servebench.profile.timeline import Timeline
from servebench.profile.tools.nsys import Installation

FOLDED = b"vllm 12;main;at::mm [libtorch.so] 7\nvllm 12;main;poll [libc.so.6] 3\n"


def nsys_export(path: Path) -> Path:
    file = NsysFile()
    file.kernel("gemm", 1_000, 5_000, launch=(200, 400))
    return file.write(path)


def timeline() -> Timeline:
    columns = {
        "start": np.array([10, 20]),
        "end": np.array([15, 30]),
        "name": np.array([0, 0]),
        "kind": np.array([0, 0]),
    }
    return Timeline.of_columns("nsys", ("gemm",), columns)


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        open_file(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    found = open_file(nsys_export(tmp_path / "capture.json.gz"))
    assert isinstance(found, Timeline)
    assert found.source == "nsys"
    assert found.names[found.name[found.on_device][0]] == "gemm"


def test_a_timeline_of_our_own(tmp_path: Path) -> None:
    timeline().write(tmp_path / "any")
    found = open_file(tmp_path / "any")
    assert isinstance(found, Timeline)
    assert found.end.tolist() == [15, 30]


def test_folded_stacks(tmp_path: Path) -> None:
    found = open_file(put(tmp_path / "profile.txt", FOLDED))
    assert isinstance(found, Stacks)
    assert found.total == 10


def test_a_table_of_nsight_compute(tmp_path: Path) -> None:
    found = open_file(write_raw(tmp_path / "log", [("gemm", WHOLE)]))
    assert isinstance(found, Told)
    assert found.section == "kernel_replay"
    assert found.document["rows"][0]["kernel"] == "gemm"


def test_a_log_of_the_sanitizer(tmp_path: Path) -> None:
    text = b"========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    found = open_file(put(tmp_path / "log", text))
    assert isinstance(found, Told)
    assert (found.section, found.document["passed"]) == ("sanitizer", True)


def test_a_report_of_nsys_is_exported_out_of_sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = put(tmp_path / "decode", b"NVIDIA Tegra Profiler Report 1.0" + bytes(60))
    with pytest.raises(UsageError, match=r"which only nsys reads; where it is: nsys export --type sqlite decode"):
        monkeypatch.setattr("servebench.profile.tools.nsys.find_nsys", no_nsys)
        open_file(report)

    seen: list[Path] = []

    def export(nsys: Path, path: Path, limit_s: float) -> Path:
        seen.append(path.resolve())
        return nsys_export(path.with_suffix(".sqlite"))

    installed = Installation(tmp_path / "nsys", "2024.5", None, None)
    monkeypatch.setattr("servebench.profile.tools.nsys.find_nsys", lambda: installed)
    monkeypatch.setattr("servebench.profile.tools.nsys.reports.export", export)
    found = open_file(report)
    assert isinstance(found, Timeline)
    assert seen == [report]
    assert [path.name for path in tmp_path.iterdir()] == ["decode"]


def no_nsys() -> Installation:
    raise UsageError("nsys is not here")


def test_several_files_are_ranks_or_refused(tmp_path: Path) -> None:
    export = nsys_export(tmp_path / "a")
    assert isinstance(open_files([export]), Timeline)
    with pytest.raises(UsageError, match=r"seems to be an SQLite database.*ranks of one capture"):
        open_files([export, export])


@pytest.mark.parametrize(
    ("data", "seems"),
    [
        (b"NVR\0" + bytes(60), "a report of Nsight Compute; ncu --import"),
        (b"ARROW1\0\0" + bytes(60), "an Arrow file; nsys export --type sqlite"),
        (b"PK\x03\x04" + bytes(60), "a ZIP archive; unpack it"),
        (b"\x7fELF" + bytes(60), "a program; understood are"),
        (b'{"name": "chat", "metrics": {}}', "a JSON document without traceEvents; understood are"),
        (b"[1, 2, 3]", "a JSON document without traceEvents"),
        (b"Hello,\nthis is a letter.\n", "a text of no kind that is known here; understood are"),
        (bytes(range(256)) * 8, "data of no kind that is known here; understood are"),
        (b"\x0a\x05\x0a\x03ab\0", "data of no kind that is known here"),
        (gzip.compress(b"a letter"), "a text of no kind that is known here"),
        (gzip.compress(b"SQLite format 3\0" + bytes(90)), "data of no kind that is known here"),
    ],
)
def test_a_foreign_file_is_told_what_it_seems_to_be(data: bytes, seems: str, tmp_path: Path) -> None:
    path = put(tmp_path / "capture.sqlite", data)
    text = refusal(path)
    assert f"{path} seems to be {seems}" in text
    assert "nsys" in text or "unpack" in text or "ncu" in text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"\x1f\x8b\x08\x00garbage that is no gzip", "is a damaged gzip file"),
        (b"PAR1" + bytes(40), "cannot be read"),
        (b"SQLite format 3\0" + bytes(90), "page size|truncated|damaged|no export|cannot be read"),
    ],
)
def test_a_damaged_file_is_one_line(data: bytes, reason: str, tmp_path: Path) -> None:
    path = put(tmp_path / "capture", data)
    text = refusal(path)
    assert str(path) in text
    assert any(each in text for each in reason.split("|")), text


def test_a_cut_export_is_one_line(tmp_path: Path) -> None:
    whole = nsys_export(tmp_path / "whole").read_bytes()
    assert "truncated" in refusal(put(tmp_path / "cut", whole[: len(whole) // 2]))


def test_a_database_of_something_else(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "places.sqlite")) as database:
        database.execute("CREATE TABLE places (name TEXT)")
        database.commit()
    assert "no export of Nsight Systems" in refusal(tmp_path / "places.sqlite")


def test_a_parquet_file_of_something_else(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "requests.parquet")
    assert "holds no timeline" in refusal(tmp_path / "requests.parquet")


def test_missing_and_special_files(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"{tmp_path / 'none'} does not exist"
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in refusal(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "mine")
    path.chmod(0)
    assert "cannot be read: Permission denied" in refusal(path)


def test_a_folder_with_one_capture(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# what was measured\n")
    (tmp_path / "deep").mkdir()
    nsys_export(tmp_path / "deep" / "decode.sqlite")
    assert isinstance(open_file(tmp_path), Timeline)


def test_a_windows_folder_is_its_timeline(tmp_path: Path) -> None:
    nsys_export(tmp_path / "decode.sqlite")
    timeline().write(tmp_path / "timeline.parquet")
    found = open_file(tmp_path)
    assert isinstance(found, Timeline)
    assert len(found) == 2


def test_a_folder_with_several_is_a_choice(tmp_path: Path) -> None:
    nsys_export(tmp_path / "a.sqlite")
    nsys_export(tmp_path / "b.sqlite")
    assert f"holds 2 captures, choose one: {tmp_path / 'a.sqlite'}, {tmp_path / 'b.sqlite'}" in refusal(tmp_path)


def test_a_run_with_windows_names_its_windows(tmp_path: Path) -> None:
    for window in ("prefill", "decode"):
        folder = tmp_path / "profile" / window
        folder.mkdir(parents=True)
        timeline().write(folder / "timeline.parquet")
        nsys_export(folder / "capture.sqlite")
    profile = tmp_path / "profile"
    assert f"2 captures, choose one: {profile / 'decode'}, {profile / 'prefill'}" in refusal(tmp_path)


def test_a_folder_without_any(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert "is a folder without a profiler's file; understood are" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b'{"schemaVersion": 1, "traceEvents": []}', "kineto"),
        (b'{"otherData": "' + b"x" * 3_000_000 + b'", "traceEvents": []}', "kineto"),
        (b'\xef\xbb\xbf  [\n {"name": "a", "ph": "X", "ts": 1}]', "kineto"),
        (b"PERFILE2" + bytes(90), "perf"),
        (b'==PROF== Connected\n"ID","Process ID","Process Name","Host Name"\n', "ncu"),
        (b"========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", "sanitizer"),
        (b"\x0a\x20\x08\x01\x12\x09/host:CPU" + bytes(30), "xplane"),
    ],
)
def test_what_a_file_is(data: bytes, key: str, tmp_path: Path) -> None:
    assert identify(put(tmp_path / "a", data)).key == key
    if not data.startswith((b"PERF", b"\x0a")):
        assert identify(put(tmp_path / "b", gzip.compress(data))).key == key


def test_what_is_left_of_a_cut_gzip_file_counts(tmp_path: Path) -> None:
    text = b'{"traceEvents": [' + os.urandom(100_000).hex().encode()
    packed = put(tmp_path / "cut", gzip.compress(text)[:50_000])
    assert identify(packed).key == "kineto"
    assert text.startswith(b"".join(content(packed)))


def whole_files(folder: Path) -> dict[str, bytes]:
    """One small file of each kind that is read here."""
    timeline().write(folder / "timeline")
    trace = kineto_files.text(kineto_files.document(kineto_files.decode_steps(3), base_ns=1_790_000_000_000_000_000))
    return {
        "nsys": nsys_export(folder / "nsys").read_bytes(),
        "timeline": (folder / "timeline").read_bytes(),
        "kineto": trace,
        "packed kineto": gzip.compress(trace),
        "folded": FOLDED * 5,
        "ncu": write_raw(folder / "ncu", [("gemm", WHOLE)]).read_bytes(),
    }


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happened_to_a_file_it_is_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject) -> None:
    whole = whole_files(tmp_path)
    broken = bytearray(whole[data.draw(st.sampled_from(sorted(whole)))])
    for at in data.draw(st.lists(st.integers(0, len(broken) - 1), max_size=20)):
        broken[at] = data.draw(st.integers(0, 255))
    path = put(tmp_path / "broken", bytes(broken[: data.draw(st.integers(0, len(broken)))]))
    try:
        open_file(path)
    except UsageError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
