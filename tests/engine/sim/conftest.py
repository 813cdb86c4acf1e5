"""A simulated engine that answers in milliseconds, shared by the tests of its routes."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from servebench.engine.sim.launch import SimProcess, start_sim

QUICK = {"base": 1e-3, "per_prefill_token": 0, "per_sequence": 0, "per_context_token": 0, "kv_tokens": 20_000}


@pytest.fixture(scope="module")
def sim() -> Iterator[SimProcess]:
    with start_sim(QUICK, "toy") as process:
        yield process


@pytest.fixture
def client(sim: SimProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sim.url, timeout=10) as client:
        yield client
