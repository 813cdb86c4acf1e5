"""vLLM's flags, to arguments and back."""

from __future__ import annotations

import pytest

from servebench.engine.vllm_flags import RESERVED, flag_arguments, parse_flags
from servebench.errors import UsageError


def test_each_kind_of_value_has_its_form() -> None:
    flags = {"max-num-seqs": 64, "enforce-eager": True, "enable-prefix-caching": False, "dtype": None, "ratio": 0.5}
    assert flag_arguments(flags) == [
        "--max-num-seqs=64",
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--ratio=0.5",
    ]


def test_zero_and_one_are_numbers_not_switches() -> None:
    assert flag_arguments({"seed": 0, "tensor-parallel-size": 1}) == ["--seed=0", "--tensor-parallel-size=1"]


def test_a_value_may_begin_with_a_dash_or_be_json() -> None:
    assert flag_arguments({"a": "-1", "b": '{"x": 1}'}) == ["--a=-1", '--b={"x": 1}']


@pytest.mark.parametrize("name", RESERVED)
def test_what_servebench_decides_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf'engine.vllm.flags: "{name}" is set by servebench itself'):
        flag_arguments({name: 1})


def test_a_command_line_becomes_a_mapping() -> None:
    words = ["--max-num-seqs", "64", "--enforce-eager", "--dtype=float32", "--seed", "-1", "--no-async-scheduling"]
    assert parse_flags(words) == {
        "max-num-seqs": "64",
        "enforce-eager": True,
        "dtype": "float32",
        "seed": "-1",
        "no-async-scheduling": True,
    }


def test_a_command_line_survives_the_round_trip() -> None:
    words = ["--max-num-seqs=64", "--enforce-eager", "--seed=-1"]
    assert flag_arguments(parse_flags(words)) == words


@pytest.mark.parametrize("words", [["model"], ["-tp", "2"], ["--"], ["--enforce-eager", "-tp"], ["--seed", "1", "2"]])
def test_a_stray_word_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="expected a vLLM flag in its long form"):
        parse_flags(words)
