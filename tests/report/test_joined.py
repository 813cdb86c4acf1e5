"""The joined tables: each with its figures, unit and n; what is missing as one line with the reason, and never as 0."""

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from servebench.analysis.facts import gather
from servebench.analysis.summary import document
from servebench.report.figures import number
from servebench.report.joined import SECTIONS, Joined
from servebench.testing.synthetic import SECOND, START_NS, SyntheticRun, open_run

NO_DRIVER = "no NVIDIA driver on this machine"


def sampled(run: SyntheticRun, key: tuple[str, str, str], values: Callable[[float], float], hz: float = 2.0) -> None:
    last = max(record.end_ns or 0 for record in run.records) + SECOND
    instants = range(START_NS - SECOND, last + SECOND, round(SECOND / hz))
    run.samples += [(*key, t, values((t - START_NS) / SECOND)) for t in instants]


def watched(gpus: int = 0) -> SyntheticRun:
    """A run with the server's metrics, the host, and so many GPUs of the server."""
    run = open_run(requests=200, warmup=1, cooldown=1)
    nvml: dict[str, Any] = {"state": "absent", "reason": NO_DRIVER}
    if gpus:
        facts = [{"index": n, "uuid": f"GPU-{n}", "name": "NVIDIA H200", "server_uses": True} for n in range(gpus)]
        nvml = {"state": "sampled", "reason": None, "samples": 99, "achieved_hz": 20.0, "devices": facts}
    server = {"state": "sampled", "reason": None, "samples": 30, "achieved_hz": 2.0, "missing": [], "renamed": []}
    host = {"state": "sampled", "reason": None, "samples": 30, "achieved_hz": 2.0}
    run.manifest["telemetry"] = {"sources": {"server": server, "host": host, "nvml": nvml}, "cpu_share": 0.0042}
    run.manifest["prompts"]["leading_tokens"] = 0
    totals = {"requests_success": 200, "generation_tokens": 8000, "prompt_tokens": 40_000, "steps": 1500}
    totals |= {"step_tokens_sum": 48_000, "preemptions": 0, "prefix_queries": 40_000, "prefix_hits": 400}
    totals |= {"ttft_sum": 9.8, "ttft_count": 200, "queue_sum": 0.4, "queue_count": 200}
    totals |= {"prefill_sum": 9.2, "prefill_count": 200, "decode_sum": 78, "decode_count": 200}
    for name, total in totals.items():
        counted(run, name, total)
    for name, value in (("running", 8.0), ("waiting", 0.0), ("kv_usage", 0.25)):
        sampled(run, ("server", "engine-0", name), lambda _, value=value: value)
    sampled(run, ("host", "host", "cpu_busy_share"), lambda _: 0.5)
    for n in range(gpus):
        gpu(run, f"gpu-{n}")
    return run


def counted(run: SyntheticRun, name: str, total: float) -> None:
    """A counter that reaches `total` before the last request has ended."""
    sampled(run, ("server", "engine-0", name), lambda s: total * min(max(s, 0) / 10, 1))


def gpu(run: SyntheticRun, device: str) -> None:
    series: dict[str, Callable[[float], float]] = {
        "power_w": lambda _: 400.0,
        "energy_j": lambda s: 5e6 + 400 * s,
        "power_limit_w": lambda _: 700.0,
        "clock_sm_mhz": lambda _: 1980.0,
        "util_gpu": lambda _: 97.0,
    }
    for name, values in series.items():
        sampled(run, ("nvml", device, name), values, 20)


def summary_of(run: SyntheticRun) -> dict[str, Any]:
    return document(gather(run.data()))


def shown(summary: dict[str, Any], width: int = 94) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(Joined(summary))
    return out.getvalue()


def section(label: str, summary: dict[str, Any]) -> str:
    """The words of one section."""
    out = io.StringIO()
    console = Console(file=out, width=94, highlight=False)
    for part in SECTIONS[label](summary):
        console.print(part)
    return " ".join(out.getvalue().split())


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return summary_of(watched())


@pytest.fixture(scope="module")
def with_gpus() -> dict[str, Any]:
    return summary_of(watched(3))


def test_a_plain_run_takes_no_more_than_a_screen(plain: dict[str, Any]) -> None:
    text = shown(plain)
    assert len(text.rstrip().splitlines()) <= 30
    order = [text.index(label) for label in ("Phases", "Interference", "Queue", "Server", "Cold start", "Telemetry")]
    assert order == sorted(order)
    assert "Energy" not in text
    assert "Roofline" not in text


