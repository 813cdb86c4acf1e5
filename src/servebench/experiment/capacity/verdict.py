"""`capacity.*`: whether the bracket of a capacity search can be relied on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from servebench.analysis.verdict.codes import Code, Level, Status, status
from servebench.errors import ExitCode
from servebench.experiment.capacity.evidence import Evidence

DOUBTS = ("client.", "time.", "load.", "gpu.", "analysis.")  # codes of runs that are about the tool or the machine
MARGIN = 1e-6

Document = dict[str, Any]


def judge(result: Mapping[str, Any], sustained: Evidence | None) -> Document:
    """Status, exit code and reason codes of a result that is complete but for them.

    The exit code is 3 when no rate could be decided, but 2 when no run came about at all, and 4 when the lowest fails.
    """
    codes = [
        _bracket(result),
        _precision(result),
        _confirmed(result),
        _agreement(result),
        _runs(result),
        _doubts(sustained),
    ]
    found = status(codes)
    told = [{**asdict(code), "level": str(code.level)} for code in codes]
    return {"status": str(found), "exit_code": int(_exit_code(found, result)), "codes": told}


def _exit_code(found: Status, result: Mapping[str, Any]) -> ExitCode:
    if found is Status.INVALID:
        came_about = any(probe["ended_runs"] for probe in result["probes"])
        return ExitCode.INVALID if came_about else ExitCode.USAGE
    return ExitCode.OBJECTIVE if result["sustained_per_s"] is None else ExitCode.GOOD


def _bracket(result: Mapping[str, Any]) -> Code:
    """Whether there is a bracket, and whether it is open at one end."""
    low, high, name = result["sustained_per_s"], result["failed_per_s"], "capacity.bracket"
    if low is None and high is None:
        step = "look at the reasons of the rates; give more runs, longer ones or a larger --budget"
        return Code(name, Level.FAIL, None, None, "1/s", "no rate could be decided, so there is no bracket", step)
    if low is None:
        return _open_below(result, high)
    if high is None:
        return Code(name, Level.WARN, low, None, "1/s", *_open(result, low))
    return Code(name, Level.OK, low, high, "1/s", f"{low:g}/s passed and {high:g}/s failed")


def _open_below(result: Mapping[str, Any], high: float) -> Code:
    """The lowest rate failed, or those below the one that failed could not be decided."""
    name, step = "capacity.bracket", "lower --from, or ask whether the SLO can be met at all"
    unknown = [f"{probe['rate']:g}/s" for probe in result["probes"] if probe["rate"] < high]
    if not unknown:
        text = f"not even {high:g}/s holds: {result['binding']['text']}"
        return Code(name, Level.OK, high, None, "1/s", text, step)
    text = f"open below: {high:g}/s failed, and {', '.join(unknown)} could not be decided"
    return Code(name, Level.WARN, high, None, "1/s", text, "lower --from, or give more runs or longer ones")


def _open(result: Mapping[str, Any], low: float) -> tuple[str, str]:
    """Why nothing failed, and what to do."""
    text = f"open above: {low:g}/s passed and no rate failed, so the capacity is at least that"
    blind = [probe for probe in result["probes"] if probe["rate"] > low and not probe["runs"]]
    if blind:
        return f"{text}; no run at {blind[0]['rate']:g}/s could be used ({blind[0]['reason']})", "mend that, then go on"
    if result["budget"]["exhausted"]:
        return f"{text} when the budget was spent", "raise --budget"
    at_the_top = result["max_per_s"] is not None and low >= result["max_per_s"] * (1 - MARGIN)
    return text, "raise --max" if at_the_top else "give more runs or longer ones"


def _precision(result: Mapping[str, Any]) -> Code:
    asked, reached = result["precision"]["asked"], result["precision"]["reached"]
    if reached is None:
        return Code("capacity.precision", Level.OK, None, 100 * asked, "%", "there is no bracket to be narrow")
    text = f"the bracket's ends are {100 * reached:.3g} % apart"
    if reached <= asked + MARGIN:
        return Code("capacity.precision", Level.OK, 100 * reached, 100 * asked, "%", text)
    undecided = [p["rate"] for p in result["probes"] if p["decision"] == "undecided" and _inside(result, p["rate"])]
    spent = " when the budget was spent" if result["budget"]["exhausted"] else ""
    between = f"; {', '.join(f'{rate:g}/s' for rate in undecided)} could not be decided" if undecided else ""
    step = "give longer runs (--duration), more of them (--most-runs), or a larger --budget"
    return Code("capacity.precision", Level.WARN, 100 * reached, 100 * asked, "%", text + spent + between, step)


def _inside(result: Mapping[str, Any], rate: float) -> bool:
    return bool(result["sustained_per_s"] < rate < result["failed_per_s"])


def _confirmed(result: Mapping[str, Any]) -> Code:
    if result["sustained_per_s"] is None:
        return Code("capacity.confirmed", Level.OK, None, None, "", "there is no sustained rate to confirm")
    if result["confirmed"]:
        text = f"{result['sustained_per_s']:g}/s held again with seeds that the search had not seen"
        return Code("capacity.confirmed", Level.OK, None, None, "", text)
    text = f"{result['sustained_per_s']:g}/s was not confirmed with other seeds"
    again = "the same command with the same --out"
    spent = result["budget"]["exhausted"]
    step = f"raise --budget and go on: {again}" if spent else f"go on: {again}; --retry-failed runs again what failed"
    return Code("capacity.confirmed", Level.WARN, None, None, "", text, step)


def _agreement(result: Mapping[str, Any]) -> Code:
    """A rate that passes above one that fails."""
    failed = result["failed_per_s"]
    above = [
        p["rate"] for p in result["probes"] if p["decision"] == "pass" and failed is not None and p["rate"] > failed
    ]
    if not above:
        return Code("capacity.agreement", Level.OK, 0, 0, "rates", "no rate passed above one that failed")
    text = f"{above[0]:g}/s passed though {failed:g}/s failed; the lower one counts"
    step = "the server was not the same all the time, or luck: look at the runs of both rates"
    return Code("capacity.agreement", Level.WARN, len(above), 0, "rates", text, step)


def _runs(result: Mapping[str, Any]) -> Code:
    lost = [probe for probe in result["probes"] if probe["failed_runs"]]
    number = sum(probe["failed_runs"] for probe in lost)
    if not lost:
        return Code("capacity.runs", Level.OK, 0, 0, "runs", "every run could be used")
    where = ", ".join(f"{probe['rate']:g}/s" for probe in lost)
    text = f"{number} runs failed or say nothing of the server (at {where})"
    return Code(
        "capacity.runs",
        Level.WARN,
        number,
        0,
        "runs",
        text,
        "look at their reasons; --retry-failed runs again what failed",
    )


def _doubts(sustained: Evidence | None) -> Code:
    """Warnings about the client or the machine in the runs at the sustained rate."""
    runs = sustained.usable if sustained is not None else []
    raised = Counter(
        code["code"]
        for run in runs
        for code in run["verdict"]["codes"]
        if code["level"] == "warn" and code["code"].startswith(DOUBTS)
    )
    if not raised:
        return Code("capacity.doubts", Level.OK, 0, 0, "runs", "no warning about the client or the machine")
    code, number = raised.most_common(1)[0]
    text = f"{code} was raised in {number} of {len(runs)} runs at the sustained rate"
    return Code("capacity.doubts", Level.WARN, number, 0, "runs", text, "look at the report of such a run")
