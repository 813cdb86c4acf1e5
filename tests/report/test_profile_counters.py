"""Counters of the processor beside hot functions: the figures, and once why others are missing."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from servebench.profile.tools.perf_counters import counters_of
from servebench.report.profile_tables import hot

VIRTUAL = """\
969.07;msec;task-clock;969066482;100.00;0.979;CPUs utilized
11844;;context-switches;969066482;100.00;104.224;/sec
<not supported>;;cycles;0;100.00;;
"""


def shown(counters: dict[str, Any] | None) -> str:
    console = Console(width=200)
    with console.capture() as printed:
        for part in hot({"hot": {"samples": 7, "functions": [], "counters": counters, "flame_graph": None}}):
            console.print(part)
    return printed.get()


def test_what_perf_counted_on_a_machine_without_hardware_counters() -> None:
    text = shown(counters_of(VIRTUAL))
    assert "task_clock_ms 969.1 · context_switches 11,844 · cores 0.979" in text
    assert text.count("not supported by this machine") == 1
    assert "cycles not supported" not in text


def test_without_a_reason_what_is_missing_is_said_at_its_name() -> None:
    assert "cycles not supported · branches 12" in shown({"cycles": None, "branches": 12})


def test_no_counters() -> None:
    assert shown(None).strip() == "of 7 samples"
