"""Makes what `ncu --csv` prints, of both pages, from a description of the launches."""

from __future__ import annotations

from pathlib import Path

CONTEXT = {
    "Process ID": "41",
    "Process Name": "python3.12",
    "Host Name": "127.0.0.1",
    "Context": "1",
    "Stream": "7",
    "Block Size": "(256, 1, 1)",
    "Grid Size": "(16384, 1, 1)",
    "Device": "0",
    "CC": "9.0",
}
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# of one launch on raw: name, unit, value as ncu prints it
SPEED = [
    ("gpu__time_duration.sum", "usecond", "1,250.00"),
    ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "22.50"),
    ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "%", "91.00"),
    ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "%", "90.00"),
]
MEMORY = [("dram__bytes.sum.per_second", "Tbyte/second", "3.60")]
OCCUPANCY = [
    ("sm__warps_active.avg.pct_of_peak_sustained_active", "%", "61.2"),
    ("sm__maximum_warps_per_active_cycle_pct", "%", "75"),
]
LAUNCH = [("launch__registers_per_thread", "register/thread", "40")]
STALLS = [
    (STALL.format("long_scoreboard"), "inst", "6.0"),
    (STALL.format("wait"), "inst", "1.5"),
    (STALL.format("selected"), "inst", "1.0"),
    (STALL.format("barrier"), "inst", "0.5"),
    (STALL.format("not_selected"), "inst", "1.0"),
    (STALL.format("long_scoreboard_not_issued"), "inst", "5.0"),
]
ROOFLINE = [
    ("smsp__cycles_elapsed.avg.per_second", "Ghz", "1.50"),
    ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed", "inst/cycle", "400"),
    ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum.per_cycle_elapsed", "inst/cycle", "200"),
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed", "inst/cycle", "1,500"),
]
WHOLE = SPEED + MEMORY + OCCUPANCY + LAUNCH + STALLS + ROOFLINE
Metric = tuple[str, str, str]


def with_values(metrics: list[Metric], **values: str) -> list[Metric]:
    """Metrics with some of the values changed, by the beginning of their names."""
    changed = list(metrics)
    for key, value in values.items():
        at = next(index for index, metric in enumerate(changed) if metric[0].startswith(key))
        changed[at] = (*changed[at][:2], value)
    return changed


def write_raw(path: Path, launches: list[tuple[str, list[Metric]]], messages: bool = True) -> Path:
    """The raw page; all launches must have the metrics of the first."""
    columns = [name for name, _, _ in launches[0][1]]
    units = [unit for _, unit, _ in launches[0][1]]
    head = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", *list(CONTEXT)[3:], *columns]
    lines = [_line(head), _line([""] * (len(head) - len(columns)) + units)]
    for number, (kernel, metrics) in enumerate(launches):
        context = [str(number), *list(CONTEXT.values())[:3], kernel, *list(CONTEXT.values())[3:]]
        lines.append(_line([*context, *(value for _, _, value in metrics)]))
    return _write(path, lines, messages)


def write_details(path: Path, launches: list[tuple[str, list[tuple[str, str, str, str]]]]) -> Path:
    """The details page: of each launch the section, the name, the unit and the value of each metric."""
    head = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", *list(CONTEXT)[3:]]
    head += ["Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type"]
    lines = [_line(head)]
    for number, (kernel, metrics) in enumerate(launches):
        context = [str(number), *list(CONTEXT.values())[:3], kernel, *list(CONTEXT.values())[3:]]
        lines += [_line([*context, *metric]) for metric in metrics]  # without the columns of rules
        lines.append(_line([*context, "Occupancy", "", "", "", "Occupancy", "OPT"]))
    return _write(path, lines, messages=True)


def _line(cells: list[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)


def _write(path: Path, lines: list[str], messages: bool) -> Path:
    before = ["==PROF== Connected to process 41 (/usr/bin/python3.12)", "INFO: the server says this"]
    before += ['==PROF== Profiling "gemm" - 0: 0%....50%....100% - 40 passes']
    after = ["==PROF== Disconnected from process 41"]
    path.write_text("\n".join([*before, *lines, *after] if messages else lines) + "\n")
    return path