@pytest.mark.parametrize("width", [64, 74, 84, 94])
@pytest.mark.parametrize("gpus", [0, 3])
def test_it_fits_and_no_figure_is_cut(width: int, gpus: int) -> None:
    text = shown(summary_of(watched(gpus)), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_phases(plain: dict[str, Any]) -> None:
    text = section("Phases", plain)
    shares = plain["phases_joined"]["shares"]
    figures = " ".join(f"{100 * shares[phase]:.1f}" for phase in ("idle", "prefill_only", "decode_only", "mixed"))
    assert f"all requests {figures} 100" in text
    n = next(t["n"] for t in plain["phases_joined"]["tables"] if t["name"] == "running")
    assert re.search(rf"running, requests .*8\.00 {n}\b", text)
    assert re.search(r"KV cache, % .*25\.0 \d", text)
    assert re.search(r"CPU of this machine, % .*50\.0 \d", text)


def test_a_phase_without_a_sample_is_a_dash(plain: dict[str, Any]) -> None:
    table = next(t for t in plain["phases_joined"]["tables"] if t["name"] == "running")
    table = {**table, "given": table["given"] | {"mixed": {"n": 0, "mean": None, "p50": None, "p95": None}}}
    changed = plain | {"phases_joined": plain["phases_joined"] | {"tables": [table]}}
    assert re.search(r"running, requests \S+ \S+ \S+ – 8\.00", section("Phases", changed))


def test_interference(plain: dict[str, Any]) -> None:
    text, found = section("Interference", plain), plain["interference"]
    assert "ITL of the cohort, ms, given others' prefills 0 1 2–3 4+" in text
    assert f"{found['itl_by_prefills'][0]['n']:,}" in text
    assert f"÷ without a prefill: {number(found['ratio']['value'])} (95 % within the run: " in text
    assert f"of {found['stalls']['gaps']:,} gaps" in text
    assert "no stall" not in text


def test_a_ratio_that_cannot_be_had_says_why(plain: dict[str, Any]) -> None:
    ratio = {"value": None, "low": None, "high": None, "reason": "no prefill was in flight", "interval": ""}
    changed = plain | {"interference": plain["interference"] | {"ratio": ratio}}
    assert "no ratio of ITL with to without a prefill in flight: no prefill was in flight" in section(
        "Interference", changed
    )


def test_queue_and_the_split_of_ttft(plain: dict[str, Any]) -> None:
    text, split = section("Queue", plain), plain["server_side"]["ttft_split"]
    assert "TTFT from sent, ms, given the queue" in text
    assert "queue 2.00 + prefill 46.00 + rest 1.00 (n 200)" in text
    assert f"mean TTFT {split['client_ms']:.2f} ms = network" in text


def test_what_the_server_does_not_tell_is_named_in_the_split(plain: dict[str, Any]) -> None:
    split = plain["server_side"]["ttft_split"] | {
        "queue_ms": None,
        "rest_ms": None,
        "reason": "the server does not tell its queue",
    }
    text = section("Queue", plain | {"server_side": plain["server_side"] | {"ttft_split": split}})
    assert "prefill 46.00 (n 200); the server does not tell its queue" in text
    assert "+ queue" not in text


def test_server(plain: dict[str, Any]) -> None:
    text = section("Server", plain)
    assert "client = server: 200 requests, 8,000 output tokens, 40,000 input tokens" in text
    assert "by queue + prefill + decode" in text
    assert "of 32.00 tokens · 0 preemptions · prefix hits 1 % (400 unintended)" in text


def test_counts_that_differ_stand_side_by_side() -> None:
    run = watched()
    run.samples = [s for s in run.samples if s[2] not in ("generation_tokens", "prompt_tokens")]
    counted(run, "generation_tokens", 8400)
    text = section("Server", summary_of(run))
    assert "requests 200 = 200; output tokens 8,000 ≠ 8,400" in text
    assert "input tokens 40,000, the server's unknown" in text


def test_series_that_are_missing_renamed_or_lost_are_named() -> None:
    run = watched()
    renamed = [{"name": "kv_usage", "series": "vllm:gpu_cache_usage_perc", "instead_of": "vllm:kv_cache_usage_perc"}]
    run.manifest["telemetry"]["sources"]["server"] |= {
        "missing": ["queue_sum"],
        "lost": ["waiting"],
        "renamed": renamed,
    }
    text = section("Server", summary_of(run))
    assert "not on its page: queue_sum" in text
    assert "gone from its page: waiting" in text
    assert "under other names: kv_usage as vllm:gpu_cache_usage_perc" in text


def test_missing_sources_are_a_line_each_with_the_reason(plain: dict[str, Any]) -> None:
    text = section("Telemetry", plain)
    assert "server n 30 at 2.00 Hz, gaps to 500 ms" in text
    assert "0.42 % of a core" in text
    assert f"nvml: {NO_DRIVER}" in text


def test_without_any_telemetry_the_clients_own_tables_remain() -> None:
    text = shown(summary_of(open_run(requests=200)))
    assert "time, %" in text
    assert "ITL of the cohort" in text
    assert "no server metrics: not sampled in this run" in text
    assert "no telemetry was asked for" in text
    assert "running, requests" not in text
    assert "TTFT = " not in text


def test_gpus(with_gpus: dict[str, Any]) -> None:
    text = section("Phases", with_gpus)
    assert re.search(r"GPU 0 power, W (\S+ ){4}400 \d", text)
    assert re.search(r"GPU 1 SM clock, MHz (\S+ ){4}1,980 \d", text)
    assert "GPU 2" not in text
    assert "1 more GPU in summary.json" in text


def test_energy(with_gpus: dict[str, Any]) -> None:
    text, found = section("Energy", with_gpus), with_gpus["energy"]
    assert text.count("NVIDIA H200") == 3
    assert "mean 400.0 W of 700.0 W allowed" in text
    assert f"{found['j_per_output_token']:.2f} J an output token" in text
    assert f"n {found['output_tokens']:,} tokens, {found['requests']:,} requests" in text
    assert "by the counter" in text


def test_energy_that_is_not_valid_has_no_figure_a_token(with_gpus: dict[str, Any]) -> None:
    reasons = ["gpu-0: 2100 ms without a sample in the window, of 1000 ms allowed"]
    invalid = with_gpus["energy"] | {"reason": reasons[0], "reasons": reasons, "j_per_output_token": None}
    text = section("Energy", with_gpus | {"energy": invalid})
    assert f"no J per token: {reasons[0]}" in text
    assert "J an output token" not in text


def test_a_roofline_without_the_models_shape_says_so(with_gpus: dict[str, Any]) -> None:
    assert section("Roofline", with_gpus) == f"no estimate: {with_gpus['roofline']['reason']}"


def test_a_roofline_is_labelled_an_estimate(with_gpus: dict[str, Any]) -> None:
    decode = {"reason": None, "floor_ms": 3.4, "measured_ms": 9.1, "achieved_share": 0.37}
    found = {"reason": None, "gpus": 2, "gpu": "NVIDIA H200", "decode": decode, "prefill": {"reason": "no prompt"}}
    text = section("Roofline", with_gpus | {"roofline": found})
    assert "a decode step: floor 3.4 ms, took 9.1 ms: 37 % of what 2 × NVIDIA H200 allow" in text
    assert "prefill: no prompt" in text
    assert "an estimate" in text


def test_cold_start() -> None:
    run = watched()
    launch = START_NS - 20 * SECOND
    run.manifest["cold_start"] = {
        "launch_ns": launch,
        "listening_ns": launch + 12 * SECOND,
        "ready_ns": launch + 17 * SECOND,
        "first_token_ns": launch + 18 * SECOND,
        "log": {"weights_s": 0.5, "engine_s": 2.25},
    }
    text = section("Cold start", summary_of(run))
    assert "listening after 12.00 s · ready +5.00 s · first token +1.00 s · load +2.00 s" in text
    assert "by its log: weights 0.500 s · engine 2.25 s" in text
    assert re.search(r"TTFT steady \(within 20 %\) \S+ m?s after the load began, 20\.\d+ s after the launch", text)


def test_a_server_that_was_there_before_has_no_stages(plain: dict[str, Any]) -> None:
    text = section("Cold start", plain)
    assert text.startswith("the server was not started by this run; TTFT steady")


def test_a_run_without_requests_has_nothing_to_join() -> None:
    run = open_run(requests=20)
    run.records, run.chunks = [], {}
    text = shown(summary_of(run))
    assert "0 %" not in text
    assert "Cold start" not in text
