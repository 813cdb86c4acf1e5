"""A plan on the terminal: when requests come, how long they are, and by which seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from servebench.report.plots import histogram, rate_plot, scale_line
from servebench.scenario.load import Load, Stage
from servebench.scenario.schema import Scenario
from servebench.units import format_duration, format_rate
from servebench.workload.overview import cohort, summarise_plan
from servebench.workload.plan import Plan

INDENT = 2


def print_plan(scenario: Scenario, plan: Plan, console: Console) -> None:
    """Print what `scenario` will send, in figures and small plots, no wider than the console."""
    width = max(20, min(60, console.width - 16))
    figures = summarise_plan(scenario, plan)
    console.print(Group(*_parts(scenario, plan, figures, width)), soft_wrap=True, highlight=False)


def _parts(scenario: Scenario, plan: Plan, figures: dict[str, Any], width: int) -> list[RenderableType]:
    parts: list[RenderableType] = [_heading(scenario, figures)]
    if not scenario.load.closed:
        parts += ["", *_arrivals(scenario, plan, width)]
    measured = cohort(scenario, plan)
    for title, lengths in (("input tokens", plan.input_tokens), ("output tokens", plan.output_tokens)):
        parts += ["", *_lengths(title, lengths[measured], width)]
    return [*parts, "", _table(figures)]


def _heading(scenario: Scenario, figures: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(scenario.name, style="bold"), Text(scenario.description))
    table.add_row("load", Text(describe_load(scenario.load)))
    table.add_row("requests", Text(_requests(scenario, figures)))
    seeds = figures["seeds"]
    table.add_row("seeds", " · ".join(f"{name} {seed}" for name, seed in seeds.items()))
    table.add_row("plan", figures["hash"][:16])
    return table


def describe_load(load: Load) -> str:
    """A load in one line: its law and its limits."""
    law = (
        f"closed loop of {load.closed.concurrency}, think time {format_duration(load.closed.think)}"
        if load.closed
        else ", then ".join(map(_describe_stage, load.stages))
    )
    until = f"{load.requests} requests" if load.requests else f"measured for {format_duration(load.duration or 0)}"
    warmup = "auto" if load.warmup == "auto" else format_duration(load.warmup_s)
    parts = [law, f"warm-up {warmup}", until, f"drain {format_duration(load.drain)}"]
    if load.max_in_flight:
        parts.append(f"at most {load.max_in_flight.limit} in flight, the others {load.max_in_flight.policy}")
    if load.throttle:
        parts.append(f"throttled to {load.throttle.limit} in {format_duration(load.throttle.period)}")
    return " · ".join(parts)


def _describe_stage(stage: Stage) -> str:
    rates = {"gamma": f" (gap CV {stage.cv:g})", "ramp": f" to {format_rate(stage.last_rate)}"}
    length = f" for {format_duration(stage.duration)}" if stage.duration is not None else ""
    return f"{stage.law} {format_rate(stage.rate)}{rates.get(stage.law, '')}{length}"


def _requests(scenario: Scenario, figures: dict[str, Any]) -> str:
    phases = figures["phases"]
    if phases is None:
        return (
            f"{figures['rows']}" if scenario.load.requests else f"as many as are answered (planned: {figures['rows']})"
        )
    after = f", up to {phases['cooldown']} more while they finish" if phases["cooldown"] else ""
    return f"{phases['measured']} measured, {phases['warmup']} before them{after}"


def _arrivals(scenario: Scenario, plan: Plan, width: int) -> list[str]:
    load = scenario.load
    due = plan.scheduled_ns / 1e9
    planned = load.warmup_s + (load.duration or 0.0) + (load.drain if load.duration else 0.0)
    end = max(planned, float(due[-1]) if due.size else 0.0)
    lines, bin_s = rate_plot(due, end, width)
    columns = len(lines[0]) - lines[0].index("┤") - 1
    span = columns * bin_s
    warm = load.warmup_s / span
    marks = [(0.0, "warm-up")] if warm * columns >= len("warm-up ") else []
    marks.append((warm, "measured"))
    if load.duration is not None:
        marks.append(((load.warmup_s + load.duration) / span, "cool-down"))
    marks.append((1.0, format_duration(span)))
    return [f"arrivals a second, in bins of {format_duration(bin_s)}", *_plot(lines, marks)]


def _lengths(title: str, lengths: np.ndarray[Any, Any], width: int) -> list[str]:
    if not lengths.size:
        return [f"{title}: none"]
    if lengths.min() == lengths.max():
        return [f"{title}: always {lengths.min()}"]
    lines, marks, logarithmic = histogram(lengths, width)
    return [f"{title}{' (logarithmic scale)' if logarithmic else ''}", *_plot(lines, marks)]


def _plot(lines: list[str], marks: list[tuple[float, str]]) -> list[str]:
    left = lines[0].index("┤") + 1
    return [" " * INDENT + line for line in (*lines, scale_line(left, len(lines[0]) - left, marks))]


def _table(figures: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("n", "mean", "cv", "p50", "p95", "p99", "min", "max"):
        table.add_column(name, justify="right")
    for title, spread in _rows(figures):
        table.add_row(
            title,
            str(spread["n"]),
            *(_cell(spread[name]) for name in ("mean", "cv", "p50", "p95", "p99", "min", "max")),
        )
    return table


def _rows(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    rows = [("input tokens", figures["input_tokens"]), ("output tokens", figures["output_tokens"])]
    if len(figures["classes"]) > 1:
        for item in figures["classes"]:
            rows += [
                (f"  {item['name']}, input", item["input_tokens"]),
                (f"  {item['name']}, output", item["output_tokens"]),
            ]
    if figures["arrivals"]:
        gaps = figures["arrivals"]["gaps_s"]
        in_ms = {key: value if key in ("n", "cv") or value is None else value * 1e3 for key, value in gaps.items()}
        rows.append(("gap, ms", in_ms))
    return rows


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.3g}"
