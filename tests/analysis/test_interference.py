"""What prefills do to the token gaps of others: by hand, against a plain count, and against the engine's own log."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handmade import Sent, facts_of, handmade
from runs import execute, scenario
from servebench.analysis import interference, stalls
from servebench.analysis.data import Ints
from servebench.analysis.facts import gather
from servebench.analysis.gaps import MARGIN_NS, Gaps, Prefills, find_gaps
from servebench.engine.sim.launch import start_sim
from servebench.testing.synthetic import MS, SyntheticRun, open_run

# Between 120 and 150 the stream waits for the prefill of the second request, which was sent during the gap before.
STREAM = Sent(0, [100, 110, 120, 150, 160, 170, 180])
BESIDE = Sent(112, [150.02], input=700)


def section(run: SyntheticRun) -> dict[str, Any]:
    return interference.describe(facts_of(run)[0])


def by_bin(rows: list[dict[str, Any]]) -> dict[str, tuple[int, float | None]]:
    return {row["bin"]: (row["n"], row["mean"]) for row in rows}


def ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def test_one_prefill_beside_one_stream_by_hand() -> None:
    found = section(handmade([STREAM, BESIDE]))
    assert by_bin(found["itl_by_prefills"]) == {"0": (5, 10), "1": (1, 30), "2-3": (0, None), "4+": (0, None)}
    assert by_bin(found["itl_by_prefill_tokens"]) == {
        "0": (5, 10),
        "1-512": (0, None),
        "513-2048": (1, 30),
        "2049+": (0, None),
    }
    assert found["without_prefill"] == {"n": 5, "gaps": 5, "mean": 10, "p50": 10, "p95": 10, "p99": 10}
    assert found["with_prefill"]["mean"] == 30
    assert found["reason"] is None


def test_a_prefill_that_was_only_sent_touches_the_gap_but_is_not_computed_in_it() -> None:
    facts, _ = facts_of(handmade([STREAM, BESIDE]))
    gaps = find_gaps(facts.run, facts.cohort, facts.window.end)
    assert (gaps.length / MS).tolist() == [10, 10, 30, 10, 10, 10]
    assert gaps.prefills.tolist() == [0, 0, 1, 0, 0, 0]
    assert gaps.touched.tolist() == [False, True, True, False, False, False]


def test_a_prefill_begun_and_ended_within_a_gap_is_computed_in_it() -> None:
    facts, _ = facts_of(handmade([Sent(0, [100, 200, 300]), Sent(120, [180])]))
    gaps = find_gaps(facts.run, facts.cohort, facts.window.end)
    assert gaps.prefills.tolist() == [1, 0]


def test_its_own_prefill_does_not_count() -> None:
    found = section(handmade([Sent(0, [100, 110, 120])]))
    assert by_bin(found["itl_by_prefills"])["0"] == (2, 10)
    assert found["with_prefill"]["n"] == 0


def test_prefills_of_requests_outside_the_cohort_count_but_not_their_gaps() -> None:
    early = Sent(0, [400, 500, 600])  # due before the window, in prefill while the cohort decodes
    found = section(handmade([early, Sent(100, [150, 250, 350])], window=(50, 1000)))
    assert by_bin(found["itl_by_prefills"]) == {"0": (0, None), "1": (2, 100), "2-3": (0, None), "4+": (0, None)}


def test_several_prefills_fall_into_their_bins() -> None:
    others = [Sent(10 + k, [500 + k], input=600) for k in range(5)]
    found = section(handmade([Sent(0, [12.5, 300]), *others]))
    # sent at 10, 11 and 12 before the gap of 12.5 to 300 began; those sent at 13 and 14 wait
    assert by_bin(found["itl_by_prefills"])["2-3"] == (1, 287.5)
    assert by_bin(found["itl_by_prefill_tokens"])["513-2048"] == (1, 287.5)


def test_cached_tokens_are_no_work() -> None:
    found = section(handmade([STREAM, Sent(112, [150.02], input=700, cached=640)]))
    assert by_bin(found["itl_by_prefill_tokens"])["1-512"] == (1, 30)


def test_tokens_weigh_and_chunks_without_tokens_join_the_next() -> None:
    found = section(handmade([Sent(0, [10, 40, 50, 70], tokens=[1, 3, 0, 2])]))
    assert found["without_prefill"] == {"n": 5, "gaps": 2, "mean": 12, "p50": 10, "p95": 15, "p99": 15}


def test_without_gaps_there_is_a_reason() -> None:
    found = section(handmade([Sent(0, [10]), Sent(5)]))
    assert found["reason"] == "no request of the cohort has two chunks, so there are no gaps"
    assert found["ratio"]["value"] is None
    assert found["stalls"]["count"] == 0


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25), st.integers(1, 900)), max_size=12)


@settings(max_examples=300)
@given(spans, st.integers(0, 70), st.integers(0, 30))
def test_prefills_of_a_gap_equal_a_plain_count_where_they_end_in_order(
    prefills: list[tuple[int, int, int]], start: int, length: int
) -> None:
    # Unbroken order of begin and of end, in units of 1 µs so that the margin is a quarter of the gap.
    begin = sorted(b for b, _, _ in prefills)
    end = np.maximum.accumulate([b + n for b, (_, n, _) in zip(begin, prefills, strict=True)] or [0]).tolist()
    tokens = [t for _, _, t in prefills]
    a, b = 1000 * start, 1000 * (start + length)
    margin = (b - a) // 4
    real = [(1000 * p, 1000 * q, t) for p, q, t in zip(begin, end, tokens, strict=False) if q > p]
    mine = [t for p, q, t in real if q > a + margin and (p <= a or q <= b + margin)]
    touching = [t for p, q, t in real if p < b and q > a + margin]
    edges = Prefills.of(*(ints([row[k] for row in real]) for k in range(3)))
    number, work, touched = edges.during(ints([a]), ints([b]))
    assert number.tolist() == [sum(len(mine) >= edge for edge in (1, 2, 4))]
    assert work.tolist() == [sum(sum(mine) >= edge for edge in (1, 513, 2049))]
    assert touched.tolist() == [bool(touching)]


def test_the_margin_of_a_long_gap_is_five_milliseconds() -> None:
    edges = Prefills.of(ints([0]), ints([106 * MS]), ints([10]))
    number, _, _ = edges.during(ints([100 * MS, 101 * MS]), ints([200 * MS, 201 * MS]))
    assert MARGIN_NS == 5 * MS
    assert number.tolist() == [1, 0]


def slowed_run(factor: float, seed: int = 1) -> SyntheticRun:
    """Streams whose gaps of 10 ms ± 10 % last `factor` times as long while one of the prefills that are due is on."""
    rng = np.random.default_rng(seed)
    prefills = [(500 + 400 * k, 620 + 400 * k) for k in range(14)]
    streams = []
    for start in (0, 3, 6):
        chunks, t = [], 100.0 + start
        while t < 6000:
            chunks.append(t)
            slow = any(p <= t < q - 3 for p, q in prefills)
            t += 10 * rng.uniform(0.9, 1.1) * (factor if slow else 1)
        streams.append(Sent(start, chunks))
    return handmade([*streams, *(Sent(p, [q]) for p, q in prefills)], window=(0, 6000))


@pytest.mark.parametrize("factor", [1.0, 1.3, 3.0])
def test_the_ratio_is_that_of_the_gaps_and_its_interval_holds_it(factor: float) -> None:
    found = section(slowed_run(factor))["ratio"]
    assert found["value"] == pytest.approx(factor, rel=0.03)
    assert found["low"] <= factor * 1.01
    assert found["high"] >= factor * 0.99
    assert found["low"] <= found["value"] <= found["high"]
    assert "within this run" in found["interval"]


def test_too_few_gaps_of_either_kind_give_no_ratio() -> None:
    found = section(handmade([STREAM, BESIDE]))["ratio"]
    assert (found["value"], found["low"], found["high"]) == (None, None, None)
    assert found["reason"] == "1 gaps with a prefill in flight, 5 without; 30 of each are needed"


def test_a_ratio_of_a_single_stretch_has_no_interval() -> None:
    stream = Sent(0, [100 + 10 * k for k in range(400)])
    found = section(handmade([stream, Sent(1000, [1400])], window=(0, 5000)))["ratio"]
    assert found["value"] == pytest.approx(1, abs=1e-9)
    assert (found["low"], found["high"]) == (None, None)
    assert found["reason"] == "fewer than 5 of 20 blocks hold gaps of both kinds"


def test_stalls_are_counted_sized_and_laid_to_prefills() -> None:
    calm = Sent(0, [100, 110, 120, 130, 140, 150, 160])
    hit = Sent(1, [100, 110, 120, 130, 240, 250, 290.1])  # median 10: 110 and 40.1 are stalls
    short = Sent(2, [100, 300, 301])  # too few gaps to judge
    found = section(handmade([calm, hit, short, Sent(125, [239])]))["stalls"]
    assert (found["gaps"], found["unjudged_gaps"]) == (12, 2)
    assert (found["count"], found["requests"]) == (2, 1)
    assert found["share"] == pytest.approx(2 / 12, abs=1e-6)
    assert found["total_ms"] == pytest.approx(150.1)
    assert found["excess_ms"] == pytest.approx(130.1)
    assert found["largest_ms"] == 110
    assert (found["over_prefill"], found["over_prefill_share"]) == (1, 0.5)


def test_a_gap_of_three_times_the_median_is_no_stall() -> None:
    assert section(handmade([Sent(0, [0, 10, 20, 30, 40, 70, 80])]))["stalls"]["count"] == 0


@given(st.lists(st.lists(st.integers(0, 1 << 36), min_size=1, max_size=9), min_size=1, max_size=6))
def test_stalls_of_all_requests_at_once_are_those_of_each(lengths: list[list[int]]) -> None:
    flat = ints([n for each in lengths for n in each])
    none = np.zeros(flat.size, np.uint8)
    counts = ints([len(each) for each in lengths])
    gaps = Gaps(flat, flat, np.ones(flat.size, np.int32), counts, none, none, none > 0)
    found = stalls.find(gaps)
    medians = [sorted(each)[(len(each) + 1) // 2 - 1] for each in lengths]
    late = [[n for n in each if n > 3 * m] for each, m in zip(lengths, medians, strict=True) if len(each) >= 5]
    assert (found.count, found.total) == (sum(map(len, late)), sum(map(sum, late)))
    assert found.requests == sum(map(bool, late))
    assert found.largest == max((n for each in late for n in each), default=None)


def test_ttft_against_queue_depth_by_hand() -> None:
    sent = [Sent(10.0 * k, [200 + 10 * k]) for k in range(6)]  # each finds one more in prefill
    rows = section(handmade(sent))["ttft_by_queue_depth"]
    assert [(row["bin"], row["n"]) for row in rows] == [("0", 1), ("1", 1), ("2-3", 2), ("4-7", 2), ("8+", 0)]
    assert rows[0] == {"bin": "0", "n": 1, "mean": 200, "p50": 200, "p95": 200}
    assert rows[-1]["mean"] is None


def test_bins_hold_every_token_and_every_gap() -> None:
    run = open_run(requests=400, tokens=30, tokens_per_chunk=3)
    facts = gather(run.data())
    found = interference.describe(facts)
    for rows in (found["itl_by_prefills"], found["itl_by_prefill_tokens"]):
        assert sum(row["n"] for row in rows) == facts.metrics["itl"].n
        assert sum(row["gaps"] for row in rows) == facts.metrics["icl"].n
    parts = found["without_prefill"], found["with_prefill"]
    assert sum(part["n"] * part["mean"] for part in parts) == pytest.approx(
        facts.metrics["itl"].n * (facts.metrics["itl"].mean or 0) / 1e6, rel=1e-3
    )
    assert sum(row["n"] for row in found["ttft_by_queue_depth"]) == facts.metrics["ttft_service"].n


def test_memory_stays_below_the_budget() -> None:
    """150 MB for two million chunks."""
    facts = gather(open_run(requests=1000, rate=25, tokens=150, warmup=0, cooldown=0).data())
    interference.describe(facts)
    tracemalloc.start()
    try:
        interference.describe(facts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 75 * len(facts.run.chunks) + 1_000_000


COST = {
    "base": 8e-3,
    "per_prefill_token": 40e-6,
    "per_sequence": 50e-6,
    "per_context_token": 0,
    "max_num_batched_tokens": 512,
}
MIX = {
    "classes": [
        {"name": "chat", "weight": 3, "input_tokens": 50, "output_tokens": 60},
        {"name": "document", "weight": 1, "input_tokens": 1500, "output_tokens": 20},
    ]
}


def step_ratio(steps: list[dict[str, int]], start: float, end: float, *, waiting: bool) -> float:
    """The engine's own ratio: mean length of the steps with and without a prefill, each weighted by its decodes."""
    sums = {True: np.zeros(2), False: np.zeros(2)}
    for step in steps:
        decodes = step["decode_sequences"]
        if start <= step["end_ns"] < end and decodes:
            busy = step["prefill_tokens"] > 0 or (waiting and step["waiting"] > 0)
            sums[busy] += decodes * (step["end_ns"] - step["start_ns"]), decodes
    means = {busy: time / tokens for busy, (time, tokens) in sums.items()}
    return float(means[True] / means[False])


