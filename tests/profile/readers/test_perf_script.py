"""Recordings of perf, read: real ones of a program with known shares, and files that are none."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf_parts import compiled, running, why_no_perf
from servebench.analysis.profile.hot import hot
from servebench.clock import Anchor
from servebench.errors import UsageError
from servebench.profile import perf_program
from servebench.profile.perf_program import environment, find_perf
from servebench.profile.readers import perf_script
from servebench.profile.readers.perf_script import read_perf
from servebench.profile.readers.perf_text import PerfText

WHY_NOT = why_no_perf()
needs_perf = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def record(folder: Path, *how: str, seconds: float = 1.5) -> tuple[Path, tuple[int, int]]:
    """A recording of the busy program, and the CLOCK_REALTIME span in which it was made."""
    path = folder / "perf.data"
    with running(compiled(folder), "30") as busy:
        command = [find_perf(), "record", *how, "-N", "-o", str(path), "-p", str(busy.pid), "--", "sleep", str(seconds)]
        start = time.time_ns()
        subprocess.run(command, check=True, capture_output=True, env=environment(), timeout=60)
        return path, (start, time.time_ns())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, tuple[int, int]]]:
    yield record(tmp_path_factory.mktemp("recorded"), "-F", "499", "-g", "-k", "CLOCK_MONOTONIC")


@needs_perf
def test_shares_are_those_of_the_program(recorded: tuple[Path, tuple[int, int]]) -> None:
    stacks = read_perf(recorded[0])
    functions = {each["name"]: each for each in hot(stacks)["functions"]}
    assert stacks.total > 50
    assert functions["hot_a"]["self_share"] == pytest.approx(0.75, abs=0.12)
    assert functions["hot_b"]["self_share"] == pytest.approx(0.25, abs=0.12)
    assert functions["main"]["share"] > 0.95
    assert functions["main"]["self_share"] < 0.05
    assert functions["hot_a"]["module"] == "busy_program"
    (thread,) = stacks.threads
    assert thread.name == thread.process_name == "busy program"
    assert thread.process == thread.thread


@needs_perf
def test_samples_are_on_the_wall_clock_by_what_the_file_states(recorded: tuple[Path, tuple[int, int]]) -> None:
    path, (start, end) = recorded
    stacks = read_perf(path)
    assert stacks.alignment is not None
    assert stacks.alignment.residual_ns is None
    assert stacks.alignment.reason
    assert stacks.time is not None
    assert start <= stacks.time.min() <= stacks.time.max() <= end
    assert stacks.facts["frequency"] == 499
    assert stacks.facts["event"] in ("cycles", "cpu-clock", "cpu_core/cycles/")


@needs_perf
def test_anchors_say_how_far_it_may_be_off(recorded: tuple[Path, tuple[int, int]]) -> None:
    now = Anchor.now()
    moved = Anchor(now.realtime_ns + 400, now.monotonic_ns, 20)
    by_file, by_anchors = read_perf(recorded[0]), read_perf(recorded[0], [now, moved])
    assert by_anchors.alignment is not None
    assert by_anchors.alignment.residual_ns == 400 + max(now.error_ns, 20) // 2
    assert by_file.time is not None
    assert by_anchors.time is not None
    assert abs(by_file.time - by_anchors.time).max() < 1_000_000
    assert by_anchors.alignment.offset_ns == (by_anchors.time - by_file.time)[0]


@needs_perf
def test_perfs_own_clock_cannot_be_put_on_the_runs(tmp_path: Path) -> None:
    path, _ = record(tmp_path, "-F", "997")
    stacks = read_perf(path)
    assert stacks.alignment is None
    assert any("-k CLOCK_MONOTONIC" in note for note in stacks.notes)
    names = {each["name"] for each in hot(stacks)["functions"]}
    assert {"hot_a", "hot_b"} <= names  # recorded without stacks: one frame each
    assert all(len(path) == 1 for path in stacks.paths)


@needs_perf
def test_a_file_cut_short_is_read_as_far_as_it_goes_or_refused(
    recorded: tuple[Path, tuple[int, int]], tmp_path: Path
) -> None:
    whole = recorded[0].read_bytes()
    path = tmp_path / "cut.data"
    for size in (9, 200, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(UsageError, match=r"cut\.data: .*(damaged|not one sample)"):
            read_perf(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"SQLite format 3\0", "is no recording of perf's"),
        (b'{"traceEvents": []}', "is no recording of perf's"),
    ],
)
def test_foreign_files_are_refused(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_perf(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_perf(tmp_path / "none")
    with pytest.raises(UsageError, match="directory"):
        read_perf(tmp_path)


def test_without_perf_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "perf.data"
    path.write_bytes(b"PERFILE2" + bytes(100))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(perf_program, "PLACES", ())
    with pytest.raises(UsageError, match="no perf on this machine; install it: package linux-perf"):
        read_perf(path)


def pretend(folder: Path, text: str, complaint: str = "") -> Path:
    """A perf whose `script` prints `text`."""
    (folder / "text").write_text(text)
    program = folder / "perf"
    version = '[ "$1" = --version ] && echo perf version 1.0 && exit'
    program.write_text(f"#!/bin/sh\n{version}\necho '{complaint}' >&2\ncat '{folder}/text'\n")
    program.chmod(0o755)
    return program


HEADER = "# perf version : 1.0\n# reference time: x = 1000.0 (TOD) = 10.0 (monotonic)\n"


@pytest.fixture
def as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Reads what a pretended perf prints."""

    def read(text: str, complaint: str = "") -> object:
        program = pretend(tmp_path, HEADER + text, complaint)
        monkeypatch.setattr(perf_script, "find_perf", lambda: str(program))
        path = tmp_path / "perf.data"
        path.write_bytes(b"PERFILE2")
        return read_perf(path)

    return read


