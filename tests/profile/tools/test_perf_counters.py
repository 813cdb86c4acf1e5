"""What `perf stat` counted, with a reason for all that it did not."""

from __future__ import annotations

from servebench.profile.tools.perf_counters import counters_of, stat_arguments

REAL = """\
# started on Mon Nov 30 12:33:01 2026

969.07;msec;task-clock;969066482;100.00;0.979;CPUs utilized
101;;context-switches;969066482;100.00;104.224;/sec
1;;cpu-migrations;969066482;100.00;1.032;/sec
0;;page-faults;969066482;100.00;0.000;/sec
<not supported>;;cycles;0;100.00;;
<not supported>;;instructions;0;100.00;;
<not counted>;;branches;0;0.00;;
"""


def test_what_the_machine_cannot_count_is_null_with_a_reason() -> None:
    counters = counters_of(REAL)
    assert counters["task_clock_ms"] == 969.07
    assert counters["context_switches"] == 101
    assert counters["page_faults"] == 0
    assert counters["cores"] == 0.979
    assert counters["cycles"] is counters["instructions"] is counters["instructions_per_cycle"] is None
    assert "not supported by this machine" in counters["reason"]
    assert "cycles, instructions" in counters["reason"]
    assert "did not run: branches" in counters["reason"]


def test_a_machine_with_counters() -> None:
    text = "".join(
        f"{value};;{event};1;100.00;;\n" for event, value in (("cycles", 2000), ("instructions", 3000), ("branches", 1))
    )
    counters = counters_of(text)
    assert counters["cycles"] == 2000
    assert counters["instructions_per_cycle"] == 1.5


def test_what_only_the_kernel_sees_is_not_zero_where_it_may_not_be_seen() -> None:
    counters = counters_of("0;;context-switches:u;1;100.00;;\n5;;page-faults:u;1;100.00;;\n7;;cycles:u;1;100.00;;\n")
    assert counters["context_switches"] is None
    assert counters["cycles"] == 7
    assert "perf_event_paranoid): context_switches" in counters["reason"]


def test_without_any_output_all_are_null() -> None:
    assert set(counters_of("").values()) == {None}


def test_the_command() -> None:
    arguments = stat_arguments("out.csv", [3, 4])
    assert arguments[:2] == ["stat", "-x;"]
    assert arguments[-4:] == ["-o", "out.csv", "-p", "3,4"]