def test_the_ratio_agrees_with_the_step_log_of_the_simulated_engine(tmp_path: Path) -> None:
    mixed = scenario(tmp_path, {"poisson": "9/s", "duration": "10s", "warmup": "1s"}, workload=MIX)
    with start_sim(COST, "toy", step_log=tmp_path / "steps") as sim:
        result = execute(mixed, sim.url, tmp_path / "run")
        sim.stop()
    steps = [json.loads(line) for line in (tmp_path / "steps").read_text().splitlines()]
    phases, found = result.summary["phases"], result.summary["interference"]
    start, end = (phases["start_ns"] + 1e9 * phases[f"{name}_end_s"] for name in ("warmup", "measured"))
    for key, waiting in (("ratio", False), ("ratio_any_overlap", True)):
        truth = step_ratio(steps, start, end, waiting=waiting)
        assert found[key]["low"] < truth < found[key]["high"], (key, truth, found[key])
        assert found[key]["low"] > 1
    assert found["ratio"]["value"] > found["ratio_any_overlap"]["value"]
    assert found["with_prefill"]["mean"] > 1.2 * found["without_prefill"]["mean"]
    assert found["stalls"]["over_prefill_share"] > 0.5
    assert sum(result.summary["phases_joined"]["shares"].values()) == pytest.approx(1, abs=1e-5)
