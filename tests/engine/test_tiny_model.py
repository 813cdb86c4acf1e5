"""The cache of the built-in model: made once, whole or not at all."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from servebench.engine.interrupted import LaunchInterruptedError
from servebench.engine.tiny_model import cache_root, ensure_tiny_model, has_random_weights
from servebench.errors import EngineError

# Answers the question for the version itself; what comes through standard input is the builder, with the folder.
PRETENDER = """#!/bin/sh
if [ "$1" = -c ]; then echo "{version}"; exit; fi
cat > "$2/builder.py"
echo built >> "{count}"
{action}
"""
MARK = 'echo made > "$2/RANDOM_WEIGHTS"'


def pretender(root: Path, action: str = MARK, version: str = "3.11") -> Path:
    root.mkdir(exist_ok=True)
    python = root / f"python-{version}"
    python.write_text(PRETENDER.format(version=version, count=root / "count", action=action))
    python.chmod(0o755)
    return python


def builds(root: Path) -> int:
    return len((root / "count").read_text().splitlines())


def test_it_is_made_once(tmp_path: Path) -> None:
    python = pretender(tmp_path / "p")
    folder = ensure_tiny_model(python)
    assert folder == ensure_tiny_model(python)
    assert builds(tmp_path / "p") == 1
    assert folder.parent == cache_root() / "models"
    assert folder.name.startswith("tiny-random-v1-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert has_random_weights(folder)


def test_the_builder_is_what_runs(tmp_path: Path) -> None:
    folder = ensure_tiny_model(pretender(tmp_path / "p"))
    assert "def train_tokenizer" in (folder / "builder.py").read_text()


def test_another_python_version_has_its_own(tmp_path: Path) -> None:
    first = ensure_tiny_model(pretender(tmp_path / "p"))
    assert ensure_tiny_model(pretender(tmp_path / "p", version="3.12")) != first


def test_nothing_is_left_of_a_failed_making(tmp_path: Path) -> None:
    python = pretender(tmp_path / "p", "echo Traceback; echo 'ImportError: no torch'; exit 1")
    with pytest.raises(EngineError, match=r"cannot make the model tiny-random with .*: ImportError: no torch"):
        ensure_tiny_model(python)
    assert list((cache_root() / "models").iterdir()) == []


def test_whoever_is_quicker_wins(tmp_path: Path) -> None:
    folder = ensure_tiny_model(pretender(tmp_path / "p"))
    (folder / "RANDOM_WEIGHTS").unlink()  # as if another process were about to finish: it does while we build
    slower = pretender(tmp_path / "p", f"echo theirs > {folder}/RANDOM_WEIGHTS; {MARK}")
    assert ensure_tiny_model(slower) == folder
    assert (folder / "RANDOM_WEIGHTS").read_text() == "theirs\n"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_making_can_be_interrupted(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    with pytest.raises(LaunchInterruptedError, match="was interrupted"):
        ensure_tiny_model(pretender(tmp_path / "p", "exec sleep 30"), lambda: next(asked))
    assert list((cache_root() / "models").iterdir()) == []


def test_a_python_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(EngineError, match="does not run: broken"):
        ensure_tiny_model(python)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EngineError, match=r"cannot make the model tiny-random in .*: Not a directory"):
        ensure_tiny_model(Path(sys.executable))


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_the_cache_is_in_the_home_unless_an_absolute_path_is_set(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_root() == Path.home() / ".cache" / "servebench"


def test_other_models_are_not_taken_for_random(tmp_path: Path) -> None:
    assert not has_random_weights(tmp_path)
    assert not has_random_weights("some/model")
