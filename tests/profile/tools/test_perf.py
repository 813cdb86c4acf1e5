"""The tool perf on real processes, and what it says when it cannot."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from perf_parts import compiled, running, spinning, stacks_of, why_no_perf
from runs import until
from servebench.analysis.profile.hot import hot
from servebench.errors import UsageError
from servebench.profile import perf_program
from servebench.profile.perf_program import find_perf, refusal
from servebench.profile.server import Server
from servebench.profile.stacks import Stacks
from servebench.profile.tool import Bounds, ProfileError
from servebench.profile.tools import perf, recording
from servebench.profile.tools.perf import PerfTool
from servebench.telemetry.processes import process_tree

SVG = "{http://www.w3.org/2000/svg}"
WHY_NOT = why_no_perf()
needs_perf = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def no_client(timeout: float) -> NoReturn:
    raise httpx.ConnectError("perf asks a server nothing")


def server(pid: int | None) -> Server:
    return Server("http://127.0.0.1:9", "vllm", pid, no_client)


def captured(folder: Path, pid: int, seconds: float = 1.0, **settings: str) -> tuple[PerfTool, Path]:
    tool = PerfTool(folder, {"frequency": "499", "call-graph": "fp", **settings})
    tool.attach(server(pid))
    window = folder / "decode"
    window.mkdir()
    tool.start("decode", window, Bounds(seconds))
    time.sleep(seconds)
    tool.stop()
    return tool, window


def children() -> set[str]:
    """Commands of our living children and theirs."""
    tree = process_tree(os.getpid())
    return {Path(f"/proc/{pid}/comm").read_text().strip() for pid in tree if Path(f"/proc/{pid}/comm").exists()}


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with running(compiled(tmp_path), "60") as process:
        yield process


@needs_perf
def test_a_window_of_a_real_process(tmp_path: Path, busy: subprocess.Popen[bytes]) -> None:
    tool, window = captured(tmp_path, busy.pid)
    facts = tool.collect(window)
    assert facts["files"] == ["perf.data", "perf-stat.csv", "stacks.folded", "flame.svg"]
    assert facts["tool"] == "perf"
    assert facts["version"] == tool.check()
    assert facts["processes"] == 1
    assert facts["counters"]["task_clock_ms"] > 0
    assert facts["alignment"]["residual_ns"] < 1_000_000
    stacks = Stacks.read(window / "stacks.folded")
    assert stacks.total == facts["samples"] > 30
    functions = {each["name"]: each["self_share"] for each in hot(stacks)["functions"]}
    assert functions["hot_a"] == pytest.approx(0.75, abs=0.15)
    assert functions["hot_b"] == pytest.approx(0.25, abs=0.15)
    drawn = [box.findtext(f"{SVG}text") for box in ET.parse(window / "flame.svg").iter(f"{SVG}svg")]
    assert {"hot_a", "hot_b", "main"} <= set(drawn)
    assert {"perf", "cat", "sleep"}.isdisjoint(children())


@needs_perf
def test_only_samples_of_the_window_count(tmp_path: Path, busy: subprocess.Popen[bytes]) -> None:
    tool, window = captured(tmp_path, busy.pid)
    whole = tool.collect(window)["samples"]
    capture = tool._captures[window]
    assert capture.stop is not None
    half = (capture.start.realtime_ns + capture.stop.realtime_ns) // 2
    capture.stop = type(capture.stop)(half, capture.stop.monotonic_ns, capture.stop.error_ns)
    part = tool._stacks(window, capture)
    assert part.time is not None
    assert part.time.max() < half
    assert 0 < part.total < whole


@needs_perf
def test_children_and_threads_that_start_later_are_seen(tmp_path: Path) -> None:
    program = (
        "import pathlib, subprocess, sys, threading, time\n"
        "while not pathlib.Path(sys.argv[1], 'go').exists(): time.sleep(0.01)\n"
        f"child = subprocess.Popen({list(spinning(60))!r})\n"
        "def spin():\n"
        "    pathlib.Path(sys.argv[1], 'spinning').touch()\n"
        "    while child.poll() is None: sum(range(1000))\n"
        "threading.Thread(target=spin).start()\n"
    )
    with running(sys.executable, "-c", program, tmp_path) as process:
        tool = PerfTool(tmp_path, {"frequency": "499", "call-graph": "fp"})
        tool.attach(server(process.pid))
        tool.start("decode", tmp_path, Bounds(5.0))
        (tmp_path / "go").touch()
        until((tmp_path / "spinning").exists)
        time.sleep(1.5)
        tool.stop()
        for child in process_tree(process.pid)[1:]:
            os.kill(child, signal.SIGKILL)
    facts = tool.collect(tmp_path)
    assert len({thread["process"] for thread in facts["threads"]}) == 2
    threads = Stacks.read(tmp_path / "stacks.folded").threads
    assert any(thread.process == process.pid != thread.thread for thread in threads)


@needs_perf
def test_two_windows_of_one_tool(tmp_path: Path, busy: subprocess.Popen[bytes]) -> None:
    tool, first = captured(tmp_path, busy.pid, 0.5, counters="no")
    second = tmp_path / "prefill"
    second.mkdir()
    tool.start("prefill", second, Bounds(0.5))
    time.sleep(0.5)
    tool.stop()
    facts = [tool.collect(folder) for folder in (first, second)]
    assert [each["files"] for each in facts] == [["perf.data", "stacks.folded", "flame.svg"]] * 2
    assert all(each["counters"] is None and each["samples"] for each in facts)
    assert "prefill" in (second / "flame.svg").read_text()


@needs_perf
def test_what_python_it_is_decides_whose_functions_are_named(tmp_path: Path) -> None:
    with running(*spinning(20)) as process:
        tool, window = captured(tmp_path, process.pid, **{"call-graph": "dwarf"})
        told = tool.collect(window)["python_frames"]
    if sys.version_info < (3, 12):
        assert told == f"not named: Python 3.{sys.version_info.minor} cannot (3.12 can); the interpreter's own are"
    else:
        assert "PYTHONPERFSUPPORT=1" in told


def newer_python() -> str | None:
    """A Python that can name its functions to perf, wherever one may be."""
    names = [f"python3.{minor}" for minor in range(12, 20)]
    found = [path for name in names if (path := shutil.which(name))]
    found += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3"))]
    return next((path for path in found if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0), None)


@needs_perf
def test_a_python_that_names_its_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = newer_python()
    if python is None:
        pytest.skip("there is no Python from 3.12 on here")
    program = "import time\ndef busy_function():\n    for _ in range(100): sum(range(1000))\n"
    program += "end = time.time() + 30\nwhile time.time() < end: busy_function()"
    for key, value in PerfTool(tmp_path, {}).launch().env.items():
        monkeypatch.setenv(key, value)
    with running(python, "-c", program) as process:
        map_file = Path(f"/tmp/perf-{process.pid}.map")
        try:
            until(lambda: map_file.exists() and "busy_function" in map_file.read_text())
            tool, window = captured(tmp_path, process.pid, **{"call-graph": "dwarf"})
            facts = tool.collect(window)
        finally:
            map_file.unlink(missing_ok=True)
    functions = {each["name"]: each for each in hot(Stacks.read(window / "stacks.folded"))["functions"]}
    assert functions["busy_function (<string>)"]["module"] == "python"
    assert functions["busy_function (<string>)"]["share"] > 0.8
    assert "named" in facts["python_frames"]
    assert "not named" not in facts["python_frames"]


@pytest.mark.parametrize(
    ("stacks", "told"),
    [
        ("main[libpython3.12.so] f[python] g[python] 1", "named by the interpreter"),
        ("f[python] sum[libpython3.12.so] 1", "the innermost is named"),
        ("[unknown] f[python] sum[libpython3.12.so] 1", "the innermost is named"),
        ("main[libpython3.12.so] 1", "not named: start the server with PYTHONPERFSUPPORT=1"),
        ("main[python3.11] 1", "not named: Python 3.11 cannot"),
        ("main[app] 1", "no interpreter"),
    ],
)
def test_whose_functions_are_named(stacks: str, told: str) -> None:
    assert perf.python_frames(stacks_of(stacks)).startswith(told)


@needs_perf
def test_processes_that_end_within_the_window_leave_what_was_recorded(tmp_path: Path) -> None:
    with running(*spinning(0.7)) as process:
        tool = PerfTool(tmp_path, {"frequency": "499", "call-graph": "fp"})
        tool.attach(server(process.pid))
        tool.start("decode", tmp_path, Bounds(2.0))
        process.wait()
        time.sleep(0.5)
        with pytest.raises(ProfileError, match="perf ended before the window did: the server's processes have ended"):
            tool.stop()
    assert tool.collect(tmp_path)["samples"] > 0
    assert {"perf", "cat", "sleep"}.isdisjoint(children())


@needs_perf
def test_an_idle_process_is_an_empty_window(tmp_path: Path) -> None:
    with running("sleep", "30") as process:
        tool, window = captured(tmp_path, process.pid, 0.3)
        with pytest.raises(ProfileError, match="not one sample: nothing ran on a CPU"):
            tool.collect(window)


@needs_perf
def test_a_process_that_is_gone(tmp_path: Path) -> None:
    with running("true") as process:
        process.wait()
        tool = PerfTool(tmp_path, {})
        tool.attach(server(process.pid))
        with pytest.raises(ProfileError, match="perf: the processes are gone"):
            tool.start("decode", tmp_path, Bounds())
    assert {"perf", "cat", "sleep"}.isdisjoint(children())


@needs_perf
def test_a_process_that_ends_while_perf_attaches_costs_a_second_try(
    tmp_path: Path, busy: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running("true") as gone:
        gone.wait()
    lists = iter([[busy.pid], [busy.pid, gone.pid], [busy.pid]])  # as attached, as started, as tried again
    monkeypatch.setattr(Server, "processes", lambda self: next(lists))
    tool = PerfTool(tmp_path, {"call-graph": "fp"})
    tool.attach(server(busy.pid))
    tool.start("decode", tmp_path, Bounds(1.0))
    time.sleep(0.5)
    tool.stop()
    assert tool.collect(tmp_path)["processes"] == 1


@needs_perf
def test_a_run_that_comes_to_nothing_leaves_no_perf(tmp_path: Path, busy: subprocess.Popen[bytes]) -> None:
    tool = PerfTool(tmp_path, {})
    tool.attach(server(busy.pid))
    tool.start("decode", tmp_path, Bounds(1.0))
    assert "perf" in children()
    tool.close()
    assert {"perf", "cat", "sleep"}.isdisjoint(children())
    tool.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from servebench.profile.perf_program import find_perf
from servebench.profile.tools.perf_counters import stat_arguments
from servebench.profile.tools.recording import Recording
folder, pid = Path(sys.argv[1]), int(sys.argv[2])
Recording(find_perf(), stat_arguments(f"{folder}/perf-stat.csv", [pid]), folder / "log").enable()
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_perf
def test_perf_does_not_outlive_us_however_we_die(tmp_path: Path, busy: subprocess.Popen[bytes]) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, tmp_path, str(busy.pid)], timeout=20)
    assert process.returncode == -signal.SIGKILL
    until(lambda: not _is_named(f"{tmp_path}/perf-stat.csv"), 5, "perf ends")


def _is_named(word: str) -> bool:
    """Whether a process has `word` in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if word.encode() in path.read_bytes():
                return True
    return False


