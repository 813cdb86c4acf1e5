"""A plan as people read it: the fleets side by side, then each one's arithmetic, what breaks first, and assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from servebench.report.console import stdout_console
from servebench.report.figures import NOTHING, number, plural, share

WIDTH = 110
LEAST_WIDTH = 80


def print_plan(plan: dict[str, Any], console: Console | None = None) -> None:
    """Print a plan (the document of `servebench.experiment.fleet.plan`) to `console`, by default standard output."""
    console = console or stdout_console(WIDTH)
    console.print(render(plan), width=max(LEAST_WIDTH, min(WIDTH, console.width)))


def render(plan: dict[str, Any]) -> RenderableType:
    """The plan as something that rich prints."""
    parts: list[RenderableType] = [Text(headline(plan), style="bold"), Text()]
    if plan["rows"]:
        parts += [overview(plan), *_remarks(plan)]
    parts += [Text(f"✘ {lost['name']}: {lost['reason']}", style="red") for lost in plan["not_planned"]]
    for row in plan["rows"]:
        parts += [Text(), _title(row), Padding(_details(row), (0, 2))]
    if plan["assumptions"]:
        parts += [Text(), Text("Assumptions", style="bold"), Padding(_numbered(plan["assumptions"]), (0, 2))]
    return Padding(Group(*parts), (1, 2))


def headline(plan: dict[str, Any]) -> str:
    """The answer in one sentence."""
    peak = f"{figure(plan['demand']['peak_per_s'])} requests/s"
    if not plan["rows"]:
        return f"No fleet can be planned for {peak}."
    row = plan["rows"][0]
    cost = row["cost"]["per_hour"]
    price = f", {money(cost)} an hour" if cost is not None else ""
    replicas, gpus = plural(row["replicas"]["total"], "replica"), plural(row["gpus"]["total"], "GPU")
    marks = f" [{', '.join(row['marks'])}]" if row["marks"] else ""
    return f"{peak} at the peak need {replicas} of {row['name']}: {gpus}{price}{marks}."


def figure(value: float | None) -> str:
    """A rate or count in up to four significant digits, without trailing zeros."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def money(value: float | None) -> str:
    """An amount with two decimals, with four below one."""
    if value is None:
        return NOTHING
    return f"{value:,.2f}" if value >= 1 else f"{value:.4f}"


def overview(plan: dict[str, Any]) -> Table:
    """One row a deployment, the cheapest first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("deployment")
    for title in ("carries /s", "fails at /s", "replicas", "GPUs", "cost/h", "per M out", "a day", "following"):
        table.add_column(title, justify="right")
    for row in plan["rows"]:
        table.add_row(*_overview(row))
    return table


def _overview(row: dict[str, Any]) -> list[RenderableType]:
    capacity, replicas, cost = row["capacity"], row["replicas"], row["cost"]
    name = Text(row["name"], style="bold")
    if row["marks"]:
        name.append(f"\n{', '.join(row['marks'])}", style="yellow")
    return [
        name,
        figure(capacity["sustained_per_s"]),
        figure(capacity["failed_per_s"]),
        f"{replicas['serving']} + {replicas['spare']}",
        str(row["gpus"]["total"]),
        money(cost["per_hour"]),
        money(cost["per_million_output_peak"]),
        money(cost["day_static"]),
        money(cost["day_following"]),
    ]


def _remarks(plan: dict[str, Any]) -> Iterator[RenderableType]:
    """Reservations that hold for a row as a whole, and why columns are empty."""
    for row in plan["rows"]:
        if row["not_comparable"]:
            yield Text(f"! {row['name']} is {row['not_comparable']}", style="yellow")
    for reason in dict.fromkeys(row["cost"]["reason"] for row in plan["rows"]):
        if reason:
            yield Text(f"{NOTHING}: {reason}", style="dim")


def _title(row: dict[str, Any]) -> Text:
    engine = row["engine"]
    of = " · ".join(str(engine[key]) for key in ("model", "name", "version", "gpu") if engine.get(key))
    text = Text.assemble((row["name"], "bold"), (f"  {of}", "dim"))
    if row["marks"]:
        text.append(f"  {', '.join(row['marks'])}", style="bold yellow")
    return text


def _details(row: dict[str, Any]) -> RenderableType:
    return Group(_arithmetic(row), Text(), _labelled(row), Text(), *_sensitivity(row))


def _arithmetic(row: dict[str, Any]) -> Table:
    """The calculation, a line a step."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(justify="right", overflow="fold")
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    for line in row["lines"]:
        result = f"{exact(line['value'])} {line['unit']}".rstrip()
        table.add_row(line["label"], Text(line["expression"], style="dim"), "=", Text(result, style="bold"))
    return table


