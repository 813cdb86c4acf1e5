"""What the server counted against what the client saw."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handmade import Points, Sent, facts_of, handmade, sample
from servebench.analysis import counters, prefix_cache, server_side
from servebench.analysis.counters import Growth, growth
from servebench.record.columns import Outcome
from servebench.testing.synthetic import SyntheticRun

# Two requests: TTFT 100 and 60 ms, service 300 and 160 ms; 5 tokens in all.
PAIR = [Sent(100, [200, 300, 400], input=100), Sent(250, [310, 410], input=300)]
BEATS = (-500, 0, 500, 1000, 1500)


def counted(run: SyntheticRun, name: str, values: list[float | None], engine: str = "engine-0") -> None:
    """A counter scraped at `BEATS`."""
    sample(run, "server", engine, name, zip(BEATS, values, strict=True))


def grown(run: SyntheticRun, points: Points, name: str = "steps") -> Growth:
    sample(run, "server", "engine-0", name, points)
    return growth(facts_of(run)[0], name)


def section(run: SyntheticRun) -> dict[str, Any]:
    return server_side.describe(facts_of(run)[0])


def served() -> SyntheticRun:
    """A server that says: TTFT 70, queue 5, prefill 60, decode 145 ms on average."""
    run = handmade(PAIR)
    for name, total in (
        ("requests_success", 2),
        ("generation_tokens", 5),
        ("prompt_tokens", 400),
        ("ttft_count", 2),
        ("queue_count", 2),
        ("prefill_count", 2),
        ("decode_count", 2),
        ("ttft_sum", 0.140),
        ("queue_sum", 0.010),
        ("prefill_sum", 0.120),
        ("decode_sum", 0.290),
        ("steps", 50),
        ("step_tokens_sum", 405),
    ):
        counted(run, name, [1000.0, 1000.0, 1000.0 + total, 1000.0 + total, 1000.0 + total])
    return run


def test_growth_is_from_the_sample_before_to_that_after() -> None:
    found = grown(handmade(PAIR), [(-500, 10), (0, 12), (500, 30), (1000, 40), (1500, 41)])
    assert (found.run, found.window) == (31, 28)


def test_the_window_is_interpolated_at_its_edges() -> None:
    found = grown(handmade(PAIR, window=(250, 750)), [(0, 0), (500, 100), (1000, 300)])
    assert found.window == pytest.approx(150)
    assert found.run == 300


@pytest.mark.parametrize("points", [[(150, 1.0), (1500, 9.0)], [(-100, 1.0), (405, 9.0)]])
def test_samples_that_do_not_span_the_run_give_no_growth(points: Points) -> None:
    assert grown(handmade(PAIR), points).run is None


def test_a_counter_that_is_not_there_is_null() -> None:
    assert growth(facts_of(handmade(PAIR))[0], "steps") == Growth(None, None)


def test_engines_are_added_and_one_that_is_blind_leaves_no_sum() -> None:
    run = handmade(PAIR)
    counted(run, "steps", [0, 10, 20, 30, 40])
    counted(run, "steps", [5, 5, 6, 7, 8], "engine-1")
    assert growth(facts_of(run)[0], "steps") == Growth(43, 22)
    sample(run, "server", "engine-2", "steps", [(700, 1.0), (800, 2.0)])
    assert growth(facts_of(run)[0], "steps") == Growth(None, None)


def test_a_restart_is_seen_and_the_counter_goes_on_from_zero() -> None:
    run = handmade(PAIR)
    counted(run, "steps", [100, 150, 10, 30, 40])
    counted(run, "generation_tokens", [7, 7, 0, 2, 2])
    facts, _ = facts_of(run)
    assert growth(facts, "steps").run == 50 + 10 + 30
    found = section(run)
    assert (found["restarts"], found["restarted_at_ms"]) == (1, [500])
    tokens = next(row for row in found["agreement"] if row["what"] == "output_tokens")
    assert tokens["server"] == 2
    assert "restarted" in tokens["reason"]


def test_a_restart_that_only_the_sampler_noticed_counts() -> None:
    run = served()
    noticed = {"t_ns": run.manifest["phases"]["start_ns"] + 500_000_000, "how": "its process is another one"}
    run.manifest["telemetry"] = {"sources": {"server": {"state": "sampled", "restarts": [noticed]}}}
    found = section(run)
    assert (found["restarts"], found["restarted_at_ms"]) == (1, [500])


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=12))
def test_growth_over_restarts_is_the_sum_of_what_was_seen(steps: list[tuple[int, bool]]) -> None:
    value, seen, values = 100.0, 0.0, []
    for k, (more, restart) in enumerate(steps):
        fell = restart and k > 0 and more < value
        value = float(more) if fell else value + more
        seen += more if k else 0
        values.append(value)
    series = counters._monotone(counters.Series(np.arange(len(values)), np.array(values)))
    assert series.value[-1] - series.value[0] == seen
    assert bool(np.all(np.diff(series.value) >= 0))


def test_counts_agree_exactly() -> None:
    rows = section(served())["agreement"]
    assert [(r["what"], r["client"], r["server"], r["difference"], r["agrees"]) for r in rows] == [
        ("requests", 2, 2, 0, True),
        ("output_tokens", 5, 5, 0, True),
        ("input_tokens", 400, 400, 0, True),
    ]
    assert [r["reason"] for r in rows] == [None] * 3


def test_a_difference_beside_failures_has_a_reason() -> None:
    run = handmade([*PAIR, Sent(500, [520], outcome=Outcome.TRUNCATED)])
    counted(run, "requests_success", [0, 0, 2, 3, 3])
    row = section(run)["agreement"][0]
    assert (row["client"], row["server"], row["agrees"]) == (2, 3, False)
    assert row["reason"] == "1 requests did not end well; the server may have counted them"


def test_ttft_is_split_and_the_rest_is_shown() -> None:
    split = section(served())["ttft_split"]
    assert (split["n_client"], split["n_server"]) == (2, 2)
    parts = {k: split[k] for k in ("client_ms", "network_ms", "queue_ms", "prefill_ms", "rest_ms")}
    assert parts == pytest.approx(
        {"client_ms": 80, "network_ms": 10, "queue_ms": 5, "prefill_ms": 60, "rest_ms": 5}, abs=1e-6
    )
    whole = split["network_ms"] + split["queue_ms"] + split["prefill_ms"] + split["rest_ms"]
    assert whole == pytest.approx(split["client_ms"])
    assert split["reason"] is None


def test_what_the_server_does_not_tell_is_null_with_its_name() -> None:
    run = served()
    run.samples = [row for row in run.samples if not row[2].startswith("ttft")]
    split = section(run)["ttft_split"]
    assert split["network_ms"] is None
    assert split["rest_ms"] == pytest.approx(15)  # the network is in it
    assert split["reason"] == "the server does not tell its own TTFT"


def test_service_time_against_the_servers_sum() -> None:
    found = section(served())["service"]
    assert (found["client_ms"], found["server_ms"]) == pytest.approx((230, 210))
    assert found["difference_ms"] == pytest.approx(20)
    assert found["difference_share"] == pytest.approx(20 / 230, abs=1e-6)


def test_histograms_and_steps() -> None:
    found = section(served())
    assert found["histograms"]["queue"] == {"n": 2, "mean_ms": 5, "window_n": 2, "window_mean_ms": 5}
    assert found["histograms"]["itl"] == {"n": None, "mean_ms": None, "window_n": None, "window_mean_ms": None}
    assert found["steps"] == {"n": 50, "per_s": 50, "mean_tokens": 8.1}
    assert found["counters"]["steps"] == {"run": 50, "window": 50, "unit": "steps"}


def test_no_server_metrics_have_a_reason_and_nothing_is_zero() -> None:
    told = {"sources": {"server": {"state": "absent", "reason": "its page has no series of vLLM"}}}
    found = section(handmade(PAIR, telemetry=told))
    assert found["reason"] == "no server metrics: its page has no series of vLLM"
    assert found["counters"]["preemptions"] == {"run": None, "window": None, "unit": "requests"}
    assert {row["agrees"] for row in found["agreement"]} == {None}
    assert found["ttft_split"]["client_ms"] == 80
    assert found["engines"] == []


def test_scrapes_and_outages_are_told() -> None:
    run = served()
    sample(run, "server", "engine-0", "up", [(-500, 1), (0, 1), (250, 0), (500, 1), (1000, 1)])
    sample(run, "server", "engine-0", "scrape_ms", [(0, 2.0), (500, 4.0)])
    run.manifest["telemetry"] = {
        "sources": {"server": {"missing": ["queue_sum"], "lost": ["kv_usage"], "renamed": [{"name": "itl_sum"}]}}
    }
    found = section(run)
    assert found["down"] == {"scrapes": 1, "of": 5}
    assert (found["scrapes"], found["longest_gap_ms"], found["scrape_mean_ms"]) == (5, 500, 3)
    assert (found["missing"], found["lost"], found["renamed"]) == (["queue_sum"], ["kv_usage"], [{"name": "itl_sum"}])


def test_acceptance_of_drafts() -> None:
    run = served()
    counted(run, "spec_drafted", [0, 0, 40, 80, 80])
    counted(run, "spec_accepted", [0, 0, 30, 60, 60])
    assert section(run)["spec_decode"] == {"drafted": 80, "accepted": 60, "acceptance": 0.75}


def cached(requests: list[Sent], hits: float, leading: int | None, **manifest: Any) -> dict[str, Any]:
    prompts = {"leading_tokens": leading}
    facts, _ = facts_of(handmade(requests, prompts=prompts, **manifest))
    return prefix_cache.describe(facts, 1000.0, hits)


def test_hits_on_what_all_prompts_share_are_expected() -> None:
    found = cached(PAIR, 32.0, 21)  # one whole block of 16 in either
    assert (found["expected_at_most"], found["beyond"], found["beyond_share"]) == (32, 0, 0)
    assert (found["block_size"], found["block_size_from"]) == (16, "assumed")


def test_hits_beyond_are_told() -> None:
    found = cached(PAIR, 300.0, 21)
    assert (found["beyond"], found["beyond_share"], found["hit_share"]) == (268, 0.268, 0.3)


def test_a_shared_prefix_is_meant_but_never_the_whole_prompt() -> None:
    grouped = [Sent(100, [200], input=64, group=1, prefix=60), Sent(110, [210], input=500, group=1, prefix=60)]
    assert cached(grouped, 0.0, 5)["expected_at_most"] == 48 + 64  # the last token of the first is always computed


def test_requests_that_were_not_sent_expect_nothing() -> None:
    dropped = Sent(300, outcome=Outcome.DROPPED, more={"sent_ns": None})
    assert cached([*PAIR, dropped], 0.0, 21)["expected_at_most"] == 32


@pytest.mark.parametrize(
    ("manifest", "source"),
    [
        ({"server_identity": {"block_size": 8}}, "server_identity"),
        ({"endpoint": {"server": {"settings": {"block_size": 8}}}}, "the engine's settings"),
        ({"endpoint": {"server": {"flags": {"block-size": 8}}}}, "the engine's flags"),
    ],
)
def test_the_block_size_is_the_servers(manifest: dict[str, Any], source: str) -> None:
    found = cached(PAIR, 0.0, 21, **manifest)
    assert (found["block_size"], found["block_size_from"], found["expected_at_most"]) == (8, source, 32)


def test_without_the_leading_tokens_nothing_is_expected_or_beyond() -> None:
    found = cached(PAIR, 300.0, None)
    assert (found["expected_at_most"], found["beyond"]) == (None, None)
    assert found["reason"] == "it is not known how many leading tokens all prompts share"
