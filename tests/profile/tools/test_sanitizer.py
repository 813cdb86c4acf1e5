from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from sanitizer_logs import CLEAN, OUT_OF_BOUNDS, log
from servebench.errors import UsageError
from servebench.profile.server import Server
from servebench.profile.tool import ProfileError
from servebench.profile.tools import cuda_program
from servebench.profile.tools.nsys import supervise
from servebench.profile.tools.sanitizer import SanitizerTool


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compute-sanitizer that only tells its version, on a machine that seems to have a GPU."""
    path = tmp_path / "bin" / "compute-sanitizer"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'NVIDIA (R) Compute Sanitizer'\necho 'Version 2025.2.1'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    monkeypatch.setattr(cuda_program, "has_gpu", lambda: True)
    return path


def test_the_command_that_launches_the_server(tmp_path: Path, program: Path) -> None:
    tool = SanitizerTool(tmp_path, {})
    assert tool.check() == "2025.2.1"
    launch = tool.launch()
    pid_file = str(tmp_path / "sanitizer-server.pid")
    assert launch.prefix == (
        *(sys.executable, "-I", "-S", supervise.__file__, pid_file),
        str(program),
        *("--tool", "memcheck"),
        *("--report-api-errors", "no"),
        *("--target-processes", "all"),
        *("--launch-timeout", "0"),
        *("--require-cuda-init", "no"),
        *("--check-exit-code", "no"),
        *("--error-exitcode", "86"),
        *("--print-limit", "1000"),
        *("--log-file", f"{tmp_path}/sanitizer-memcheck.log"),
        *supervise.SHELL,
        pid_file,
    )
    assert launch.env == {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    assert launch.after_exit


def test_races_of_some_kernels(tmp_path: Path) -> None:
    arguments = SanitizerTool(tmp_path, {"checks": "racecheck", "kernels": "flash_"}).arguments()
    assert arguments[:4] == ("--tool", "racecheck", "--kernel-name", "kernel_substring=flash_")
    assert arguments[-1] == f"{tmp_path}/sanitizer-racecheck.log"
    assert "--report-api-errors" not in arguments  # an option of memcheck


def test_leaks(tmp_path: Path) -> None:
    arguments = SanitizerTool(tmp_path, {"leaks": "yes"}).arguments()
    assert arguments[arguments.index("--leak-check") + 1] == "full"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"checks": "memcheck,racecheck"}, "a server runs under one check at a time; run once for each"),
        ({"checks": "memchek"}, r"checks=memchek: one of memcheck, racecheck.*memcheck"),
        ({"leaks": "maybe"}, "leaks=maybe: yes or no"),
        ({"checks": "racecheck", "leaks": "yes"}, "only memcheck looks for leaks"),
        ({"check": "memcheck"}, "sanitizer knows checks"),
    ],
)
def test_settings_that_mean_nothing(tmp_path: Path, settings: dict[str, str], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        SanitizerTool(tmp_path, settings)


def test_without_a_gpu_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda_program, "has_gpu", lambda: False)
    monkeypatch.setattr(cuda_program.glob, "glob", lambda pattern: [])
    with pytest.raises(UsageError, match=r"^compute-sanitizer needs an NVIDIA GPU and Compute Sanitizer .*on PATH"):
        SanitizerTool(tmp_path, {}).check()


def test_a_running_server_cannot_be_attached(tmp_path: Path) -> None:
    running = Server("http://server", "vllm", 1, lambda timeout: httpx.Client(timeout=timeout))
    with pytest.raises(ProfileError, match="cannot attach to a running server"):
        SanitizerTool(tmp_path, {}).attach(running)


@pytest.mark.parametrize(
    ("parts", "passed", "findings"),
    [((CLEAN,), True, 0), ((OUT_OF_BOUNDS.format(thread=1), "========= ERROR SUMMARY: 1 error"), False, 1)],
)
def test_the_gate(tmp_path: Path, program: Path, parts: tuple[str, ...], passed: bool, findings: int) -> None:
    window = tmp_path / "mixed"
    window.mkdir()
    (tmp_path / "sanitizer-memcheck.log").write_text(log(*parts))
    facts = SanitizerTool(tmp_path, {}).collect(window)
    assert facts["sanitizer"]["check"] == "memcheck"
    assert facts["sanitizer"]["passed"] is passed
    assert len(facts["sanitizer"]["findings"]) == findings
    assert (window / facts["files"][0]).is_file()


def test_without_a_log_there_is_no_gate(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="has written no"):
        SanitizerTool(tmp_path, {}).collect(tmp_path)
