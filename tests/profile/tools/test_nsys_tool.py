"""What nsys is asked, and what is said when it is missing, fails or hangs; a script plays it."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from nsys_files import NsysFile
from servebench.errors import UsageError
from servebench.profile.server import Server
from servebench.profile.timeline import Timeline
from servebench.profile.tool import TIMELINE, Bounds, ProfileError
from servebench.profile.tools.nsys import NsysTool, find_nsys, installation, options
from servebench.profile.tools.nsys.options import Options

Fake = Callable[..., Path]
# Plays nsys: remembers what it was asked, has one session, writes reports; `behave` holds more cases
SCRIPT = """#!/bin/sh
here=$(dirname "$0")
echo "$@" >>"$here/asked"
{behave}
case $1 in
    --version) echo "NVIDIA Nsight Systems version 2024.5.1.113-245134619542v0" ;;
    sessions) printf 'ID TIME STATE LAUNCH NAME\\n1 00:01 Launched 1 %s\\n' mine "$(cat "$here/name")" ;;
    start) for word; do case $word in --output=*) printf %s "${{word#--output=}}" >"$here/output" ;; esac; done ;;
    stop) : >"$(cat "$here/output").nsys-rep" ;;
    export) for word; do case $word in --output=*) cp "$here/export.sqlite" "${{word#--output=}}" ;; esac; done ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put an nsys on PATH that does what the shell text `behave` says before its usual answers."""

    def install(behave: str = "", importer: bool = True, folder: str = "target-linux-x64") -> Path:
        place = tmp_path / "nsight" / folder
        place.mkdir(parents=True, exist_ok=True)
        program = place / "nsys"
        program.write_text(SCRIPT.format(behave=behave))
        program.chmod(0o755)
        (place / "name").write_text("none")
        if importer:
            (place.parent / "host-linux-x64").mkdir(exist_ok=True)
            (place.parent / "host-linux-x64" / "QdstrmImporter").touch()
        monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
        return place

    return install


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servebench.profile.tools.nsys.tool.has_gpu", lambda: False)


def server(answer: Callable[[httpx.Request], httpx.Response] | None = None, *, ours: bool = True) -> Server:
    transport = httpx.MockTransport(answer or (lambda _: httpx.Response(404)))
    return Server(
        "http://x", "vllm", None, lambda limit: httpx.Client(transport=transport, base_url="http://x"), None, ours
    )


def started(fake: Path, folder: Path, settings: dict[str, str] | None = None) -> NsysTool:
    """A tool whose server has been launched in its session."""
    tool = NsysTool(folder, settings or {})
    words = tool.launch().prefix
    (fake / "name").write_text(next(word.partition("=")[2] for word in words if word.startswith("--session-new=")))
    tool.attach(server())
    return tool


def window(folder: Path) -> Path:
    place = folder / "decode %q"
    place.mkdir()
    return place


class TestFinding:
    def test_on_path_with_its_version(self, fake: Fake) -> None:
        place = fake()
        found = find_nsys()
        assert (found.path, found.version) == (place / "nsys", "2024.5.1.113")
        assert found.importer == place.parent / "host-linux-x64" / "QdstrmImporter"

    def test_nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(installation, "PLACES", ())
        with pytest.raises(UsageError, match="neither on PATH nor in the usual places: scripts/install-nsys"):
            find_nsys()

    def test_the_latest_of_the_usual_places(self, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for version in ("2023.4", "2024.10", "2024.9"):
            shutil.copytree(fake(), tmp_path / f"nsight-systems-{version}" / "bin", dirs_exist_ok=True)
        monkeypatch.setattr(installation, "PLACES", (f"{tmp_path}/nsight-systems-*/bin/nsys",))
        monkeypatch.setattr(installation.shutil, "which", lambda _: None)
        assert find_nsys().path.parent.parent.name == "nsight-systems-2024.10"

    def test_without_its_importer(self, fake: Fake) -> None:
        fake(importer=False)
        with pytest.raises(
            UsageError, match=r"has no QdstrmImporter in .*host-linux-\*, so that it cannot write reports"
        ):
            find_nsys()

    @pytest.mark.parametrize(
        ("behave", "told"),
        [("echo oh no >&2; exit 3", "does not work: .*exit code 3.*oh no"), ("echo nsys 7; exit", "not NVIDIA's nsys")],
    )
    def test_what_does_not_start_or_is_another(self, fake: Fake, behave: str, told: str) -> None:
        fake(behave)
        with pytest.raises(UsageError, match=told):
            find_nsys()


class TestOptions:
    def test_without_a_choice(self) -> None:
        assert Options.read({}, gpu=True) == Options(("cuda", "nvtx"), "none", "session", None, 600.0, True)
        assert Options.read({}, gpu=False).trace == ("nvtx", "osrt")

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"trace": "cuda, nvtx"}, 'trace="cuda, nvtx": expected names with commas'),
            ({"mode": "sesion"}, 'did you mean "session"'),
            ({"sample": "all"}, "expected none, process-tree, system-wide"),
            ({"limit": "soon"}, "expected a number of seconds"),
            ({"limit": "0"}, "expected a number of seconds"),
            ({"mode": "range"}, "no NVIDIA GPU is here"),
        ],
    )
    def test_what_makes_no_sense(self, settings: dict[str, str], told: str) -> None:
        with pytest.raises(UsageError, match=told):
            Options.read(settings, gpu=False)

    def test_a_session_has_no_ranges(self) -> None:
        with pytest.raises(UsageError, match="session is of mode=session"):
            Options.read({"mode": "range", "session": "mine"}, gpu=True)

    def test_an_unknown_key(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r'traces: nsys knows .*did you mean "trace"'):
            NsysTool(tmp_path, {"traces": "cuda"})

    def test_a_gpu_is_known_by_its_driver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(options, "DRIVERS", (str(tmp_path / "version"),))
        assert not options.has_gpu()
        (tmp_path / "version").touch()
        assert options.has_gpu()


class TestLaunching:
    def test_a_session_without_a_gpu(self, fake: Fake, tmp_path: Path) -> None:
        place, folder = fake(), tmp_path / "run" / "profile"
        launch = NsysTool(folder, {}).launch()
        command = list(launch.prefix[launch.prefix.index(str(place / "nsys")) + 1 :])
        pid_file = str(folder / "nsys-server.pid")
        assert folder.is_dir()  # the server's process id is written there before anything else is
        assert command.pop(1).startswith("--session-new=servebench-")
        assert command[:3] == ["launch", "--trace=nvtx,osrt", "--trace-fork-before-exec=true"]
        assert command[3:] == ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', pid_file]
        assert launch.flags == {}
        assert launch.env["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
        assert Path(launch.env["TMPDIR"]).is_dir()
        assert not launch.after_exit

    def test_with_a_gpu_vllm_names_its_steps(self, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake()
        monkeypatch.setattr("servebench.profile.tools.nsys.tool.has_gpu", lambda: True)
        launch = NsysTool(tmp_path, {}).launch()
        assert {"--trace=cuda,nvtx", "--cuda-graph-trace=node"} < set(launch.prefix)
        assert launch.flags == {"profiler-config.profiler": "cuda"}

    def test_ranges(self, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake()
        monkeypatch.setattr("servebench.profile.tools.nsys.tool.has_gpu", lambda: True)
        launch = NsysTool(tmp_path, {"mode": "range"}).launch()
        wanted = {"profile", "--capture-range=cudaProfilerApi", "--capture-range-end=repeat", "--sample=none"}
        assert wanted < set(launch.prefix)
        assert f"--output={tmp_path}/capture" in launch.prefix
        assert launch.after_exit


class TestAttaching:
    def test_a_server_that_was_not_launched_for_it(self, fake: Fake, tmp_path: Path) -> None:
        fake()
        with pytest.raises(ProfileError, match="launch it with `nsys launch --session-new NAME --trace=nvtx,osrt"):
            NsysTool(tmp_path, {}).attach(server(ours=False))

    def test_the_users_own_session(self, fake: Fake, tmp_path: Path) -> None:
        place = fake()
        tool = NsysTool(tmp_path, {"session": "mine"})
        tool.attach(server(ours=False))
        tool.start("w", window(tmp_path), Bounds())
        assert "start --session=mine" in (place / "asked").read_text()
        tool.close()
        assert "shutdown" not in (place / "asked").read_text()

    def test_a_session_that_is_not_there(self, fake: Fake, tmp_path: Path) -> None:
        fake()
        with pytest.raises(ProfileError, match="no session yours: did the server end"):
            NsysTool(tmp_path, {"session": "yours"}).attach(server(ours=False))


class TestCapturing:
    def test_a_window_becomes_a_timeline(self, fake: Fake, tmp_path: Path) -> None:
        place = fake()
        file = NsysFile("3.0")
        file.system("write", 1_000, 5_000)
        file.write(place / "export.sqlite")
        tool, folder = started(place, tmp_path), window(tmp_path)
        tool.start("decode", folder, Bounds())
        asked = (place / "asked").read_text()
        assert f"--output={folder}/capture".replace("%", "%%") in asked
        assert "--sample=none --cpuctxsw=none" in asked
        (place / "output").write_text(str(folder / "capture"))  # nsys undoes the percent signs
        tool.stop()
        facts = tool.collect(folder)
        assert facts["files"] == ["capture.nsys-rep", "capture.sqlite", TIMELINE]
        assert (facts["tool"], facts["version"], facts["rows"]) == ("nsys", "2024.5.1.113", 1)
        assert "no NVIDIA GPU" in facts["note"]
        assert len(Timeline.read(folder / TIMELINE)) == 1

    def test_a_stop_that_hangs_is_given_up_and_cancelled(self, fake: Fake, tmp_path: Path) -> None:
        place = fake("[ $1 = stop ] && sleep 60")
        tool = started(place, tmp_path, {"limit": "0.3"})
        tool.start("decode", window(tmp_path), Bounds())
        before = time.monotonic()
        with pytest.raises(ProfileError, match=r"nsys stop did not end within 0\.3 s"):
            tool.stop()
        assert time.monotonic() - before < 10
        assert "cancel --session=servebench-" in (place / "asked").read_text()

    def test_a_stop_without_a_report_says_what_nsys_said(self, fake: Fake, tmp_path: Path) -> None:
        raw = tmp_path / "raw.qdstrm"
        raw.touch()
        place = fake(f"[ $1 = stop ] && echo \"Generating '{raw}'\" && echo 'No space left on device.' && exit 0")
        tool = started(place, tmp_path)
        tool.start("decode", window(tmp_path), Bounds())
        with pytest.raises(ProfileError, match=r"wrote no capture.nsys-rep: No space left on device\."):
            tool.stop()
        assert not raw.exists()

    def test_a_start_that_fails(self, fake: Fake, tmp_path: Path) -> None:
        tool = started(fake("[ $1 = start ] && echo 'Configuring is not allowed.' && exit 1"), tmp_path)
        with pytest.raises(ProfileError, match=r"nsys start failed \(exit code 1\): Configuring is not allowed\."):
            tool.start("decode", window(tmp_path), Bounds())

    @pytest.mark.parametrize(
        ("behave", "told"),
        [
            ("[ $1 = export ] && echo 'Out of memory.' && exit 9", "could not be exported: .*Out of memory"),
            ("[ $1 = export ] && exit 0", "wrote nothing"),
        ],
    )
    def test_an_export_that_fails(self, fake: Fake, tmp_path: Path, behave: str, told: str) -> None:
        tool, folder = started(fake(behave), tmp_path), window(tmp_path)
        (folder / "capture.nsys-rep").touch()
        with pytest.raises(ProfileError, match=told):
            tool.collect(folder)
        assert [path.name for path in folder.iterdir()] == ["capture.nsys-rep"]

    def test_a_capture_of_nothing(self, fake: Fake, tmp_path: Path) -> None:
        place = fake()
        NsysFile("3.0").write(place / "export.sqlite")
        tool, folder = started(place, tmp_path, {"trace": "nvtx"}), window(tmp_path)
        (folder / "capture.nsys-rep").touch()
        with pytest.raises(ProfileError, match=r"captured nothing of nvtx: .*add --profile-option trace=nvtx,osrt"):
            tool.collect(folder)

    def test_a_foreign_export(self, fake: Fake, tmp_path: Path) -> None:
        place = fake()
        with sqlite3.connect(place / "export.sqlite") as database:
            database.execute("CREATE TABLE other (x)")
        database.close()
        tool, folder = started(place, tmp_path), window(tmp_path)
        (folder / "capture.nsys-rep").touch()
        with pytest.raises(ProfileError, match="no export of Nsight Systems"):
            tool.collect(folder)

    def test_a_window_that_never_began(self, fake: Fake, tmp_path: Path) -> None:
        tool = started(fake(), tmp_path)
        with pytest.raises(ProfileError, match="the capture did not end well"):
            tool.collect(window(tmp_path))


class TestRoutes:
    @pytest.fixture
    def ranges(self, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NsysTool:
        fake()
        monkeypatch.setattr("servebench.profile.tools.nsys.tool.has_gpu", lambda: True)
        tool = NsysTool(tmp_path, {"mode": "range", "limit": "1"})
        tool.launch()
        return tool

    def test_steps_bound_a_range(self, ranges: NsysTool, tmp_path: Path) -> None:
        seen: list[tuple[str, bytes]] = []

        def answer(request: httpx.Request) -> httpx.Response:
            seen.append((request.url.path, request.content))
            return httpx.Response(200)

        ranges.attach(server(answer))
        ranges.start("decode", window(tmp_path), Bounds(5.0, steps=50))
        ranges.stop()
        assert seen == [("/start_profile", b'{"max_iterations":50}'), ("/stop_profile", b"")]

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            (lambda _: httpx.Response(404), "no /start_profile: start vLLM with --profiler-config.profiler cuda"),
            (lambda _: httpx.Response(409, text="busy"), "the server answered /stop_profile with 409: busy"),
            (lambda _: httpx.Response(500, text="broken"), "the server answered /start_profile with 500: broken"),
        ],
    )
    def test_a_route_that_refuses(self, ranges: NsysTool, tmp_path: Path, answer: Any, told: str) -> None:
        ranges.attach(server(answer))
        with pytest.raises(ProfileError, match=told):
            ranges.start("decode", window(tmp_path), Bounds())

    def test_a_server_of_others_has_no_ranges(self, ranges: NsysTool) -> None:
        with pytest.raises(ProfileError, match="needs a server that servebench launches"):
            ranges.attach(server(ours=False))

    def test_a_range_that_left_no_report(self, ranges: NsysTool, tmp_path: Path) -> None:
        ranges.attach(server(lambda _: httpx.Response(200)))
        folder = window(tmp_path)
        ranges.start("decode", folder, Bounds())
        with pytest.raises(ProfileError, match=r"nsys wrote no capture\.1\.nsys-rep within 1 s"):
            ranges.collect(folder)
