"""The simulated engine as a process: its start, its end, and its parent's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from servebench.engine.sim.launch import start_sim
from servebench.engine.sim.settings import SimSettings
from servebench.errors import EngineError, UsageError


def test_it_answers_as_soon_as_it_is_returned_and_stops_when_told():
    sim = start_sim(SimpleNamespace(**SimSettings(base=1e-3, kv_tokens=1600).to_dict()), "name/of model")
    try:
        assert httpx.get(f"{sim.url}/v1/models").json()["data"][0]["id"] == "name/of model"
        assert httpx.get(f"{sim.url}/v1/models").json()["data"][0]["max_model_len"] == 1600
        assert sim.poll() is None
    finally:
        assert sim.stop() == 0
    assert sim.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{sim.url}/health")


def test_it_stops_while_a_stream_is_open():
    with start_sim({"base": 0.01}, "toy") as sim:
        body = {"prompt": "a", "max_tokens": 10_000, "stream": True}
        with httpx.stream("POST", f"{sim.url}/v1/completions", json=body) as response:
            chunks = response.iter_raw()
            next(chunks)
            assert sim.stop() == 0


def test_a_port_in_use_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=r"did not start \(it ended before it listened.*address already in use"):
            start_sim({}, "toy", port=port)


def test_what_it_says_as_it_dies_is_kept_in_the_log(tmp_path: Path):
    log = tmp_path / "sim.log"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(EngineError):
        start_sim({}, "toy", port=taken.getsockname()[1], log_path=log)
    assert "address already in use" in log.read_text()


def test_wrong_settings_are_refused_before_anything_starts():
    with pytest.raises(UsageError, match='no key "bas"'):
        start_sim({"bas": 1}, "toy")


PARENT = """
import os, sys, time
from servebench.engine.sim.launch import start_sim
sim = start_sim({}, "toy")
if sys.argv[1] == "fork" and os.fork() == 0:
    os.close(1)
    time.sleep(30)  # a sibling that keeps a copy of the pipe to the engine
print(sim.pid, sim.url, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("sibling", ["fork", "none"])
def test_it_ends_with_its_parent_even_when_that_is_killed(sibling: str):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, sibling], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert parent.stdout is not None
        _, url = parent.stdout.readline().split()
        assert httpx.get(f"{url}/health").status_code == 200
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 5
        while _answers(url):
            assert time.monotonic() < deadline, "the engine outlived its parent"
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.stdout.close()
        if sibling == "fork":
            os.killpg(parent.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.TransportError:
        return False
    return True
