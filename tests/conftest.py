"""What every test may ask for, and what none may touch: the user's cache, environment and proxies."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parent.parent

sys.path.insert(0, str(Path(__file__).parent))  # for `runs`, what tests of whole runs share

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

KEPT_FOR_VLLM = ("SERVEBENCH_VLLM_PYTHON", "SERVEBENCH_REQUIRE_VLLM")


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let the test and all that it starts hear Ctrl-C, which a shell's background does not; it leaves no handler."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    left = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert left is signal.default_int_handler, f"a handler of Ctrl-C was left behind: {left}"


@pytest.fixture(autouse=True)
def clean_environment(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Give the test a cache of its own, and hide the user's servebench settings, proxies and network from it.

    Tests of a real vLLM share one cache in the checkout instead: the tiny model and vLLM's compiled code take long.
    """
    vllm = request.node.get_closest_marker("vllm") is not None
    cache = REPOSITORY / ".cache" / "tests" if vllm else tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    for name in list(os.environ):
        ours = name.startswith("SERVEBENCH_") and not (vllm and name in KEPT_FOR_VLLM)
        if ours or name.lower() in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("DO_NOT_TRACK", "1")  # vLLM would report its use


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listened a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """Where a run directory may be made; the folder does not exist yet."""
    return tmp_path / "run"
