"""Which processes are the server's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from servebench.telemetry.processes import process_tree


def put(proc: Path, pid: int, parent: int, name: str = "python") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {pid} 0 -1")


def test_children_of_children_belong_to_it_and_others_do_not(tmp_path: Path) -> None:
    put(tmp_path, 10, 1)
    put(tmp_path, 11, 10, "VLLM::EngineCore (0) R 1")
    put(tmp_path, 12, 11)
    put(tmp_path, 20, 1)
    (tmp_path / "30").mkdir()  # it has just ended
    assert sorted(process_tree(10, tmp_path)) == [10, 11, 12]


def test_a_process_without_children_stands_alone(tmp_path: Path) -> None:
    assert process_tree(10, tmp_path) == [10]


def test_a_living_child_is_found() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in process_tree(os.getpid())
    finally:
        child.communicate()
