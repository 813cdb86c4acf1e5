"""A Python that seems to hold vLLM, for the tests of finding and launching it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EnvironmentMaker = Callable[..., Path]


@pytest.fixture
def make_environment(tmp_path: Path) -> EnvironmentMaker:
    """Make an environment whose `vllm` is `fake_vllm.py`, and return its Python."""

    def make(torch_version: str = "cuda = None\n", module: bool = True) -> Path:
        site = tmp_path / "environment" / "site"
        for name in ("torch", "transformers", "vllm", "vllm/entrypoints", "vllm/entrypoints/openai"):
            (site / name).mkdir(parents=True)
            (site / name / "__init__.py").touch()
        (site / "torch" / "version.py").write_text(torch_version)
        if module:
            shutil.copy(Path(__file__).with_name("fake_vllm.py"), site / "vllm/entrypoints/openai/api_server.py")
        python = tmp_path / "environment" / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        return python

    return make


@pytest.fixture
def fake_python(make_environment: EnvironmentMaker) -> Path:
    """The Python of an environment whose vLLM is `fake_vllm.py`."""
    return make_environment()
