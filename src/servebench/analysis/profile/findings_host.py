"""Findings about the host: an engine that computes on the CPU, its operators, threads and system calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from servebench.analysis.profile.finding import Document, experiment, finding, ms, percent, window_ms

Findings = Iterator[dict[str, Any]]

OPERATOR_SHARE = 0.2  # of the steps' time in one operator itself: the least worth a change of its own
OUTSIDE_SHARE = 0.3  # of the steps' time in no operator: more than dispatch costs on a busy engine
CALL_SHARE = 0.05  # of the window's time in one kind of call that does work
SPIN_SHARE = 0.1  # of the samples in waiting loops of the thread pool
FUNCTION_SHARE = 0.2  # of the samples in one function itself
LEAST_SAMPLES = 100  # a fifth of fewer could be a tenth, or a third

MATRIX = re.compile(r"addmm|\bmm\b|::mm|matmul|linear|gemm|mkldnn|onednn", re.IGNORECASE)
ATTENTION = re.compile(r"attention|attn|flash|paged", re.IGNORECASE)
# Threads that have nothing to do wait in these; their time says nothing.
WAITS = re.compile(r"wait|poll|select|sleep|sem_|futex|accept|sigsuspend|cond_|join|pause|epoll", re.IGNORECASE)
SPINS = re.compile(
    r"gomp_(team_)?barrier|do_spin|kmp_(flag|hyper|barrier)|__kmp|omp.*barrier|sched_yield", re.IGNORECASE
)
OF_ANY_PROGRAM = "see in the flame graph who calls it; after a change its share should fall, and nothing else's rise"
THREADS = "engine.vllm.env.OMP_NUM_THREADS=1,2,4"


def operators(answers: Document) -> Findings:
    """One operator takes much of the steps on an engine without a device."""
    found = answers["operators"]
    if found is None or not found["rows"] or answers["devices"]:
        return
    row = found["rows"][0]
    if row["share"] < OPERATOR_SHARE:
        return
    yield finding(
        "hot_operator",
        f"{row['name']} itself takes {percent(row['share'])} of the time of the steps ({ms(row['self_ms'])} in "
        f"{row['n']} calls), and there is no device: the step is bound by the CPU.",
        _for_operator(row["name"]),
        share=row["share"],
        self_ms=row["self_ms"],
        n=row["n"],
    )


def outside_operators(answers: Document) -> Findings:
    """Much of the steps is in no operator: the interpreter, the scheduler, a compiled graph that hides its inside."""
    found = answers["operators"]
    if found is None or answers["devices"] or not answers["steps"]["n"] or not found["within_ms"]:
        return
    inside = found["self_ms"] / found["within_ms"]
    if 1 - inside < OUTSIDE_SHARE:
        return
    yield finding(
        "outside_operators",
        f"{percent(1 - inside)} of the time of the steps is in no operator of thread {found['thread']}: scheduling, "
        "sampling and Python between the operators, and what the profiler itself adds there.",
        "`servebench profile SCENARIO --tool perf` shows which functions; "
        f"{experiment('vllm.enforce-eager=true,false')} compiles the model: less Python",
        outside_share=1 - inside,
        within_ms=found["within_ms"],
    )


def thread_waits(answers: Document) -> Findings:
    """The thread pool burns time in waiting for its own members."""
    rows = [row for row in (answers["hot"] or {}).get("functions", ()) if SPINS.search(row["name"])]
    share = sum(row["self_share"] or 0.0 for row in rows)
    if share < SPIN_SHARE:
        return
    yield finding(
        "thread_waits",
        f"{percent(share)} of the samples are threads that spin at a barrier ({rows[0]['name']}): the pool has more "
        "threads than the work can use, or than there are free cores.",
        f"{experiment(THREADS)}: with fewer threads the step should get no longer",
        share=share,
        samples=answers["hot"]["samples"],
    )


def system_calls(answers: Document) -> Findings:
    """Calls of the operating system that do work take a part of the window."""
    total = window_ms(answers)
    for row in answers["system"]:
        if WAITS.search(row["name"]) or not total or row["ms"] < CALL_SHARE * total:
            continue
        yield finding(
            "system_calls",
            f"{row['name']} took {ms(row['ms'])} in {row['n']} calls, over all threads: {percent(row['ms'] / total)} "
            "of the window's length.",
            "see which thread makes them (perf with stacks); if the engine's own, logging, swapping or memory that is "
            "mapped anew in each step are the usual sources",
            ms=row["ms"],
            n=row["n"],
        )


def hot_function(answers: Document) -> Findings:
    """One function holds many of the samples."""
    hot = answers["hot"]
    rows = [] if hot is None else [row for row in hot["functions"] if not SPINS.search(row["name"])]
    row = max(rows, key=lambda each: each["self_share"] or 0.0, default=None)
    if hot is None or row is None or hot["samples"] < LEAST_SAMPLES or (row["self_share"] or 0.0) < FUNCTION_SHARE:
        return
    module = f" ({row['module']})" if row["module"] else ""
    yield finding(
        "hot_function",
        f"{percent(row['self_share'])} of {hot['samples']} samples are in {row['name']}{module} itself.",
        OF_ANY_PROGRAM if answers["kind"] == "free" else _for_operator(row["name"]),
        self_share=row["self_share"],
        samples=hot["samples"],
    )


def _for_operator(name: str) -> str:
    if ATTENTION.search(name):
        return (
            f"its time grows with the context: capture with prompts of half the length; {experiment(THREADS)} shows "
            "whether it scales with cores"
        )
    if MATRIX.search(name):
        return (
            f"{experiment(THREADS)} shows whether it scales with cores; a smaller dtype halves what it "
            f"reads: {experiment('vllm.dtype=float32,bfloat16')}"
        )
    return f"{experiment('vllm.enforce-eager=true,false')}: compilation fuses what moves data; its share should fall"