def exact(value: float) -> str:
    """A result with the digits that the next line is computed from: six significant ones."""
    if isinstance(value, int) or abs(value) >= 1e6:
        return f"{value:,.0f}"
    return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.2f}".removesuffix(".00")


def _labelled(row: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(ratio=1)
    for label, text in (("breaks first", _breaks(row)), ("bracket", _bracket(row)), ("energy", _energy(row))):
        table.add_row(label, text)
    return table


def _breaks(row: dict[str, Any]) -> str:
    found = row["breaks_first"]
    total = row["replicas"]["total"]
    objective = found["objective"] or "the capacity test does not say which objective"
    text = f"{objective}. At the peak each of {total} replicas is at {share(found['utilisation'])} of what it sustains"
    if found["one_lost"] is None:
        return f"{text}; with the only one lost, nothing is served."
    fails = found["fails_at"]
    left = f"{text}; with one lost, the other {total - 1} are at {share(found['one_lost'])}"
    if found["survives_one"]:
        return f"{left}: the SLO still holds."
    beyond = fails is not None and found["one_lost"] >= fails
    return f"{left}: the SLO {'was seen to fail there' if beyond else 'is not known to hold there'}."


def _bracket(row: dict[str, Any]) -> str:
    capacity, at_failed = row["capacity"], row["replicas"]["at_failed_end"]
    sustained = figure(capacity["sustained_per_s"])
    if at_failed is None:
        return f"sustained {sustained} /s; no rate failed, so fewer replicas may do."
    failed, total = figure(capacity["failed_per_s"]), row["replicas"]["total"]
    saved = f"{at_failed} instead of {total} would do" if at_failed < total else f"it would be {total} all the same"
    return (
        f"sustained {sustained} /s, failed {failed} /s. The plan takes the sustained end; were a replica to carry the "
        f"failed end, {saved}."
    )


def _energy(row: dict[str, Any]) -> str:
    found = row["energy"]
    hour, day, reason = found["kwh_per_hour_at_peak"], found["kwh_per_day"], found["reason"]
    if hour is None:
        return f"unknown: {reason}"
    a_day = f"{figure(day)} kWh a day" if day is not None else f"a day: unknown, {reason}"
    return f"{figure(hour)} kWh an hour at the peak; {a_day}"


def _sensitivity(row: dict[str, Any]) -> Iterator[RenderableType]:
    """Two small tables: prompt length and headroom."""
    lengths = row["sensitivity"]["prompt_length"]
    priced = row["cost"]["per_hour"] is not None
    if lengths:
        table = _small("prompts", "tokens", "carries /s", "replicas", "GPUs", *(["cost/h"] * priced), "how known")
        for case in lengths:
            basis = "measured" if case["factor"] == 1 else case["basis"]
            figures = [number(case["input_tokens"]), figure(case["sustained_per_s"]), *_sized(case, priced)]
            table.add_row(f"× {case['factor']:g}", *figures, Text(basis, style="dim"))
        yield table
    table = _small("headroom", "replicas", "GPUs", *(["cost/h"] * priced))
    for case in row["sensitivity"]["headroom"]:
        table.add_row(f"{100 * case['headroom']:g} %", *_sized(case, priced))
    yield table


def _sized(case: dict[str, Any], priced: bool) -> list[str]:
    return [str(case["replicas"]), str(case["gpus"]), *([money(case["cost_per_hour"])] * priced)]


def _small(first: str, *titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column(first)
    for title in titles:
        table.add_column(title, justify="left" if title == "how known" else "right")
    return table


def _numbered(sentences: list[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right", style="dim")
    table.add_column(ratio=1)
    for i, sentence in enumerate(sentences, 1):
        table.add_row(f"{i}.", sentence)
    return table
