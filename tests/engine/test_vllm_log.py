"""What is said about a vLLM that ended, from the logs that vLLM 0.32 writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from servebench.engine.vllm_log import explain_death, first_cause, last_lines, read_log

USAGE = """usage: api_server.py [-h] [--headless] [--host HOST]
                     [--max-num-batched-tokens MAX_NUM_BATCHED_TOKENS]
                     [--enforce-eager | --no-enforce-eager]
                     [--profiler-config.profiler {cuda,torch}]
                     [model_tag]
"""
ENGINE_LOG = """(APIServer pid=7) WARNING 11-30 05:50:10 [system_utils.py:255] it may cause `OSError: [Errno 24]`
(EngineCore pid=8) ERROR 11-30 05:50:35 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-30 05:50:35 [core.py:1510]     raise ValueError(
(EngineCore pid=8) ERROR 11-30 05:50:35 [core.py:1510] ValueError: Available memory is less than requested (100.0 GiB).
Traceback (most recent call last):
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
LOG = Path("run/server.log")


def test_the_cause_is_told_not_its_consequence() -> None:
    text = explain_death(ENGINE_LOG, LOG, 1)
    first, second, *rest = text.splitlines()
    assert first == "vLLM ended (exit code 1): ValueError: Available memory is less than requested (100.0 GiB)."
    assert second.strip() == "the last lines of run/server.log:"
    assert rest[-1].strip().startswith("RuntimeError: Engine core")


def test_an_exception_is_found_by_its_full_name() -> None:
    line = "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"
    assert first_cause(f"Traceback\n{line}\n") == line


def test_a_validation_error_comes_with_the_line_that_says_something() -> None:
    text = "pydantic_core.ValidationError: 1 validation error for CacheConfig\ngpu_memory_utilization\n  too large\n"
    assert (
        first_cause(text) == "pydantic_core.ValidationError: 1 validation error for CacheConfig: gpu_memory_utilization"
    )


def test_an_error_named_in_passing_is_no_cause() -> None:
    assert first_cause(ENGINE_LOG.splitlines()[0]) is None


def test_an_unknown_flag_comes_with_the_nearest_that_this_vllm_has() -> None:
    text = f"{USAGE}api_server.py: error: unrecognized arguments: --max-num-batched-tokns=5 --zzzz\n"
    said = 'this vLLM has no flag "max-num-batched-tokns" (did you mean "max-num-batched-tokens"?), "zzzz"'
    assert explain_death(text, LOG, 2) == said


def test_the_unknown_flag_itself_is_not_offered() -> None:
    text = f"{USAGE}api_server.py: error: unrecognized arguments: --enforce-eagerly\n"
    assert explain_death(text, LOG, 2) == 'this vLLM has no flag "enforce-eagerly" (did you mean "enforce-eager"?)'


def test_a_refused_value_is_told_in_vllms_words() -> None:
    text = f"{USAGE}api_server.py: error: argument --dtype: invalid choice: 'float7'\n"
    assert explain_death(text, LOG, 2) == "vLLM refuses its flags: argument --dtype: invalid choice: 'float7'"


def test_a_signal_is_named_as_one() -> None:
    assert explain_death("loading\n", LOG, 128 + 9).startswith("vLLM ended (signal 9)\n")


def test_an_empty_log_is_called_so() -> None:
    assert explain_death("", LOG, 1) == "vLLM ended (exit code 1); run/server.log is empty"


def test_the_last_lines_are_those_that_say_something(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\n\n\x1b[1;36mtwo\x1b[0m  \n   \n" + b"x" * 1000 + b"\nprogress 1%\rprogress 2%\n")
    lines = last_lines(read_log(log), 4)
    assert [lines[0], len(lines[1]), *lines[2:]] == ["two", 241, "progress 1%", "progress 2%"]


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x\n" * 1_000_000 + "the end\n")
    assert len(read_log(log)) < 300_000
    assert last_lines(read_log(log), 1) == ["the end"]


def test_no_log_is_an_empty_one(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none") == ""


@pytest.mark.parametrize("text", ["", "\n\n", "all is well\n"])
def test_no_exception_is_no_cause(text: str) -> None:
    assert first_cause(text) is None
