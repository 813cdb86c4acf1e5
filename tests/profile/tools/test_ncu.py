from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from ncu_files import WHOLE, write_raw
from servebench.errors import UsageError
from servebench.profile.server import Server
from servebench.profile.timeline import Kind, Timeline
from servebench.profile.tool import Bounds, ProfileError
from servebench.profile.tools import cuda_program
from servebench.profile.tools.ncu import NcuTool
from servebench.profile.tools.nsys import supervise


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ncu that only tells its version, first on PATH, on a machine that seems to have a GPU."""
    program = tmp_path / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA (R) Nsight Compute Command Line Profiler'\necho 'Version 2025.3.1.0 (x)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(cuda_program, "has_gpu", lambda: True)
    return program


def server(handler: httpx.MockTransport | None = None, ours: bool = True) -> Server:
    return Server(
        "http://server", "vllm", 1, lambda timeout: httpx.Client(transport=handler, timeout=timeout), ours=ours
    )


def test_the_command_that_launches_the_server(tmp_path: Path, ncu: Path) -> None:
    folder = tmp_path / "100% profile"
    tool = NcuTool(folder, {"kernel": "^gemm", "count": "3", "skip": "10"})
    assert tool.check() == "2025.3.1.0"
    launch = tool.launch()
    pid_file = str(folder / "ncu-server.pid")
    assert launch.prefix == (
        *(sys.executable, "-I", "-S", supervise.__file__, pid_file),
        str(ncu),
        *("--target-processes", "all"),
        *("--profile-from-start", "off"),
        *("--graph-profiling", "node"),
        *("--kernel-name", "regex:^gemm"),
        *("--launch-skip", "10", "--launch-count", "3"),
        *("--section", "SpeedOfLight"),
        *("--section", "SpeedOfLight_RooflineChart"),
        *("--section", "MemoryWorkloadAnalysis"),
        *("--section", "Occupancy"),
        *("--section", "LaunchStats"),
        *("--section", "WarpStateStats"),
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", f"{tmp_path}/100%% profile/ncu.csv"),
        *supervise.SHELL,
        pid_file,
    )
    assert launch.flags == {"profiler-config.profiler": "cuda"}
    assert launch.env == {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    assert launch.after_exit
    assert folder.is_dir()  # ncu makes no folders


def test_a_server_without_profile_routes_is_profiled_from_its_start(tmp_path: Path, ncu: Path) -> None:
    tool = NcuTool(tmp_path, {"kernel": "gemm", "within": "start"})
    arguments = tool.arguments()
    assert arguments[arguments.index("--profile-from-start") + 1] == "on"
    assert tool.launch().flags == {}
    tool.attach(server())  # asks nothing of the server
    tool.start("decode", tmp_path, Bounds())
    tool.stop()


def test_the_window_is_bracketed_by_the_routes(tmp_path: Path) -> None:
    asked: list[tuple[str, str, bytes]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path, request.content))
        return httpx.Response(405 if request.method == "OPTIONS" else 200)

    tool = NcuTool(tmp_path, {"kernel": "gemm"})
    tool.attach(server(httpx.MockTransport(handler)))
    tool.start("decode", tmp_path, Bounds(steps=20))
    tool.stop()
    assert [(method, path) for method, path, _ in asked] == [
        ("OPTIONS", "/start_profile"),
        ("POST", "/start_profile"),
        ("POST", "/stop_profile"),
    ]
    assert asked[1][2].replace(b" ", b"") == b'{"max_iterations":20}'


def test_a_server_without_the_routes_says_what_to_do(tmp_path: Path) -> None:
    tool = NcuTool(tmp_path, {"kernel": "gemm"})
    missing = server(httpx.MockTransport(lambda request: httpx.Response(404)))
    with pytest.raises(ProfileError, match=r"no /start_profile: .*profiler cuda.*within=start"):
        tool.attach(missing)


def test_a_running_server_cannot_be_attached(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot attach to a running server"):
        NcuTool(tmp_path, {"kernel": "gemm"}).attach(server(ours=False))


def test_the_kernel_may_come_from_a_capture(tmp_path: Path) -> None:
    columns = {
        "start": np.array([0, 10, 100]),
        "end": np.array([10, 100, 130]),
        "kind": np.array([Kind.COMPUTE] * 3),
        "name": np.array([0, 1, 0]),
        "device": np.array([0] * 3),
    }
    names = ("norm(float *)", "void fa::flash_fwd<128, (bool)1>(Params)")
    capture = tmp_path / "timeline.parquet"
    Timeline.of_columns("nsys", names, columns).write(capture)
    assert "regex:^flash_fwd$" in NcuTool(tmp_path, {"timeline": str(capture)}).arguments()


def test_a_capture_without_kernels_says_so(tmp_path: Path) -> None:
    capture = tmp_path / "timeline.parquet"
    columns = {"start": np.array([0]), "end": np.array([1]), "kind": np.array([Kind.SYSTEM]), "name": np.array([0])}
    Timeline.of_columns("nsys", ("poll",), columns).write(capture)
    with pytest.raises(UsageError, match="no kernel of a GPU is in it"):
        NcuTool(tmp_path, {"timeline": str(capture)})
    with pytest.raises(UsageError, match="does not exist"):
        NcuTool(tmp_path, {"timeline": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "ncu replays one kernel: --profile-option kernel=REGEX, or timeline=FILE"),
        ({"kernel": "(gemm"}, r"--profile-option kernel=\(gemm: "),
        ({"kernel": "a", "count": "0"}, "count=0: a whole number from 1"),
        ({"kernel": "a", "count": "²"}, "count=²: a whole number from 1"),
        ({"kernel": "a", "skip": "-1"}, "skip=-1: a whole number from 0"),
        ({"kernel": "a", "within": "range"}, "within=range: window or start"),
    ],
)
def test_settings_that_mean_nothing(tmp_path: Path, settings: dict[str, str], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        NcuTool(tmp_path, settings)


def test_without_a_gpu_and_without_ncu_both_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda_program, "has_gpu", lambda: False)
    monkeypatch.setattr(cuda_program.glob, "glob", lambda pattern: [])
    needs = r"ncu needs an NVIDIA GPU and Nsight Compute .*on PATH.*: no NVIDIA driver is loaded and ncu is neither on"
    with pytest.raises(UsageError, match=needs):
        NcuTool(tmp_path, {"kernel": "gemm"}).check()


def test_without_a_gpu_ncu_is_of_no_use(tmp_path: Path, ncu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_program, "has_gpu", lambda: False)
    with pytest.raises(UsageError, match=r"no NVIDIA driver is loaded$"):
        NcuTool(tmp_path, {"kernel": "gemm"}).check()


def test_the_latest_of_the_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2024.10.1", "2024.9.2"):
        program = tmp_path / version / "ncu"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho Version {version}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(cuda_program, "has_gpu", lambda: True)
    found = cuda_program.CudaProgram("ncu", "Nsight Compute", (f"{tmp_path}/*/ncu",))
    assert found.find().parent.name == "2024.10.1"


def test_a_program_that_does_not_work_says_so(tmp_path: Path, ncu: Path) -> None:
    ncu.write_text("#!/bin/sh\necho broken libraries >&2; exit 1\n")
    with pytest.raises(UsageError, match="does not say its version, but: broken libraries"):
        NcuTool(tmp_path, {"kernel": "gemm"}).check()


def test_what_it_measured(tmp_path: Path, ncu: Path) -> None:
    window = tmp_path / "decode"
    window.mkdir()
    write_raw(tmp_path / "ncu.csv", [("gemm", WHOLE), ("gemm", WHOLE)])
    facts = NcuTool(tmp_path, {"kernel": "^gemm"}).collect(window)
    assert facts["files"] == ["ncu.csv"] and (window / "ncu.csv").is_file()
    assert (facts["tool"], facts["version"]) == ("ncu", "2025.3.1.0")
    assert facts["kernel_replay"]["kernel"] == "^gemm"
    (row,) = facts["kernel_replay"]["rows"]
    assert (row["kernel"], row["launches"], row["roof"]) == ("gemm", 2, "bandwidth")


FAKE = """\
#!{python}
import signal, subprocess, sys
at = sys.argv.index("/bin/sh")
signal.signal(signal.SIGTERM, signal.SIG_DFL)
code = subprocess.call(sys.argv[at:])  # the server, until it ends
log = sys.argv[sys.argv.index("--log-file") + 1].replace("%%", "%")
open(log, "w").write(open({table!r}).read())
sys.exit(code)
"""
SERVER = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"
)


def test_the_table_is_written_when_the_server_has_ended(tmp_path: Path, ncu: Path) -> None:
    table = write_raw(tmp_path / "table", [("gemm", WHOLE)])
    folder = tmp_path / "100% profile"
    tool = NcuTool(folder, {"kernel": "gemm"})
    prefix = tool.launch().prefix
    ncu.write_text(FAKE.format(python=sys.executable, table=str(table)))
    with subprocess.Popen([*prefix, sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.wait(20) == 0
    assert (folder / "ncu-server.pid").is_file()
    tool.close()
    assert not (folder / "ncu-server.pid").exists()
    ncu.write_text("#!/bin/sh\necho Version 1\n")
    assert len(tool.collect(tmp_path)["kernel_replay"]["rows"]) == 1


def test_what_it_did_not_measure(tmp_path: Path, ncu: Path) -> None:
    tool = NcuTool(tmp_path, {"kernel": "^gemm"})
    with pytest.raises(ProfileError, match="has written no"):
        tool.collect(tmp_path)
    log = tmp_path / "ncu.csv"
    log.write_text("==PROF== Connected\n==WARNING== No kernels were profiled.\n")
    with pytest.raises(ProfileError, match=r"No kernels were profiled\. \(kernel=\^gemm\)"):
        tool.collect(tmp_path)
    log.write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n")
    with pytest.raises(ProfileError, match=r"only administrators .*NVreg_RestrictProfilingToAdminUsers=0"):
        tool.collect(tmp_path)
