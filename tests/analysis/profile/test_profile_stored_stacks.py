"""A stored window of perf: folded stacks tell of no instants, so the tool's word is taken for how they were aligned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perf_parts import stacks_of
from servebench.analysis.profile.stored import answers_of


def window(folder: Path, **facts: Any) -> dict[str, Any]:
    stacks_of("main a 3", "main b 1").write(folder / "stacks.folded")
    stored = {"schema": 1, "name": "decode", "kind": "decode", "tool": "perf", "version": "6.1", "facts": facts}
    (folder / "window.json").write_text(json.dumps(stored | {"start_ns": 1_000, "stop_asked_ns": 5_000_000}))
    return dict(answers_of(folder))


def test_the_tools_alignment_is_kept(tmp_path: Path) -> None:
    stated = {"method": "stamped by CLOCK_MONOTONIC", "offset_ns": 2000, "residual_ns": 131, "reason": None}
    found = window(tmp_path, alignment=stated, counters={"cycles": None, "reason": "none here"})
    assert found["alignment"] == {
        "method": "stamped by CLOCK_MONOTONIC",
        "offset_us": pytest.approx(2.0),
        "residual_us": pytest.approx(0.131),
        "reason": None,
    }
    assert found["hot"]["samples"] == 4
    assert found["hot"]["counters"] == {"cycles": None, "reason": "none here"}
    assert found["hot"]["functions"][0]["name"] == "a"


def test_without_one_it_is_the_files_own_clock(tmp_path: Path) -> None:
    assert window(tmp_path)["alignment"] is None


def test_nonsense_for_an_alignment_is_damage_not_a_crash(tmp_path: Path) -> None:
    assert "damaged" in window(tmp_path, alignment={"metod": 1})["reason"]
