"""`servebench plan` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servebench.cli.main import main

RESULT = {
    "sustained_per_s": 4.2,
    "failed_per_s": 4.8,
    "goodput_per_s": 4.2,
    "binding": {"objective": "ttft p95", "text": "ttft p95 was met by 91 % at 4.8/s"},
    "slo": [{"text": "ttft p95 < 800 ms", "target": 0.95}],
    "tokens": {"input_mean": 900.0, "output_mean": 220.0},
    "energy_j_per_output_token": None,
    "energy_reason": "no GPU was sampled",
    "engine": {"name": "vllm", "version": "0.32", "model": "m", "flags": {}, "gpus": 1, "gpu": "G"},
    "confirmed": True,
    "simulated": False,
    "verdict": {"status": "VALID"},
}


def capacity(folder: Path, name: str, **more: Any) -> Path:
    path = folder / name
    path.mkdir()
    document = {"schema": 1, "kind": "capacity", "question": {}, "cells": [], "result": RESULT | more}
    (path / "experiment.json").write_text(json.dumps(document))
    return path


def plan(*arguments: str | Path) -> int:
    return main(["plan", *map(str, arguments)])


class TestGood:
    def test_the_answer_the_arithmetic_and_every_assumption_are_shown(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "day.csv").write_text("hour,rate\n0,5\n9,50\n18,25\n")
        code = plan(capacity(tmp_path, "one"), "--daily", tmp_path / "day.csv", "--gpu-hour", "2.5")
        out = capsys.readouterr().out
        assert code == 0
        assert "50 requests/s at the peak need 16 replicas of one: 16 GPUs, 40.00 an hour." in out
        for words in ("50 /s × (1 + 0.2)", "60 /s ÷ 4.2 /s", "rounded up", "cost per million output, peak"):
            assert words in out
        for words in ("ttft p95 was met by 91 %", "with one lost, the other 15", "failed 4.8 /s", "no GPU was sampled"):
            assert words in " ".join(out.split())
        assert "Assumptions" in out
        assert "\n    10. " in out

    def test_where_the_failed_end_would_need_as_many_replicas_that_is_said(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert plan(capacity(tmp_path, "one"), "--peak", "2/s") == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "were a replica to carry the failed end, it would be 2 all the same." in out

    def test_json_is_the_same_plan_in_one_document(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code = plan(capacity(tmp_path, "one"), "--users", "2000", "--per-user", "0.02/s", "--headroom", "0.5", "--json")
        found = json.loads(capsys.readouterr().out)
        assert code == 0
        assert found["demand"]["peak_per_s"] == pytest.approx(40)
        assert found["rows"][0]["replicas"]["total"] == 16
        assert found["policy"] == {"headroom": 0.5, "spare": 1}

    def test_several_capacities_are_rows_the_cheapest_first(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [capacity(tmp_path, "dear"), capacity(tmp_path, "cheap", simulated=True, confirmed=False)]
        code = plan(*paths, "--peak", "50/s", "--gpu-hour", "2", "--gpu-hour", "cheap=1", "--spare", "2")
        out = capsys.readouterr().out
        assert code == 0
        assert out.index("cheap") < out.index("dear")
        assert "of cheap: 17 GPUs, 17.00 an hour [SIMULATED, NOT CONFIRMED]." in out

    def test_help_names_the_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["plan", "--help"]) == 0
        assert "--per-user" in capsys.readouterr().out


def test_a_capacity_that_sustains_nothing_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(capacity(tmp_path, "one", sustained_per_s=None), "--peak", "50/s") == 3
    out = capsys.readouterr().out
    assert "No fleet can be planned for 50 requests/s." in out
    assert "no rate was sustained" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "how much is asked of it? give --peak 50/s"),
        (("--peak", "50/s", "--users", "3", "--per-user", "1/s"), "give --peak or --users"),
        (("--users", "3"), "--users and --per-user go together"),
        (("--peak", "fast"), "expected a rate such as 4/s"),
        (("--peak", "0/s"), "the peak rate must be positive"),
        (("--peak", "1e999/s"), "the peak rate must be positive and finite"),
        (("--peak", "5/s", "--headroom", "20"), "20 is 2000 %; write 20%"),
        (("--peak", "5/s", "--headroom", "much"), "expected a share such as 20%"),
        (("--peak", "5/s", "--gpu-hour", "cheap"), "expected a number or NAME=NUMBER"),
        (("--peak", "5/s", "--gpu-hour", "on=2"), 'no capacity is called "on" (did you mean "one"?)'),
        (("--peak", "5/s", "--gpus-per-replica", "1.5"), '"1.5" is out of range'),
        (("--peak", "5/s", "--spares", "1"), 'No such option "--spares" (did you mean "--spare"?)'),
        (("--daily", "none.csv"), "cannot read none.csv"),
    ],
)
def test_wrong_usage_exits_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert plan(capacity(tmp_path, "one"), *arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
