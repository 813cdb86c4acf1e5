"""`servebench sim`."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from servebench.cli.sim import command
from servebench.errors import EngineError, UsageError


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command; yield the URL that it prints, once it has said SIMULATED, and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "servebench", "sim", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"SIMULATED engine at (http://127\.0\.0\.1:\d+) .*\n", line)
        assert found, line
        yield found[1], process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_quietly_at_a_signal(number: int):
    with serving() as (url, process):
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "simulated"
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out, err) == (0, "", "")


def test_a_scenario_and_overrides_set_the_engine(tmp_path: Path, free_port: int):
    scenario = tmp_path / "mine.yaml"
    scenario.write_text(
        "servebench: 1\nname: mine\nworkload: {input_tokens: 5, output_tokens: 5}\nload: {poisson: 1/s}\n"
        "engine: {sim: {base: 1ms, kv_tokens: 1600}}\n"
    )
    with serving(str(scenario), "--set", "engine.sim.kv_tokens=3200", "--port", str(free_port), "-m", "m") as (url, _):
        assert url.endswith(f":{free_port}")
        [model] = httpx.get(f"{url}/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("m", 3200)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no-such"], "no such scenario"),
        (["--set", "engine.sim.bas=3"], 'unknown key "bas"'),
        (["--set", "engine.sim.base=0s"], "engine.sim.base"),
    ],
)
def test_wrong_scenarios_and_keys_are_usage_errors(arguments: list[str], text: str):
    error = CliRunner().invoke(command, arguments).exception
    assert isinstance(error, UsageError)
    assert text in str(error)


def test_an_address_that_cannot_be_had_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = CliRunner().invoke(command, ["--port", str(port)]).exception
    assert isinstance(error, EngineError)
    assert str(error).startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert "address already in use" in str(error)
