"""The answers of one window: everything that a timeline, the stacks and the client's stamps say, as one document.

It is an entry of `profile.windows` in summary.json, and what `servebench analyze` prints. Times are in ms unless the
key says otherwise; what does not exist is null or an empty list, with a reason where one is owed. The shape of each
section is told where it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from servebench.analysis.profile import (
    amdahl,
    hot_parts,
    operators,
    overhead,
    step_table,
    stepping,
    system,
    traffic,
)
from servebench.analysis.profile.devices import survey
from servebench.analysis.profile.findings import findings
from servebench.analysis.profile.skew import rank_skew
from servebench.analysis.profile.stepping import Steps
from servebench.analysis.profile.traffic import Traffic
from servebench.analysis.rounding import milliseconds, rounded
from servebench.profile.timeline import NONE, Alignment, Kind, Timeline

if TYPE_CHECKING:
    from servebench.analysis.data import RunData
    from servebench.profile.stacks import Stacks

Document = dict[str, Any]
Interval = tuple[int, int]

KEPT = ("kernel_replay", "sanitizer", "accelerator_profile")  # documents that a tool's facts hold ready
NO_DEVICE = "no GPU activity: the capture holds no row of a device"
OTHER_CLOCK = "the file's clock is not known to be the run's, so the run's requests are not joined to it"


@dataclass(frozen=True, slots=True)
class Label:
    """What a window is called, and what captured it.

    Attributes:
        name, kind: as in `servebench.profile.windows`; kind "free" is meant for no particular traffic.
        tool, version: None where not known.
    """

    name: str
    kind: str
    tool: str | None = None
    version: str | None = None


def answers(
    timeline: Timeline | None,
    *,
    name: str,
    kind: str,
    tool: str | None,
    version: str | None,
    start_ns: int | None,
    end_ns: int | None,
    run: RunData | None,
    stacks: Stacks | None = None,
    facts: Mapping[str, Any] | None = None,
    pattern: str | None = None,
    plain: RunData | None = None,
    same_moment: bool = False,
) -> Document:
    """Compute the answers of a window.

    Args:
        timeline: None where the tool makes none (perf), or it was not captured.
        start_ns, end_ns: of the window, on the timeline's clock; None for where the timeline's span begins and ends.
        run: the run whose requests were in flight meanwhile.
        facts: what the tool says beside the timeline: "notes", "counters", "flame_graph", "files", and `KEPT`.
        pattern: of the names of steps; see `stepping.find_steps`.
        plain: the same load without the capture, to tell its cost from; `same_moment`: see `overhead.describe`.

    Raises:
        UsageError: the pattern is no regular expression.
    """
    label, told = Label(name, kind, tool, version), facts or {}
    window = _window(timeline, start_ns, end_ns)
    if timeline is None:
        document = _without_timeline(label, window, run, stacks, told)
    elif window is None:
        document = blank(label, "the window lies outside what was captured: are their clocks the same?")
        document |= {"source": timeline.source, "alignment": _alignment(timeline.alignment)}
    else:
        document = _with_timeline(label, timeline, window, _joinable(timeline, run), pattern)
        document["hot"] = _hot(stacks, told)
        document["notes"] += [OTHER_CLOCK] if run is not None and timeline.alignment is None else []
    document |= {key: told.get(key) for key in KEPT} | {"files": list(told.get("files") or [])}
    document["notes"] = list(dict.fromkeys([*document["notes"], *(told.get("notes") or [])]))
    if plain is not None and run is not None and window is not None:
        document["overhead"] = overhead.describe(kind, plain, run, *window, same_moment)
    return document | {"findings": findings(document)}


def blank(label: Label, reason: str | None, window: Interval | None = None) -> Document:
    """The answers of a window of which nothing is known; `reason` says why."""
    return {
        "name": label.name,
        "kind": label.kind,
        "tool": label.tool,
        "version": label.version,
        "source": label.tool,
        "window": _window_document(window),
        "empty": reason is not None,
        "reason": reason,
        "alignment": None,
        "traffic": None,
        "devices": [],
        "no_device": None,
        "skew": None,
        "steps": step_table.describe(stepping.none("there is no timeline")),
        "operators": None,
        "system": [],
        "amdahl": [],
        "counts": dict.fromkeys(("kernels", "kernels_per_step", "graph_replays", "api_calls", "peak_memory_bytes")),
        "hot": None,
        **dict.fromkeys(KEPT),
        "files": [],
        "overhead": None,
        "findings": [],
        "notes": [],
    }


def _window(timeline: Timeline | None, start: int | None, end: int | None) -> Interval | None:
    """The window, cut to what the timeline spans; None where nothing is left of it."""
    if timeline is not None:
        start = timeline.span[0] if start is None else max(start, timeline.span[0])
        end = timeline.span[1] if end is None else min(end, timeline.span[1])
    return None if start is None or end is None or end <= start else (start, end)


def _window_document(window: Interval | None) -> Document:
    if window is None:
        return {"start_ns": None, "end_ns": None, "ms": None}
    return {"start_ns": window[0], "end_ns": window[1], "ms": milliseconds(window[1] - window[0])}


def _joinable(timeline: Timeline, run: RunData | None) -> RunData | None:
    """The run, if its clock is the timeline's."""
    return run if timeline.alignment is not None else None


