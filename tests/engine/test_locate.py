"""Finding the Python that has vLLM: the order of the places, and what is said when there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from servebench.engine.locate import find_vllm_python
from servebench.errors import EngineError

WITHOUT = sys.executable  # the tests' own Python has no vLLM


def script(path: Path, first_line: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first_line}\n")
    path.chmod(0o755)
    return path


def python(root: Path) -> Path:
    """A Python that says yes to every question."""
    return script(root / "bin" / "python", "#!/bin/sh")


def test_the_named_one_comes_first(tmp_path: Path) -> None:
    named, variable = python(tmp_path / "a"), python(tmp_path / "b")
    assert find_vllm_python(named, {"SERVEBENCH_VLLM_PYTHON": str(variable)}, tmp_path) == named


def test_an_environments_folder_stands_for_its_python(tmp_path: Path) -> None:
    named = python(tmp_path / "a")
    assert find_vllm_python(tmp_path / "a", {}, tmp_path) == named


def test_the_variable_comes_before_the_path(tmp_path: Path) -> None:
    variable, other = python(tmp_path / "a"), python(tmp_path / "b")
    script(tmp_path / "path" / "vllm", f"#!{other}")
    environ = {"SERVEBENCH_VLLM_PYTHON": str(variable), "PATH": str(tmp_path / "path")}
    assert find_vllm_python(None, environ, tmp_path) == variable


def test_the_command_on_the_path_tells_its_interpreter(tmp_path: Path) -> None:
    interpreter = python(tmp_path / "a")
    script(tmp_path / "path" / "vllm", f"#!{interpreter}")
    python(tmp_path / ".venv-vllm")
    assert find_vllm_python(None, {"PATH": str(tmp_path / "path")}, tmp_path) == interpreter


@pytest.mark.parametrize("first_line", ["#!/bin/sh", "#!/usr/bin/env python3", "", "#!"])
def test_a_command_that_does_not_tell_has_its_interpreter_beside_it(tmp_path: Path, first_line: str) -> None:
    interpreter = python(tmp_path / "a")
    command = script(tmp_path / "a" / "bin" / "vllm", first_line)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "vllm").symlink_to(command)
    assert find_vllm_python(None, {"PATH": str(tmp_path / "path")}, tmp_path) == interpreter


def test_the_checkout_comes_last(tmp_path: Path) -> None:
    interpreter = python(tmp_path / ".venv-vllm")
    assert find_vllm_python(None, {"PATH": ""}, tmp_path) == interpreter


def test_a_broken_command_on_the_path_does_not_hide_the_checkout(tmp_path: Path) -> None:
    interpreter = python(tmp_path / ".venv-vllm")
    script(tmp_path / "path" / "vllm", f"#!{tmp_path / 'gone' / 'python'}")
    assert find_vllm_python(None, {"PATH": str(tmp_path / "path")}, tmp_path) == interpreter


def test_the_link_of_a_virtual_environment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = python(tmp_path / "base")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(target)
    monkeypatch.chdir(tmp_path)
    assert find_vllm_python("venv/bin/python", {}, tmp_path) == tmp_path / "venv" / "bin" / "python"


def test_nothing_found_names_the_three_ways_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngineError) as error:
        find_vllm_python(None, {"PATH": ""}, tmp_path)
    text = str(error.value)
    assert "\n" not in text
    for way in ("scripts/install-vllm", "--vllm-python", "SERVEBENCH_VLLM_PYTHON", "--endpoint URL", "--endpoint sim"):
        assert way in text


@pytest.mark.parametrize("origin", ["--vllm-python", "SERVEBENCH_VLLM_PYTHON"])
def test_a_named_python_without_vllm_is_an_error_that_says_what_is_missing(tmp_path: Path, origin: str) -> None:
    python(tmp_path / ".venv-vllm")
    named, environ = (WITHOUT, {}) if origin == "--vllm-python" else (None, {origin: WITHOUT})
    with pytest.raises(EngineError, match=rf"{origin}: {WITHOUT} cannot serve vLLM: no vllm, .*three ways on"):
        find_vllm_python(named, environ, tmp_path)


@pytest.mark.parametrize("name", ["missing", "folder", "text"])
def test_what_is_no_program_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder" / "bin" / "python").mkdir(parents=True)
    (tmp_path / "text").write_text("not executable")
    with pytest.raises(EngineError, match="it is no executable file"):
        find_vllm_python(tmp_path / name, {}, tmp_path)


def test_a_program_that_cannot_run_is_refused(tmp_path: Path) -> None:
    broken = script(tmp_path / "broken", f"#!{tmp_path / 'gone'}")
    with pytest.raises(EngineError, match="No such file or directory"):
        find_vllm_python(broken, {}, tmp_path)
