"""Counts of `perf stat`: what the processes did in a window, where the machine has counters for it."""

from __future__ import annotations

from typing import Any

# perf's event: the name of the figure. The first four are the kernel's own and need no hardware.
EVENTS = {
    "task-clock": "task_clock_ms",
    "context-switches": "context_switches",
    "cpu-migrations": "cpu_migrations",
    "page-faults": "page_faults",
    "cycles": "cycles",
    "instructions": "instructions",
    "branches": "branches",
    "branch-misses": "branch_misses",
    "cache-references": "cache_references",
    "cache-misses": "cache_misses",
}
IN_KERNEL = ("context-switches", "cpu-migrations")  # counted there, so always 0 where only user space may be counted
SEPARATOR = ";"


def stat_arguments(output: str, processes: list[int]) -> list[str]:
    """Arguments of perf to count for `processes` until it is interrupted, into the file `output`."""
    pids = ",".join(map(str, processes))
    return ["stat", f"-x{SEPARATOR}", "-e", ",".join(EVENTS), "-o", output, "-p", pids]


def counters_of(text: str) -> dict[str, Any]:
    """Read what `perf stat -x;` wrote.

    Returns:
        figures by name, None where there is none; "instructions_per_cycle", "cores" (CPU time by elapsed time); and
        "reason", why figures are missing or None.
    """
    figures: dict[str, Any] = dict.fromkeys(EVENTS.values())
    missing: dict[str, list[str]] = {}
    cores = None
    for line in text.splitlines():
        fields = line.split(SEPARATOR)
        event, _, modifier = fields[2].partition(":") if len(fields) > 6 else ("", "", "")
        if event not in EVENTS:
            continue
        value, reason = _value(fields[0], event, modifier)
        figures[EVENTS[event]] = value
        if reason is not None:
            missing.setdefault(reason, []).append(EVENTS[event])
        if event == "task-clock" and value is not None:
            cores = float(fields[5])
    figures["instructions_per_cycle"] = _ratio(figures["instructions"], figures["cycles"])
    figures["cores"] = cores
    figures["reason"] = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in missing.items()) or None
    return figures


def _value(text: str, event: str, modifier: str) -> tuple[float | None, str | None]:
    """A figure, or None and why there is none."""
    if text == "<not supported>":
        return None, "not supported by this machine (often a virtual one: it has no hardware counters)"
    if text == "<not counted>":
        return None, "not counted: the processes did not run"
    if event in IN_KERNEL and "u" in modifier:
        return None, "counted in the kernel, which this user may not look into (kernel.perf_event_paranoid)"
    return (float(text) if "." in text else int(text)), None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
