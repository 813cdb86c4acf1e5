"""Findings about the window itself and its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servebench.analysis.profile.finding import (
    Document,
    experiment,
    finding,
    ms,
    percent,
    step_ms,
    step_row,
    window_ms,
)

Findings = Iterator[dict[str, Any]]

IDLE_SHARE = 0.1  # of the window without any request: from here its figures per second mean little
SLOWER = 1.1  # a capture that costs more than a tenth bends what it measures; repeats of a run differ by less
LONGER = 1.3  # a mixed step by so much longer than a decode step is one that users see as a stutter
LEAST_STEPS, LEAST_MIXED = 5, 3  # for their medians to be compared; one long prompt makes few steps, and long ones
HOT_SHARE = 0.15  # of the step: below, even twice as fast saves less than 7.5 %, the size of most noise floors
FEWEST_TOKENS = 256  # vLLM takes no budget below max-num-seqs, which is 256 or more by default


def traffic_missed(answers: Document) -> Findings:
    """The window did not see the traffic that it was meant for."""
    traffic = answers["traffic"]
    if traffic is None or traffic["as_meant"] is not False:
        return
    shares = {f"share_{key}": value for key, value in traffic["shares"].items()}
    yield finding(
        "traffic_missed",
        f"The {answers['name']} window did not see the traffic that it was meant for: {traffic['reason']}.",
        "capture again: a longer window, more requests in flight, or prompts and answers that overlap less",
        requests=traffic["requests"],
        **shares,
    )


def client_idle(answers: Document) -> Findings:
    """The server had nothing to do for part of the window."""
    traffic = answers["traffic"]
    if traffic is None or not traffic["requests"] or traffic["shares"]["idle"] < IDLE_SHARE:
        return
    idle = traffic["shares"]["idle"]
    yield finding(
        "client_idle",
        f"For {percent(idle)} of the window no request was in flight: that idle time is the load's, not the server's.",
        "raise the load until requests overlap (load.closed.concurrency, or the rate), then capture again",
        idle_share=idle,
        in_flight_mean=traffic["in_flight"]["mean"],
    )


def capture_overhead(answers: Document) -> Findings:
    """Capturing slowed down what it measures."""
    rows = [row for row in (answers["overhead"] or {}).get("rows", ()) if row["ratio"] is not None]
    worst = max(rows, key=lambda row: row["ratio"], default=None)
    if worst is None or worst["ratio"] < SLOWER:
        return
    yield finding(
        "capture_overhead",
        f"Capturing made {worst['metric']} {worst['ratio']:.2f} times as long ({ms(worst['plain'])} without, "
        f"{ms(worst['captured'])} with): durations here are too long by about that, shares less so.",
        "capture less: fewer steps, without stacks or shapes, without tracing of the operating system",
        ratio=worst["ratio"],
        plain_ms=worst["plain"],
        captured_ms=worst["captured"],
    )


def interference(answers: Document) -> Findings:
    """Steps with a prefill in them hold up those who are in decode."""
    mixed, decode = step_row(answers, "mixed"), step_row(answers, "decode_only")
    if mixed is None or decode is None or mixed["n"] < LEAST_MIXED or decode["n"] < LEAST_STEPS:
        return
    long, short = step_ms(mixed), step_ms(decode)
    if not long or not short or long < LONGER * short:
        return
    tokens = mixed["context_tokens_mean"]
    work = "" if tokens is None else f" with {tokens:.0f} prompt tokens on average"
    yield finding(
        "interference",
        f"A mixed step{work} takes {ms(long)}, a decode step {ms(short)}: every request in decode waits "
        f"{ms(long - short)} more for its next token when a prefill shares its step ({mixed['n']} of "
        f"{mixed['n'] + decode['n']} such steps).",
        _for_interference(tokens),
        mixed_ms=long,
        decode_ms=short,
        ratio=long / short,
        mixed_steps=mixed["n"],
        decode_steps=decode["n"],
        context_tokens_mean=tokens,
    )


def _for_interference(tokens: float | None) -> str:
    """Two budgets of tokens to compare; for prompts too short to be cut, two rates."""
    if tokens is not None and tokens < FEWEST_TOKENS:
        return (
            "prompts this short cannot be cut: at half the rate (load.rate) the share of mixed steps should fall, "
            "and ITL p95 with it"
        )
    large = 2048 if tokens is None else max(4 * FEWEST_TOKENS, 1 << (round(tokens) - 1).bit_length())
    budgets = experiment(f"vllm.max-num-batched-tokens={large},{large // 4}")
    return f"{budgets}: a smaller budget should bring ITL p95 down and TTFT up"


def hot_part(answers: Document) -> Findings:
    """One kernel or operator is a large part of the step."""
    row = next((row for row in answers["amdahl"] if row["change"] == "2x"), None)
    if row is None or row["share"] < HOT_SHARE or row["where"] != "device":
        return
    whole = "window" if row["step_ms"] is None else "step"
    saved = "" if row["step_ms"] is None else f", from {ms(row['step_ms'][0])} to {ms(row['step_ms'][1])}"
    yield finding(
        "hot_kernel",
        f"{row['what']} is exposed for {percent(row['share'])} of the {whole}: twice as fast, it would shorten it by "
        f"{percent(1 - row['step_ratio'])}{saved}, and no more.",
        "`servebench profile SCENARIO --tool ncu` replays it: near the bandwidth roof move fewer bytes (a smaller "
        "dtype, a fused kernel), near the compute roof take faster math",
        share=row["share"],
        step_ratio=row["step_ratio"],
        window_ms=window_ms(answers),
    )