def sample(name: str, ids: str, *frames: str, at: str = "11.000000005") -> str:
    lines = "".join(f"\t 7f {frame}\n" for frame in reversed(frames))
    return f"{name} {ids} {at}: 1 cpu-clock: \n{lines}\n"


def test_a_process_is_called_after_its_main_thread_by_the_last_name(as_printed) -> None:  # type: ignore[no-untyped-def]
    text = sample("python3", "5/6", "f (a)") + sample("old", "5/5", "f (a)") + sample("serve", "5/5", "f (a)")
    stacks = as_printed(text + sample("pool 1", "5/6", "f (a)"))
    assert [tuple(thread) for thread in stacks.threads] == [(5, "serve", 6, "pool 1"), (5, "serve", 5, "serve")]
    assert stacks.time.tolist() == [1001_000_000_005] * 4


def test_runs_of_unknown_frames_are_one_and_named_after_their_module(as_printed) -> None:  # type: ignore[no-untyped-def]
    frames = ("[unknown] ([unknown])",) * 3 + ("[unknown] (/x/libzmq.so.5)", "f (a)", "f (a)")
    stacks = as_printed(sample("a", "5/5", *frames))
    assert [str(stacks.frames[number]) for number in stacks.paths[0]] == [
        "[unknown]",
        "[libzmq] [libzmq.so]",
        "f [a]",
        "f [a]",
    ]


def test_python_functions_that_the_interpreter_names(as_printed) -> None:  # type: ignore[no-untyped-def]
    stacks = as_printed(sample("a", "5/5", "py::step:/v/vllm/engine/core.py (/tmp/perf-5.map)", "x (/tmp/perf-5.map)"))
    assert [tuple(frame) for frame in stacks.frames] == [("step (engine/core.py)", "python"), ("x", "jit")]


def test_a_sample_without_a_stack_still_counts(as_printed) -> None:  # type: ignore[no-untyped-def]
    stacks = as_printed(sample("a", "5/5") + sample("a", "5/5", "f (b)"))
    assert stacks.total == 2
    assert stacks.frames[0].name == "[no stack]"


def test_what_a_reader_must_know_is_noted(as_printed) -> None:  # type: ignore[no-untyped-def]
    deep = sample("a", "5/5", *(f"f{number} (b)" for number in range(127)))
    lost = "a 5/5 11.000000009: PERF_RECORD_LOST lost 3\n\n"
    stacks = as_printed(deep + lost + "junk\n\n" + sample("a", "5/5", "f (b)"), "data size field is 0")
    text = " | ".join(stacks.notes)
    for part in ("ends early", "3 samples were lost", "1 lines of perf's text", "50 % of the stacks are deeper"):
        assert part in text


def test_deeper_stacks_than_the_kernels_are_whole(as_printed) -> None:  # type: ignore[no-untyped-def]
    deep = sample("a", "5/5", *(f"f{number} (b)" for number in range(400)))
    assert as_printed(sample("a", "5/5", *(f"f{number} (b)" for number in range(127))) + deep).notes == ()


def test_samples_of_user_space_alone_are_told(as_printed) -> None:  # type: ignore[no-untyped-def]
    header = "# event : name = cycles:uP, , { sample_period, sample_freq } = 99, x\n"
    (note,) = as_printed(header + sample("a", "5/5", "f (b)")).notes
    assert "what the kernel did is left out" in note


def test_no_samples_is_an_error_with_its_reason(as_printed) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="not one sample"):
        as_printed("")
    with pytest.raises(UsageError, match="killed before it wrote a sample"):
        as_printed("", "The data size field is 0 which is unexpected.")
    with pytest.raises(UsageError, match="damaged, or of another kind of machine: incompatible file format"):
        as_printed("", "incompatible file format (rerun with -v to learn more)")


def test_a_text_that_does_not_end_is_ended(as_printed, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(perf_script, "SECONDS", 0.3)
    monkeypatch.setattr(perf_script, "FIELDS", "comm")
    monkeypatch.setattr(PerfText, "samples", lambda self, lines: (time.sleep(0.6), iter(()))[1])
    with pytest.raises(UsageError, match="took longer"):
        as_printed("x" * 1_000_000)  # fills the pipe, so that it cannot end by itself
