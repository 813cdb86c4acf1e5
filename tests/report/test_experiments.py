from __future__ import annotations

import io
import sys
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from effects_example import result as ab_result
from servebench.report import experiments

CELLS = [
    {"name": "r1", "labels": {"rate": 4}, "status": "done", "reason": None, "seconds": 1.25, "verdict": "VALID"},
    {"name": "r2", "labels": {"rate": 8}, "status": "failed", "reason": "no server", "seconds": 0.5, "verdict": None},
]


def shown(**changes: Any) -> str:
    document = {"kind": "riddle", "name": "chat", "cells": CELLS, "simulated": False, "result": {"answer": 42}}
    console = Console(width=100, file=io.StringIO())
    with console.capture() as captured:
        experiments.print_experiment(document | changes, console=console)
    return captured.get()


def test_the_head_says_how_many_runs_there_are_and_which_failed() -> None:
    text = shown()
    assert "riddle chat: 2 runs, 1 of them failed" in text
    assert "✘ r2: no server" in text
    assert "SIMULATED" not in text


def test_simulated_figures_are_called_so() -> None:
    assert "SIMULATED" in shown(simulated=True)


def test_a_kind_without_a_report_shows_its_runs() -> None:
    lines = [line.split() for line in shown().splitlines()]
    assert ["run", "rate", "verdict", "seconds"] in lines
    assert ["r1", "4", "VALID", "1.2"] in lines
    assert ["r2", "8", "failed", "0.5"] in lines


def test_a_label_in_brackets_is_no_markup() -> None:
    text = shown(cells=[CELLS[0] | {"labels": {"paths": "[/x]", "colour": "[red]"}}])
    assert "[/x]" in text
    assert "[red]" in text


def test_the_report_of_a_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("servebench.report.riddle")
    module.render = lambda result: Text(f"the answer is {result['answer']}")  # type: ignore[attr-defined]
    module.__spec__ = experiments.__spec__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert "the answer is 42" in shown()
    assert "the answer" not in shown(result=None)
    assert ["r1", "4", "VALID", "1.2"] in [line.split() for line in shown(result=None).splitlines()]


def test_a_report_with_a_panel_of_its_own_gets_no_second_head() -> None:
    text = shown(kind="ab", result=ab_result(), simulated=True)
    assert "ab chat: 2 runs" not in text
    assert "✘ r2: no server" in text
    assert "SIMULATED" in text
