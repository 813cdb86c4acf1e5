"""`servebench analyze`: real files in, a document or tables out; what cannot be read is one line and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import kineto_files
from nsys_files import NsysFile
from servebench.cli.main import main
from servebench.errors import ExitCode
from servebench.testing.synthetic import MS, SECOND, START_NS, closed_run, open_run

Capture = pytest.CaptureFixture[str]
STEPS, STEP_NS = 10, 10 * MS
FOLDED = "vllm 12;main;at::mm [libtorch.so] 7\nvllm 12;main;poll [libc.so.6] 3\n"


def decoding(path: Path, epoch_ns: int | None = START_NS + SECOND) -> Path:
    """Ten decode steps of 10 ms: the host launches 1 ms into each; the kernel takes 6 ms, and then the device idles."""
    file = NsysFile("3.13", epoch_ns=epoch_ns)
    file.gpu(0, "NVIDIA H200")
    for at in range(0, STEPS * STEP_NS, STEP_NS):
        file.range("execute_context_0(0)_generation_4(4)", at, at + 9 * MS)
        file.kernel("gemm[tn]<float>(int)", at + 2 * MS, at + 8 * MS, launch=(at + MS, at + MS + 5_000))
    return file.write(path)


def trace(path: Path, rank: int = 0, ranks: int = 1) -> Path:
    events = kineto_files.decode_steps(STEPS)
    return kineto_files.write(path, kineto_files.document(events, base_ns=START_NS + SECOND, rank=rank, ranks=ranks))


def analyzed(capsys: Capture, *arguments: str | Path) -> dict[str, Any]:
    assert main(["analyze", *map(str, arguments), "--json"]) == ExitCode.GOOD
    shown = capsys.readouterr()
    assert shown.err == ""
    document: dict[str, Any] = json.loads(shown.out)
    return document


def refused(capsys: Capture, *arguments: str | Path) -> str:
    assert main(["analyze", *map(str, arguments)]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("servebench: error: ")
    assert shown.err.count("\n") == 1
    return shown.err


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_an_export_of_nsys_as_json(tmp_path: Path, capsys: Capture) -> None:
    found = analyzed(capsys, decoding(tmp_path / "capture.sqlite"))
    assert (found["name"], found["kind"], found["tool"], found["source"]) == ("capture.sqlite", "free", "nsys", "nsys")
    (device,) = found["devices"]
    assert device["name"] == "NVIDIA H200"
    assert device["busy"]["ms"] == pytest.approx(STEPS * 6)
    (kernel,) = device["kernels"]
    assert (kernel["name"], kernel["n"], kernel["exposed_ms"]) == ("gemm[tn]<float>(int)", STEPS, pytest.approx(60))
    (steps,) = found["steps"]["kinds"]
    assert (steps["kind"], steps["generation_requests_mean"]) == ("decode_only", 4)
    assert found["traffic"] is None
    assert "no_request" not in [each["cause"] for each in device["idle"]["causes"]]


def test_what_is_printed_as_json_keeps_to_the_schema(tmp_path: Path, capsys: Capture) -> None:
    from importlib import resources

    schema = json.loads((resources.files("servebench.analysis") / "summary.schema.json").read_text())
    part = {"$ref": "#/$defs/profile_window", "$defs": schema["$defs"]}
    open_run(requests=100, warmup=0, cooldown=0).write(tmp_path / "run")
    (tmp_path / "folded").write_text(FOLDED)
    jsonschema.validate(analyzed(capsys, decoding(tmp_path / "a"), "--run", tmp_path / "run"), part)
    jsonschema.validate(analyzed(capsys, trace(tmp_path / "b")), part)
    jsonschema.validate(analyzed(capsys, tmp_path / "folded"), part)


def test_the_tables(tmp_path: Path, capsys: Capture) -> None:
    assert main(["analyze", str(decoding(tmp_path / "capture.sqlite"))]) == ExitCode.GOOD
    text = " ".join(capsys.readouterr().out.split())
    assert "A decode-only step takes 10.0 ms (p50), 10.0 ms (p95); the device is busy for" in text
    assert "gemm[tn]<float>(int)" in text
    assert "host late" in text
    assert "capture.sqlite" in text


def test_a_trace_of_torch(tmp_path: Path, capsys: Capture) -> None:
    found = analyzed(capsys, trace(tmp_path / "rank0.pt.trace.json.gz"))
    assert found["tool"] == "torch"
    assert found["operators"]["rows"][0]["name"] == "aten::mm"
    assert found["steps"]["kinds"][0]["n"] in (STEPS - 1, STEPS)


def test_several_traces_are_the_ranks_of_one_capture(tmp_path: Path, capsys: Capture) -> None:
    paths = [trace(tmp_path / f"rank{rank}.json", rank, 2) for rank in range(2)]
    found = analyzed(capsys, *paths)
    assert [device["device"] for device in found["devices"]] == [0, 1]
    assert found["files"] == ["rank0.json", "rank1.json"]


def test_several_files_of_another_kind_are_refused(tmp_path: Path, capsys: Capture) -> None:
    text = refused(capsys, trace(tmp_path / "a.json"), decoding(tmp_path / "b.sqlite"))
    assert f"{tmp_path / 'b.sqlite'} seems to be an SQLite database" in text
    assert "ranks of one capture" in text


def test_a_part_of_the_capture(tmp_path: Path, capsys: Capture) -> None:
    path = decoding(tmp_path / "a.sqlite")
    found = analyzed(capsys, path, "--window", "20ms..50ms")
    assert found["window"]["ms"] == pytest.approx(30)
    assert found["devices"][0]["busy"]["ms"] == pytest.approx(18)
    beyond = analyzed(capsys, path, "--window", "20ms..10s")
    assert beyond["window"]["end_ns"] == analyzed(capsys, path)["window"]["end_ns"]


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        ("10s..12s", "lies outside the capture, which lasts 0.0"),
        ("decode", "expected a part of the capture, such as 1s..3s"),
        ("3s..1s", "it must begin at 0s or later and end after its beginning"),
        ("one..two", "expected a duration"),
    ],
)
def test_a_part_that_cannot_be(window: str, reason: str, tmp_path: Path, capsys: Capture) -> None:
    assert reason in refused(capsys, decoding(tmp_path / "a.sqlite"), "--window", window)


def test_steps_by_a_pattern(tmp_path: Path, capsys: Capture) -> None:
    path = decoding(tmp_path / "a.sqlite")
    found = analyzed(capsys, path, "--steps", r"generation_(?P<generation_requests>\d+)")
    assert found["steps"]["found_by"] == "pattern"
    assert analyzed(capsys, path, "--steps", "nothing")["steps"]["n"] == 0
    assert "is no regular expression" in refused(capsys, path, "--steps", "(")


def test_joined_to_the_requests_of_a_run(tmp_path: Path, capsys: Capture) -> None:
    closed_run(concurrency=4, waves=40).write(tmp_path / "run")
    before = contents(tmp_path / "run")
    found = analyzed(capsys, decoding(tmp_path / "a.sqlite"), "--run", tmp_path / "run")
    assert found["traffic"]["in_flight"]["max"] == 4
    assert sum(found["traffic"]["shares"].values()) == pytest.approx(1)
    assert all(each["tpot_ms"] for each in found["amdahl"])
    assert contents(tmp_path / "run") == before


def test_what_was_idle_for_want_of_requests(tmp_path: Path, capsys: Capture) -> None:
    run = open_run(requests=4, rate=1000, tokens=3, warmup=0, cooldown=0)
    run.write(tmp_path / "run")
    found = analyzed(capsys, decoding(tmp_path / "a.sqlite", START_NS), "--run", tmp_path / "run")
    causes = {each["cause"]: each["n"] for each in found["devices"][0]["idle"]["causes"]}
    assert causes["no_request"] > 0  # after some 90 ms the four requests are over
    assert causes["host_late"] > 0


def test_a_capture_of_another_time_is_not_joined(tmp_path: Path, capsys: Capture) -> None:
    open_run(requests=50, warmup=0, cooldown=0).write(tmp_path / "run")
    text = refused(capsys, decoding(tmp_path / "a.sqlite", START_NS - 3600 * SECOND), "--run", tmp_path / "run")
    assert f"cannot join {tmp_path / 'run'}, " in text
    assert "the capture is from" in text


def test_a_capture_on_another_clock_is_not_joined(tmp_path: Path, capsys: Capture) -> None:
    open_run(requests=50, warmup=0, cooldown=0).write(tmp_path / "run")
    path = decoding(tmp_path / "a.sqlite", epoch_ns=None)
    assert "on a clock of its own, not on the run's" in refused(capsys, path, "--run", tmp_path / "run")
    assert analyzed(capsys, path)["alignment"] is None


def test_a_run_that_is_none(tmp_path: Path, capsys: Capture) -> None:
    assert "no run directory" in refused(capsys, decoding(tmp_path / "a.sqlite"), "--run", tmp_path)


def test_a_damaged_run(tmp_path: Path, capsys: Capture) -> None:
    run = open_run(requests=50, warmup=0, cooldown=0).write(tmp_path / "run")
    (run.path / "requests.parquet").write_bytes(b"PAR1 no more")
    text = refused(capsys, decoding(tmp_path / "a.sqlite"), "--run", run.path)
    assert "requests.parquet is damaged" in text


def test_stacks_and_their_flame_graph(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "stacks").write_text(FOLDED)
    found = analyzed(capsys, tmp_path / "stacks", "--flame-graph", tmp_path / "flame.svg")
    assert found["hot"]["samples"] == 10
    assert found["hot"]["functions"][0]["self_share"] == 0.7
    assert found["hot"]["flame_graph"] == str(tmp_path / "flame.svg")
    assert (tmp_path / "flame.svg").read_text().lstrip().startswith(("<svg", "<?xml"))
    assert main(["analyze", str(tmp_path / "stacks")]) == ExitCode.GOOD
    assert "70 % of 10 samples are in at::mm itself." in " ".join(capsys.readouterr().out.split())


def test_what_stacks_cannot_tell(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "stacks").write_text(FOLDED)
    assert "--window needs the perf.data" in refused(capsys, tmp_path / "stacks", "--window", "1s..2s")
    assert "leave --steps out" in refused(capsys, tmp_path / "stacks", "--steps", "x")
    text = refused(capsys, decoding(tmp_path / "a.sqlite"), "--flame-graph", tmp_path / "f.svg")
    assert "--flame-graph needs stacks" in text
    assert not (tmp_path / "f.svg").exists()
    assert "cannot write" in refused(capsys, tmp_path / "stacks", "--flame-graph", tmp_path / "none" / "f.svg")


def test_what_is_said_of_kernels_has_no_instants(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "memcheck.log"
    path.write_text("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 2 errors\n")
    found = analyzed(capsys, path)
    assert (found["tool"], found["sanitizer"]["passed"], found["empty"]) == ("sanitizer", False, False)
    assert main(["analyze", str(path)]) == ExitCode.GOOD
    assert "found 2 errors" in capsys.readouterr().out
    assert "it has no instants" in refused(capsys, path, "--window", "1s..2s")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"a letter\n", "a text of no kind that is known here; understood are"),
        (b'{"traceEvents": [{"ph": "X", ', "trace.json"),
        (b"\x1f\x8b\x08\x00broken", "damaged gzip file"),
        (b"SQLite format 3\0" + bytes(200), "trace.json"),
        (b"PERFILE2" + bytes(100), "trace.json"),
    ],
)
def test_damaged_and_foreign_files(data: bytes, reason: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    text = refused(capsys, path)
    assert str(path) in text
    assert reason in text


def test_a_file_that_is_missing(tmp_path: Path, capsys: Capture) -> None:
    assert f"{tmp_path / 'none.sqlite'} does not exist" in refused(capsys, tmp_path / "none.sqlite")


def test_no_file_at_all(capsys: Capture) -> None:
    assert main(["analyze"]) == ExitCode.USAGE
    assert "FILE" in capsys.readouterr().err


def test_a_file_that_breaks_off_in_reading(capsys: Capture) -> None:
    assert "/proc/self/mem cannot be read: Input/output error" in refused(capsys, "/proc/self/mem")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path, capsys: Capture) -> None:
    path = decoding(tmp_path / "a.sqlite")
    path.chmod(0)
    assert "Permission denied" in refused(capsys, path)


def test_a_capture_without_a_device(tmp_path: Path, capsys: Capture) -> None:
    file = NsysFile("3.13")
    file.range("execute_context_1(8)_generation_0(0)", 0, 5 * MS)
    file.system("poll", 0, 4 * MS)
    path = file.write(tmp_path / "cpu.sqlite")
    found = analyzed(capsys, path)
    assert found["devices"] == []
    assert found["no_device"].startswith("no GPU activity")
    assert found["counts"]["kernels"] is None
    assert main(["analyze", str(path)]) == ExitCode.GOOD
    assert "no GPU activity" in capsys.readouterr().out


def window_folder(run: Path, name: str) -> Path:
    """A window as `servebench profile` stores it, with the run of its load."""
    folder = run / "profile" / name
    folder.mkdir(parents=True)
    from servebench.profile.readers import open_file
    from servebench.profile.timeline import Timeline

    timeline = open_file(decoding(folder / "capture.sqlite"))
    assert isinstance(timeline, Timeline)
    timeline.write(folder / "timeline.parquet")
    closed_run(concurrency=4, waves=40).write(folder / "captured")
    start = START_NS + SECOND
    stamps = {"start_asked_ns": start, "start_ns": start, "stop_asked_ns": start + 90 * MS, "stop_ns": start + 95 * MS}
    about = {"schema": 1, "name": name, "kind": name, "tool": "nsys", "version": "2024.5", "reason": None, "facts": {}}
    (folder / "window.json").write_text(json.dumps(about | stamps))
    return folder


def test_a_window_of_a_run_is_shown_with_its_own_requests(tmp_path: Path, capsys: Capture) -> None:
    folder = window_folder(tmp_path / "run", "decode")
    found = analyzed(capsys, folder)
    assert (found["name"], found["kind"]) == ("decode", "decode")
    assert found["traffic"]["in_flight"]["max"] == 4
    asked = analyzed(capsys, folder, "--window", "0ms..30ms")  # then it is a file like any other
    assert (asked["kind"], asked["traffic"]) == ("free", None)


def test_all_windows_of_a_run(tmp_path: Path, capsys: Capture) -> None:
    for name in ("prefill", "decode"):
        window_folder(tmp_path / "run", name)
    found = analyzed(capsys, tmp_path / "run")
    assert {window["name"] for window in found["windows"]} == {"prefill", "decode"}
    assert main(["analyze", str(tmp_path / "run")]) == ExitCode.GOOD
    text = capsys.readouterr().out
    assert "profile · prefill" in text
    assert "profile · decode" in text


def test_it_is_a_command_of_its_own_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "servebench", "analyze", str(decoding(tmp_path / "a.sqlite"))]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gemm" in done.stdout
