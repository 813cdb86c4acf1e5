"""`servebench serve`, with a vLLM that is played."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest


def serve(python: Path, log: Path, *more: str, mode: str = "serve") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "servebench", "serve", "--model", "m", "--vllm-python", str(python)]
    environment = {**os.environ, "FAKE_VLLM": mode, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*command, "--log", str(log), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_url_and_serves_until_it_is_told(fake_python: Path, tmp_path: Path, number: int) -> None:
    with serve(fake_python, tmp_path / "log", "--", "--max-num-seqs", "8") as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if " at http" in line)
        assert line.startswith('vLLM 9.9.9 serves "m" at http://127.0.0.1:')
        url = line.split()[-1]
        assert urllib.request.urlopen(f"{url}/health").status == 200
        assert "--max-num-seqs=8" in (tmp_path / "log").read_text()
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health")


def test_a_vllm_that_ends_is_an_error(fake_python: Path, tmp_path: Path) -> None:
    with serve(fake_python, tmp_path / "log", mode="die") as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert errors.startswith("servebench: error: vLLM ended (exit code 1): ValueError: no room for the KV cache\n")


def test_ctrl_c_while_it_starts_ends_both(fake_python: Path, tmp_path: Path) -> None:
    with serve(fake_python, tmp_path / "log", mode="slow") as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("starting vLLM"))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == "servebench: note: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "stray"], '"stray": expected a vLLM flag in its long form'),
        (["--", "--port", "1"], '"port" is set by servebench itself'),
        (["--", "--max-num-sqs=1"], 'this vLLM has no flag "max-num-sqs" (did you mean "max-num-seqs"?)'),
        (["--prt", "1"], 'No such option "--prt" (did you mean "--port"?)'),
    ],
)
def test_what_is_wrong_is_told_in_one_line(fake_python: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    with serve(fake_python, tmp_path / "log", *arguments) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert said in errors
    assert len(errors.splitlines()) == 1