@needs_perf
def test_the_servers_launch_asks_python_for_names(tmp_path: Path) -> None:
    assert PerfTool(tmp_path, {}).launch().env == {"PYTHONPERFSUPPORT": "1"}
    assert PerfTool(tmp_path, {"python-frames": "no"}).launch().env == {}


def test_a_server_elsewhere_cannot_be_sampled(tmp_path: Path) -> None:
    with pytest.raises(
        ProfileError, match=r"http://127\.0\.0\.1:9 are not known to run on this machine: run servebench where"
    ):
        PerfTool(tmp_path, {}).attach(server(None))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"frequency": "fast"}, "frequency=fast: a whole number"),
        ({"frequency": "0"}, "frequency=0"),
        ({"frequency": "²"}, "frequency=²"),
        ({"call-graph": "dwarv"}, 'one of fp, dwarf, lbr (did you mean "dwarf"?)'),
        ({"counters": "maybe"}, "one of yes, no"),
        ({"frequncy": "9"}, "did you mean"),
    ],
)
def test_options_are_checked(settings: dict[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        PerfTool(tmp_path, settings)
    assert says in str(error.value)


def pretend(folder: Path, record: str) -> Path:
    """A perf whose `record` is this piece of shell."""
    program = folder / "perf"
    program.write_text(
        '#!/bin/bash\n[ "$1" = --version ] && echo perf version 1.0 && exit\n'
        '[ "$1" = stat ] && { echo no >&2; exit 1; }\n'
        'for a in "$@"; do case $a in --control=fd:*) a=${a#--control=fd:}; in=${a%,*}; out=${a#*,} ;; esac; done\n'
        f"{record}\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def odd_perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Makes the tool use a perf that behaves oddly."""

    def make(record: str) -> PerfTool:
        program = pretend(tmp_path, record)
        monkeypatch.setattr(perf, "find_perf", lambda: str(program))
        tool = PerfTool(tmp_path, {})
        tool.attach(server(os.getpid()))
        return tool

    return make


ACKNOWLEDGE = 'eval "head -n1 <&$in >/dev/null"; eval "echo ack >&$out"'


def test_a_perf_that_never_stops_is_killed(odd_perf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(recording, "STOP_S", 0.5)
    tool = odd_perf(
        f"trap '' INT; echo data > '{tmp_path}/perf.data'; {ACKNOWLEDGE}; sleep 60 & while :; do sleep 0.2; done"
    )
    tool.start("decode", tmp_path, Bounds(1.0))
    start = time.monotonic()
    with pytest.raises(ProfileError, match="perf did not end within 0 s and was killed; what it wrote is kept"):
        tool.stop()
    assert time.monotonic() - start < 5
    assert (tmp_path / "perf.data").read_text() == "data\n"
    assert {"perf", "cat", "sleep"}.isdisjoint(children())
    with pytest.raises(ProfileError, match="no recording of perf's"):
        tool.collect(tmp_path)


def test_a_perf_that_never_begins_is_killed(odd_perf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(recording, "START_S", 0.3)
    tool = odd_perf("sleep 60")
    with pytest.raises(ProfileError, match="did not begin within"):
        tool.start("decode", tmp_path, Bounds(1.0))
    assert {"perf", "cat", "sleep"}.isdisjoint(children())
    with pytest.raises(ProfileError, match="not recording"):
        tool.stop()


def test_a_perf_that_may_not_record_says_so(odd_perf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tool = odd_perf("echo 'Error:' >&2; echo 'Access limited, see perf_event_paranoid' >&2; exit 255")
    with pytest.raises(UsageError, match=r"perf: not permitted to record; be root .*perf_event_paranoid at 2"):
        tool.check()
    with pytest.raises(ProfileError, match="perf: not permitted to record"):
        tool.start("decode", tmp_path, Bounds(1.0))


def test_where_the_counters_log_cannot_be_made_no_perf_stays(odd_perf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "perf-stat.log").mkdir()  # as a full disk, for whoever may write anything
    tool = odd_perf(f"{ACKNOWLEDGE}; exec sleep 60")
    with pytest.raises(OSError):
        tool.start("decode", tmp_path, Bounds(1.0))
    assert {"perf", "cat", "sleep"}.isdisjoint(children())


def test_messages_that_a_full_disk_swallowed(odd_perf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(recording, "LITTLE_BYTES", 1 << 60)
    with pytest.raises(ProfileError, match="perf: the disk is full"):
        odd_perf("exit 1").start("decode", tmp_path, Bounds(1.0))


def _stop(tool: PerfTool) -> None:
    with suppress(ProfileError):
        tool.stop()


def test_a_stop_that_nobody_waits_for_any_more_is_ended_by_close(odd_perf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tool = odd_perf(f"trap '' INT; {ACKNOWLEDGE}; sleep 60 & while :; do sleep 0.2; done")
    tool.start("decode", tmp_path, Bounds(1.0))
    stopping = threading.Thread(target=_stop, args=(tool,), daemon=True)
    stopping.start()
    time.sleep(0.3)
    tool.close()
    stopping.join(5)
    assert not stopping.is_alive()
    assert {"perf", "cat", "sleep"}.isdisjoint(children())


def test_counters_that_fail_cost_no_samples(odd_perf, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tool = odd_perf(f"{ACKNOWLEDGE}; exec sleep 60")
    tool.start("decode", tmp_path, Bounds(1.0))
    tool.stop()
    counters = perf._counters(tmp_path / "perf-stat.csv")
    assert counters["task_clock_ms"] is None
    assert counters["reason"].startswith("perf stat: ")


def test_nothing_recorded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="perf recorded nothing"):
        PerfTool(tmp_path, {}).collect(tmp_path)
    with pytest.raises(ProfileError, match="not recording"):
        PerfTool(tmp_path, {}).stop()


def test_a_perf_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "usr" / "lib" / "linux-tools" / "6.8"
    tools.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "perf"
    wrapper.write_text("#!/bin/sh\necho 'WARNING: perf not found for kernel 6.9' >&2; exit 2\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    monkeypatch.setattr(perf_program.shutil, "which", lambda _: str(wrapper))
    with pytest.raises(UsageError, match=r"does not run \(none for this kernel"):
        find_perf(tmp_path)
    other = tools / "perf"
    other.write_text("#!/bin/sh\necho perf version 6.8\n")
    other.chmod(0o755)
    assert find_perf(tmp_path) == str(other)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("Error:\nToo many events are opened.\n", "too many threads for the limit of open files"),
        ("maximum frequency rate\nThe kernel.perf_event_max_sample_rate is exceeded", "refuses that frequency"),
        ("failed to write: No space left on device", "the disk is full"),
        ("Problems finding threads of monitor\n\n Usage: perf record", "the processes are gone"),
        ("Error:\nThe sys_perf_event_open() syscall failed", "The sys_perf_event_open() syscall failed"),
        ("", "gave no reason"),
    ],
)
def test_what_perf_says_in_one_line(output: str, reason: str) -> None:
    assert reason in refusal(output)
