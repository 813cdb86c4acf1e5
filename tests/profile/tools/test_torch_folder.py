"""stated_folder: where a vLLM's own command line says that traces go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servebench.profile.tools.torch_folder import folder_of, stated_folder


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (["vllm", "serve", "m", "--profiler-config.torch_profiler_dir=/t"], "/t"),
        (["vllm", "serve", "m", "--profiler-config.torch_profiler_dir", "/t", "--port", "1"], "/t"),
        (["vllm", "--profiler-config.torch-profiler-dir=/t"], "/t"),
        (["vllm", "--profiler-config", '{"profiler": "torch", "torch_profiler_dir": "/t"}'], "/t"),
        (["vllm", '--profiler-config={"torch_profiler_dir": "/t"}'], "/t"),
        (["vllm", "--profiler-config", '{"profiler": "cuda"}'], None),
        (["vllm", "--profiler-config", "{"], None),
        (["vllm", "--profiler-config", "[]"], None),
        (["vllm", "--port", "1"], None),
        ([], None),
    ],
)
def test_folder_of(command: list[str], folder: str | None) -> None:
    assert folder_of(command) == (None if folder is None else Path(folder))


def test_stated_folder_of_a_process_is_seen_from_its_own_folder(tmp_path: Path) -> None:
    idle = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", idle, "--profiler-config.torch_profiler_dir=traces"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert stated_folder(process.pid) == tmp_path / "traces"
        process.communicate()
    assert stated_folder(process.pid) is None
