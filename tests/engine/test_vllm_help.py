"""Flags are refused by what the server's own help lists."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from servebench.engine import vllm_help
from servebench.engine.locate import find_vllm_python
from servebench.engine.vllm_help import check_flags, known_flags, parse_help, vllm_version
from servebench.errors import EngineError, UsageError

# Shaped like the help of vLLM 0.32: aliases before and after, choices, JSON tips, flags that a description names.
HELP = """\
usage: api_server.py [-h] [--headless] [--api-server-count API_SERVER_COUNT]
                     [--enforce-eager | --no-enforce-eager]
                     [model_tag]

positional arguments:
  model_tag             The model to serve (default: None)

options:
  --headless            Run in headless mode.
  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT
                        How many API server processes to run; see
                        --not-a-flag-of-its-own for more.
  -h, --help            show this help message and exit

ModelConfig:
  Configuration for the model.

  --dtype {auto,bfloat16,float16}
                        - "auto" will use the model's.
  --enforce-eager, --no-enforce-eager
                        Whether to always use eager mode.
  --max-model-len MAX_MODEL_LEN
                        Context length. `--max-model-len 1k` is understood.

SchedulerConfig:
  --max-num-batched-tokens MAX_NUM_BATCHED_TOKENS
  --max-num-seqs MAX_NUM_SEQS
  --gpu-memory-utilization G, --device-memory-utilization G
  --compilation-config COMPILATION_CONFIG, -cc COMPILATION_CONFIG

When passing JSON CLI arguments, the following sets of arguments are equivalent:
   --json-arg '{"key1": "value1"}'
"""
FLAGS = {
    *("headless", "api-server-count", "dtype", "enforce-eager", "no-enforce-eager", "max-model-len"),
    *("max-num-batched-tokens", "max-num-seqs", "gpu-memory-utilization", "device-memory-utilization"),
    "compilation-config",
}
SERVER = """
import pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "asked").open("a") as asked:
    print(*sys.argv[1:], file=asked)
if sys.argv[1] == "--help=all" and MODE == "old":
    sys.exit("api_server.py: error: argument -h/--help: ignored explicit argument 'all'")
if MODE == "broken":
    sys.exit("ImportError: libcuda.so.1")
print((here / "help.txt").read_text())
NAME = "__main__"  # by which servebench tells that the module can be started
"""


@pytest.fixture
def python(make_environment) -> Path:
    """The Python of an environment whose vLLM prints `HELP`."""
    return serve(make_environment())


def serve(python: Path, mode: str = "new") -> Path:
    site = python.parents[1] / "site/vllm"
    (site / "_version.py").write_text("__version__ = version = '9.1.2'\n")
    folder = site / "entrypoints/openai"
    (folder / "help.txt").write_text(HELP)
    (folder / "api_server.py").write_text(f"MODE = {mode!r}\n{SERVER}")
    return python


def asked(python: Path) -> list[str]:
    return (python.parents[1] / "site/vllm/entrypoints/openai/asked").read_text().splitlines()


def test_every_flag_of_a_help_text_is_found_and_no_other():
    assert parse_help(HELP) == FLAGS


def test_the_server_is_asked_once_until_it_changes(python):
    assert known_flags(python) == FLAGS
    assert known_flags(python) == FLAGS
    assert asked(python) == ["--help=all"]
    edited = python.parents[1] / "site/vllm/entrypoints/openai/api_server.py"
    os.utime(edited, ns=(1, 1))
    assert known_flags(python) == FLAGS
    assert asked(python) == ["--help=all"] * 2


def test_the_answer_lies_in_the_cache_under_the_version(python):
    known_flags(python)
    (file,) = Path(os.environ["XDG_CACHE_HOME"]).glob("servebench/vllm-flags/*")
    assert file.name.startswith("9.1.2-")
    assert set(json.loads(file.read_text())["flags"]) == FLAGS
    file.write_text('{"fla')  # as a full disk would leave it
    assert known_flags(python) == FLAGS


def test_an_old_server_is_asked_for_its_plain_help(python):
    serve(python, "old")
    assert known_flags(python) == FLAGS
    assert asked(python) == ["--help=all", "--help"]


def test_a_server_without_its_old_module_is_asked_through_the_command(make_environment):
    python = make_environment(module=False)
    command = python.parents[1] / "site/vllm/entrypoints/cli"
    command.mkdir()
    (command / "__init__.py").touch()
    (command / "main.py").write_text(f"import sys\nassert sys.argv[1:] == ['serve', '--help=all']\nprint({HELP!r})\n")
    assert known_flags(python) == FLAGS
    assert vllm_version(python) == "of an unknown version"


def test_a_server_that_cannot_print_its_help_is_an_error(python):
    serve(python, "broken")
    with pytest.raises(EngineError, match=r"cannot ask .* for its flags: ImportError: libcuda"):
        known_flags(python)


def test_a_server_that_does_not_answer_is_one_line(python, monkeypatch):
    monkeypatch.setattr(vllm_help, "LIMIT_S", 0.001)
    with pytest.raises(EngineError, match=r"cannot ask .* for what vLLM it has: no answer within 0\.001 s$"):
        known_flags(python)


@pytest.mark.parametrize(
    "flags",
    [
        {"max-num-seqs": 64, "enforce-eager": True},
        {"enforce-eager": False},
        {"no-enforce-eager": True},
        {"compilation-config.mode": 3},
        {"device-memory-utilization": 0.5},
        {"left-out": None},
        {},
    ],
)
def test_flags_that_the_server_has_pass(python, flags):
    check_flags(flags, python)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"max-num-seq": 64}, 'vLLM 9.1.2 has no flag "max-num-seq" (did you mean "max-num-seqs"?)'),
        ({"max-num-seqs": 1, "enforce-eagre": True}, 'no flag "enforce-eagre" (did you mean "enforce-eager"?)'),
        ({"enforce-eagre": False}, 'no flag "enforce-eagre" (did you mean "enforce-eager"?)'),
        ({"no-enforce-eagr": True}, 'no flag "no-enforce-eagr" (did you mean "no-enforce-eager"?)'),
        ({"headless": False}, 'no "no-headless", which "headless: false" stands for; leave "headless" out'),
        ({"port": 1}, '"port" is set by servebench itself'),
        ({"json-arg": 1}, 'no flag "json-arg"'),
    ],
)
def test_a_flag_that_the_server_lacks_is_named_with_the_nearest(python, flags, said):
    with pytest.raises(UsageError) as caught:
        check_flags(flags, python)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_flags_ask_nothing(python):
    check_flags({}, python)
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).glob("**/*.json"))


@pytest.mark.vllm
@pytest.mark.timeout(300)
def test_a_real_vllm_tells_its_flags():
    try:
        python = find_vllm_python()
    except EngineError as error:
        if os.environ.get("SERVEBENCH_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(f"no vLLM: {error}")
    known = known_flags(python)
    assert {"max-num-batched-tokens", "max-num-seqs", "enforce-eager", "no-enable-prefix-caching"} <= known
    assert len(known) > 100
    with pytest.raises(
        UsageError, match=rf'vLLM {vllm_version(python)} has no flag "max-num-sequences" \(did you mean'
    ):
        check_flags({"max-num-sequences": 8}, python)