def _without_timeline(
    label: Label, window: Interval | None, run: RunData | None, stacks: Stacks | None, facts: Mapping[str, Any]
) -> Document:
    found = traffic.find_traffic(run, *window) if run is not None and window is not None else None
    reason = None if stacks is not None or any(facts.get(key) for key in KEPT) else "nothing was captured"
    steps = stepping.none("there is no timeline")
    document = blank(label, reason or _unused(found), window)
    document["traffic"] = None if found is None else traffic.describe(label.kind, found, steps)
    return document | {"hot": _hot(stacks, facts), "alignment": _alignment(stacks.alignment if stacks else None)}


def _with_timeline(
    label: Label, timeline: Timeline, window: Interval, run: RunData | None, pattern: str | None
) -> Document:
    start, end = window
    found = None if run is None else traffic.find_traffic(run, start, end)
    steps = stepping.find_steps(timeline, start, end, pattern)
    devices, doubts = survey(timeline, start, end, None if found is None else found.phases)
    inside = (timeline.start < end) & ((timeline.end > start) | (timeline.start >= start))  # as a device's rows are
    reason = _unused(found) if inside.any() else "the capture holds nothing in the window"
    by_name = operators.find_operators(timeline, steps, start, end)
    return blank(label, reason, window) | {
        "source": timeline.source,
        "alignment": _alignment(timeline.alignment),
        "traffic": None if found is None else traffic.describe(label.kind, found, steps),
        "devices": devices,
        "no_device": None if devices else NO_DEVICE,
        "skew": rank_skew(timeline, start, end),
        "steps": step_table.describe(steps),
        "operators": operators.describe(by_name),
        "system": system.describe(timeline, start, end),
        "amdahl": _what_if(timeline, window, steps, by_name, run),
        "counts": _counts(timeline, inside, steps, devices),
        "notes": [*timeline.notes, *doubts],
    }


def _unused(found: Traffic | None) -> str | None:
    """Why a window without any request is empty."""
    if found is None or found.requests:
        return None
    return "no request was in flight during the window"


def _what_if(
    timeline: Timeline, window: Interval, steps: Steps, by_name: operators.Operators | None, run: RunData | None
) -> list[Document]:
    on_device = bool(timeline.on_device.any())
    parts, total = hot_parts.kernels(timeline, steps, *window) if on_device else hot_parts.of_operators(by_name)
    step = float(steps.time.mean()) if len(steps) else None
    tpot = None if run is None or step is None else overhead.tpot_ns(run, *window)
    return amdahl.describe(parts, total, step, tpot)


def _counts(timeline: Timeline, inside: Any, steps: Steps, devices: list[Document]) -> Document:
    """Numbers for regression gates; null where the capture cannot tell."""
    calls = timeline.of_kind(Kind.API, Kind.SYNC)
    kernels = timeline.of_kind(Kind.COMPUTE, Kind.COMMUNICATION)
    launched = steps.kernels[steps.kernels != NONE]
    replays = [device["graphs"]["replays"] for device in devices]
    known = bool(devices) and None not in replays
    return {
        "kernels": int(np.count_nonzero(kernels & inside)) if devices else None,
        "kernels_per_step": rounded(float(launched.mean())) if launched.size else None,
        "graph_replays": sum(replays) if known else None,
        "api_calls": int(np.count_nonzero(calls & inside)) if calls.any() else None,
        "peak_memory_bytes": timeline.facts.get("peak_memory_bytes"),
    }


def _alignment(found: Alignment | None) -> Document | None:
    if found is None:
        return None
    return {
        "method": found.method,
        "offset_us": rounded(found.offset_ns / 1e3),
        "residual_us": None if found.residual_ns is None else rounded(found.residual_ns / 1e3),
        "reason": found.reason,
    }


def _hot(stacks: Stacks | None, facts: Mapping[str, Any]) -> Document | None:
    from servebench.analysis.profile.hot import hot

    return None if stacks is None else hot(stacks, facts.get("counters"), facts.get("flame_graph"))
