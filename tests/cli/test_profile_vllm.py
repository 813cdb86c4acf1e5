"""`servebench profile` on a real vLLM: by the names of its own steps, its windows hold what they are meant for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from servebench.cli.main import main
from servebench.engine.locate import find_vllm_python
from servebench.errors import EngineError, UsageError
from servebench.profile.tools.perf import PerfTool

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

SCENARIO = Path(__file__).parents[2] / "scenarios" / "long-prefill-mix.yaml"
BRIEF = ("--set", "load.duration=8s", "--set", "load.poisson=3/s", "--set", "engine.vllm.flags.max-model-len=8192")


@pytest.fixture(scope="module", autouse=True)
def vllm() -> None:
    try:
        find_vllm_python()
    except EngineError as error:
        if os.environ.get("SERVEBENCH_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(f"no vLLM: {error}")


def profiled(out: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """The answers of each window of a profiled run, by name."""
    code = main(["profile", str(SCENARIO), *BRIEF, "--out", str(out), "--quiet", *arguments])
    assert code in (0, 3, 4)  # 3 and 4: a machine too busy for the scenario's own figures
    summary = json.loads((out / "summary.json").read_text())
    return {window["name"]: window for window in summary["profile"]["windows"]}


def steps_of(window: dict[str, Any]) -> dict[str, int]:
    return {kind["kind"]: kind["n"] for kind in window["steps"]["kinds"]}


def test_torch_windows_hold_prefill_only_and_decode_only(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = profiled(run_path)
    shown = capsys.readouterr().out
    assert list(found) == ["prefill", "decode", "mixed"]
    assert [window["reason"] for window in found.values()] == [None] * 3
    assert all(window["traffic"]["as_meant"] for window in found.values())
    assert steps_of(found["prefill"]).keys() - {"idle"} == {"prefill_only"}
    assert steps_of(found["decode"]).keys() == {"decode_only"}
    assert steps_of(found["decode"])["decode_only"] >= 30
    for window in found.values():
        assert window["devices"] == []
        assert window["no_device"].startswith("no GPU activity")
        assert window["operators"]["rows"][0]["self_ms"] > 0
    assert any(row["ratio"] for row in found["decode"]["overhead"]["rows"])
    assert "RANDOM WEIGHTS" in shown
    assert "while captured, ITL p50 was" in " ".join(shown.split())


def test_perf_draws_a_flame_graph_of_decode(run_path: Path) -> None:
    try:
        PerfTool(Path(), {}).check()
    except UsageError as error:
        pytest.skip(str(error))
    window = profiled(run_path, "--tool", "perf", "--window", "decode", "--window-seconds", "3")["decode"]
    assert window["reason"] is None
    assert window["traffic"]["as_meant"] is True
    assert window["hot"]["samples"] > 50
    assert len(window["hot"]["functions"]) > 5
    flame = (run_path / "profile" / "decode" / window["hot"]["flame_graph"]).read_text()
    assert flame.startswith("<svg") and "_PyEval_EvalFrameDefault" in flame
