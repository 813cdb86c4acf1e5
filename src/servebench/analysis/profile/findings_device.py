"""Findings about devices: why they were idle, and what of their work nothing hid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servebench.analysis.profile.finding import (
    Document,
    experiment,
    finding,
    main_step,
    ms,
    percent,
    step_ms,
    step_words,
    steps_per_process,
    window_ms,
)

Findings = Iterator[dict[str, Any]]

GAP_SHARE = 0.05  # of the window in gaps of one cause: less is below what an A/B of a few runs can show
LOW_BUSY = 0.5  # nsys's own rule for a device that is little used
EXPOSED_SHARE = 0.05  # of the window in which only copies, or only communication, ran
LATE_SHARE = 0.05  # of the step that ranks wait for the last one
LATE_US = 50.0  # without steps: more than launches vary by on one machine
TINY_SHARE, TINY_LEAST = 0.5, 100  # most kernels, and enough of them


def host_late(answers: Document) -> Findings:
    """The device had run dry before the host launched more."""
    for device, cause in _gaps(answers, "host_late"):
        each, head = _per_step(answers, cause), _step_head(answers)
        graphs = "" if device["graphs"]["replays"] else "CUDA graphs (no enforce-eager), "
        yield finding(
            "host_late",
            f"Device {device['device']}: {head}{each} in {cause['n']} gaps in which the host launched the next work "
            f"only after the device had run dry ({percent(cause['ms'] / window_ms(answers))} of the window).",
            f"try {graphs}async scheduling, fewer or larger kernels, a faster host core: "
            f"{experiment('vllm.async-scheduling=false,true')}; the gaps should shrink, the kernels not",
            **_gap_evidence(answers, device, cause),
        )


def dependency(answers: Document) -> Findings:
    """Work was launched in time, and still the device waited: for longer than it takes from one kernel to the next."""
    for device, every in _gaps(answers, "dependency"):
        cause = {**every, "ms": every["ms"] - every["short_ms"], "n": every["n"] - every["short_n"]}
        if cause["ms"] < GAP_SHARE * window_ms(answers):
            continue
        yield finding(
            "dependency",
            f"Device {device['device']}: {_step_head(answers)}{_per_step(answers, cause)} in {cause['n']} gaps "
            "although the next work had been launched in time: it waited for another stream, an event or a peer.",
            "look at what stands before and after the longest gaps, and at the events between their streams; if a "
            "collective stands there, at the other ranks",
            **_gap_evidence(answers, device, cause),
        )


def copy_or_sync(answers: Document) -> Findings:
    """The device stood still around copies and synchronisations."""
    for device, cause in _gaps(answers, "copy_or_sync"):
        yield finding(
            "copy_or_sync",
            f"Device {device['device']}: {_step_head(answers)}{_per_step(answers, cause)} in {cause['n']} gaps "
            "at a copy or while the host waited in a synchronising call.",
            "make the copies asynchronous from pinned memory and take the wait out of the step (sampling on the "
            f"device, {experiment('vllm.async-scheduling=false,true')})",
            **_gap_evidence(answers, device, cause),
        )


def low_busy(answers: Document) -> Findings:
    """A device that was little used while there were requests."""
    known = answers["traffic"]
    away = known["shares"]["idle"] if known else 0.0
    for device in answers["devices"]:
        share = device["busy"]["share"]
        used = share / (1 - away) if away < 1 else None
        if used is None or used >= LOW_BUSY:
            continue
        yield finding(
            "low_busy",
            f"Device {device['device']} worked for {percent(share)} of the window (streams that overlap count once)"
            + (f", {percent(used)} of the time with requests in flight." if known else "."),
            "see the causes of its gaps; when none stands out, raise the load (the batch is too small for the device): "
            "`servebench sweep SCENARIO --vary load.closed.concurrency=1..256:log5`",
            busy_share=share,
            busy_share_with_requests=used,
            idle_ms=device["idle"]["ms"],
        )


def exposed_communication(answers: Document) -> Findings:
    """Collectives that no computation hides."""
    for device in answers["devices"]:
        found, total = device["communication"], window_ms(answers)
        if found is None or not total or found["exposed_ms"] < EXPOSED_SHARE * total:
            continue
        hidden = "" if found["hidden_share"] is None else f", {percent(found['hidden_share'])} of it hidden"
        yield finding(
            "exposed_communication",
            f"Device {device['device']} did nothing but communicate for {ms(found['exposed_ms'])}, "
            f"{percent(found['exposed_ms'] / total)} of the window ({ms(found['ms'])} in all{hidden}).",
            "fewer ranks where the model fits, or a faster link or algorithm: "
            f"{experiment('vllm.tensor-parallel-size=..')}; overlap of computation and communication",
            exposed_ms=found["exposed_ms"],
            ms=found["ms"],
            hidden_share=found["hidden_share"],
        )


def rank_skew(answers: Document) -> Findings:
    """One rank comes late to the collectives, and all wait."""
    skew, row = answers["skew"], main_step(answers)
    if skew is None or not skew["collectives"]:
        return
    step = None if row is None else step_ms(row)
    limit = LATE_US if step is None else max(LATE_US, LATE_SHARE * step * 1000)
    last = skew["last"]
    if skew["p50_us"] < limit or last is None:
        return
    yield finding(
        "rank_skew",
        f"Devices begin the same collective {skew['p50_us']:.0f} µs apart (p50; p99 {skew['p99_us']:.0f} µs), and in "
        f"{percent(last['share'])} of {skew['collectives']} device {last['device']} is the last: the others wait.",
        f"compare device {last['device']}'s host process, clocks and link with the others'; swap it for another one: "
        "the lateness follows the device, or stays with the rank",
        p50_us=skew["p50_us"],
        p99_us=skew["p99_us"],
        device=last["device"],
        share=last["share"],
    )


def exposed_copies(answers: Document) -> Findings:
    """Copies during which nothing computes."""
    for device in answers["devices"]:
        total = window_ms(answers)
        exposed = sum(row["exposed_ms"] for row in device["copies"])
        if not total or exposed < EXPOSED_SHARE * total:
            continue
        most = max(device["copies"], key=lambda row: row["exposed_ms"])
        yield finding(
            "exposed_copies",
            f"Device {device['device']} did nothing but copy for {ms(exposed)}, {percent(exposed / total)} of the "
            f"window; most of it {most['direction']} ({most['n']} copies, {ms(most['ms'])}).",
            "put them on a stream of their own, from pinned memory, or make them fewer (KV offloading, weights on the "
            "host, and inputs built on the host are the usual sources)",
            exposed_ms=exposed,
            direction=most["direction"],
            n=most["n"],
        )


def tiny_kernels(answers: Document) -> Findings:
    """Most kernels are shorter than what launching one costs."""
    for device in answers["devices"]:
        tiny = device["tiny"]
        if tiny["n"] < TINY_LEAST or (tiny["share"] or 0.0) < TINY_SHARE:
            continue
        launches = device["launches"] or {}
        late = f"; a launch takes {launches['p50_us']:.1f} µs (p50)" if launches.get("p50_us") is not None else ""
        replays = device["graphs"]["replays"]
        within = f", although graphs were replayed {replays} times" if replays else ", and no CUDA graph was replayed"
        yield finding(
            "tiny_kernels",
            f"Device {device['device']}: {percent(tiny['share'])} of the kernels ({tiny['n']}) are shorter than "
            f"{tiny['below_us']:g} µs{late}{within}.",
            "fuse them (compilation) or replay them from CUDA graphs: kernels a step should fall, their time not rise",
            n=tiny["n"],
            share=tiny["share"],
            ms=tiny["ms"],
            graph_replays=replays,
        )


def _gaps(answers: Document, name: str) -> Iterator[tuple[Document, Document]]:
    """Each device whose gaps of this cause are a large enough share of the window, and their row."""
    for device in answers["devices"]:
        for cause in device["idle"]["causes"]:
            if cause["cause"] == name and cause["ms"] >= GAP_SHARE * window_ms(answers) > 0:
                yield device, cause


def _step_head(answers: Document) -> str:
    """``decode step 11.8 ms, GPU busy 7.1 ms, ``."""
    row = main_step(answers)
    step = None if row is None else step_ms(row)
    if row is None or step is None:
        return ""
    busy = "" if row["busy_p50"] is None else f"device busy {ms(row['busy_p50'])}, "
    return f"{step_words(row)} {ms(step)}, {busy}"


def _per_step(answers: Document, cause: Document) -> str:
    steps = steps_per_process(answers)
    if not steps:
        return f"{ms(cause['ms'])} of idle time"
    return f"{ms(cause['ms'] / steps)} a step of idle time"


def _gap_evidence(answers: Document, device: Document, cause: Document) -> dict[str, float | str | None]:
    row, steps = main_step(answers), steps_per_process(answers)
    return {
        "device": device["device"],
        "gaps": cause["n"],
        "ms": cause["ms"],
        "ms_per_step": cause["ms"] / steps if steps else None,
        "step_ms": None if row is None else step_ms(row),
        "busy_ms": None if row is None else row["busy_p50"],
    }
