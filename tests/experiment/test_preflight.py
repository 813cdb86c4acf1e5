"""Flags are checked once for each set of them, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from servebench.engine import locate, vllm_help
from servebench.errors import UsageError
from servebench.experiment.preflight import check_servers
from servebench.scenario import load_scenario

FLAGS = frozenset({"max-model-len", "max-num-batched-tokens", "max-num-seqs"})


@pytest.fixture
def asked(monkeypatch) -> list[Path]:
    """A vLLM 9.1 that knows `FLAGS`; what it is asked for."""
    calls: list[Path] = []

    def known(python: Path) -> frozenset[str]:
        calls.append(python)
        return FLAGS

    monkeypatch.setattr(locate, "find_vllm_python", lambda named: named or Path("/there/python"))
    monkeypatch.setattr(vllm_help, "known_flags", known)
    monkeypatch.setattr(vllm_help, "vllm_version", lambda python: "9.1")
    return calls


def scenarios(*flags: str):
    return [load_scenario("smoke", [f"engine.vllm.flags.{flag}"]) for flag in flags]


def test_each_set_of_flags_is_checked_once(asked):
    check_servers(scenarios("max-num-seqs=4", "max-num-seqs=8", "max-num-seqs=4"), "vllm", Path("/mine/python"))
    assert asked == [Path("/mine/python")] * 2


def test_the_flag_of_a_later_cell_is_refused_as_well(asked):
    with pytest.raises(UsageError, match=r'vLLM 9\.1 has no flag "max-num-seq" \(did you mean "max-num-seqs"\?\)'):
        check_servers(scenarios("max-num-seqs=4", "max-num-seq=8"), "vllm")


@pytest.mark.parametrize("endpoint", ["sim", "http://127.0.0.1:9"])
def test_a_server_that_is_not_launched_with_flags_is_not_asked(asked, endpoint):
    check_servers(scenarios("nonsense=1"), endpoint)
    assert asked == []
