from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from queueing import Arms, two_arms
from servebench.experiment.comparison.effect import Effect
from servebench.experiment.comparison.effects import Figures, Rules, judge_candidates, trade
from servebench.experiment.comparison.noise import noise_floors

FAMILY = ("ttft.p99", "ttft.p50")
EXPERIMENTS = 1_000
BOTH = ("arrivals", "service")


def judge_paired(base: Figures, cand: Figures, family: Sequence[str], **options: Any) -> list[Effect]:
    """The effects of a candidate alone: value i of both sides is of one plan."""
    return judge_candidates({"": (base, cand)}, Rules(family, True, **options))[""]


def judge_unpaired(base: Figures, cand: Figures, family: Sequence[str], **options: Any) -> list[Effect]:
    """The same of two sets of runs that are no pairs."""
    return judge_candidates({"": (base, cand)}, Rules(family, False, **options))[""]


def one(base: list[float | None], cand: list[float | None], figure: str = "ttft.p99", **options: float) -> Effect:
    """The paired effect on a family of one figure."""
    return judge_paired({figure: base}, {figure: cand}, [figure], **options)[0]


def around(centre: float, spread: float = 0.01, n: int = 6, seed: int = 1) -> list[float]:
    """Values scattered about `centre` by a share of it."""
    return list(centre * np.exp(np.random.default_rng(seed).normal(0, spread, n)))


# --- estimates, by hand


def test_ratio_is_the_median_of_the_pairs_ratios() -> None:
    effect = one([10, 20, 40], [11, 24, 40])
    assert effect.ratio == pytest.approx(1.1)
    assert (effect.n, effect.base, effect.cand) == (3, 20, 24)


def test_unpaired_ratio_is_that_of_the_geometric_means() -> None:
    effect = judge_unpaired({"ttft.p99": [10, 40]}, {"ttft.p99": [30, 30, 30]}, ["ttft.p99"])[0]
    assert effect.ratio == pytest.approx(1.5)
    assert (effect.n, effect.n_base, effect.n_cand) == (None, 2, 3)


def test_interval_of_six_pairs_is_their_range_at_what_it_really_reaches() -> None:
    ratios = [0.90, 0.93, 0.91, 0.95, 0.92, 0.94]
    effect = one([100.0] * 6, [100 * ratio for ratio in ratios])
    assert (effect.low, effect.high) == (pytest.approx(0.90), pytest.approx(0.95))
    assert effect.confidence == 1 - 2 / 64
    assert effect.p == effect.least_p == 2 / 64


def test_interval_holds_the_estimate_where_the_tests_own_would_not() -> None:
    effect = one([100.0] * 13, [*[100.0] * 7, *[150.0] * 6])  # the mean's interval leaves out 1, the median is 1
    assert effect.p == pytest.approx(2 / 64)
    assert (effect.ratio, effect.low) == (1, 1)


# --- verdicts


def test_better_and_worse_follow_the_figures_direction() -> None:
    less, more = around(90), around(110, seed=2)
    assert one([100.0] * 6, less).verdict == "better"
    assert one([100.0] * 6, more).verdict == "worse"
    assert one([100.0] * 6, more, "output_tokens_per_s").verdict == "better"
    assert one([100.0] * 6, less, "output_tokens_per_s").verdict == "worse"


def test_small_effect_is_no_difference_though_it_is_real() -> None:
    effect = one([100.0] * 6, around(102, 0.001))
    assert effect.p == 2 / 64
    assert effect.verdict == "no difference"
    assert one([100.0] * 6, around(102, 0.001), min_effect=0.01).verdict == "worse"


def test_real_effect_whose_interval_reaches_beyond_what_matters_is_no_difference_and_says_so() -> None:
    effect = one([100.0] * 6, [101, 102, 102, 102, 102, 105])
    assert effect.high == pytest.approx(1.05)
    assert effect.verdict == "no difference"
    assert effect.reason == "real (p 0.031), but smaller than the 3 % that matter"


def test_no_difference_when_the_interval_lies_within_what_matters() -> None:
    effect = one([100.0] * 6, [99, 101, 100, 102, 98, 100])
    assert effect.verdict == "no difference"
    assert effect.reason == "the whole interval lies within the 3 % that matter"


def test_pairs_of_two_kinds_are_no_claim_in_either_direction() -> None:
    """11 of 20 pairs gain 4 %, nine lose much: the test is sure of a loss, while the median gains."""
    effect = one([100.0] * 20, [*[96.0] * 11, *[270.0] * 9])
    assert effect.p is not None
    assert effect.p < 0.01
    assert effect.ratio == pytest.approx(0.96)
    assert effect.verdict == "undecided"
    assert "but the pairs are of two kinds: their median and mean do not agree" in effect.reason
    lost = one([100.0] * 13, [*[100.0] * 7, *[150.0] * 6])
    assert (lost.ratio, lost.verdict) == (1, "undecided"), "six of 13 that lose half are not no difference"


def test_wide_scatter_is_undecided_and_more_pairs_would_settle_it() -> None:
    effect = one([100.0] * 6, [104, 90, 112, 98, 107, 95])
    assert effect.verdict == "undecided"
    assert effect.more_runs is not None
    assert effect.more_runs > 6
    assert effect.power is not None
    assert effect.power < 0.5


def test_noise_floor_above_the_effect_takes_as_many_pairs_as_it_takes_to_fall_below() -> None:
    sides = {"ttft.p99": [100.0] * 6}, {"ttft.p99": around(90, 0.001)}
    effect = judge_paired(*sides, ["ttft.p99"], floors={"ttft.p99": 1.15})[0]
    assert effect.more_runs == math.ceil(6 * (math.log(1.15) / abs(math.log(effect.ratio or 0))) ** 2) - 6
    assert effect.power == 1.0, "of the test, for the 3 % that matter"


def test_hopeless_scatter_says_that_very_many_pairs_would_be_needed() -> None:
    effect = one([100.0] * 6, [400, 20, 300, 30, 900, 10])
    assert effect.more_runs is None
    assert "more than 200 pairs would be needed" in effect.reason


def test_effect_within_the_noise_floor_is_undecided() -> None:
    base, cand = [100.0] * 6, around(90)
    floors = {"ttft.p99": 1.15}
    effect = judge_paired({"ttft.p99": base}, {"ttft.p99": cand}, ["ttft.p99"], floors=floors)[0]
    assert (effect.verdict, effect.floor) == ("undecided", 1.15)
    assert effect.reason.startswith("not further apart than two equal arms may be (15 %)")
    assert judge_paired({"ttft.p99": base}, {"ttft.p99": cand}, ["ttft.p99"], floors={"ttft.p99": 1.05})[0].verdict == (
        "better"
    )


@pytest.mark.parametrize("pairs", range(1, 6))
def test_too_few_pairs_get_an_estimate_and_no_p(pairs: int) -> None:
    effect = one([100.0] * pairs, [50.0] * pairs)
    assert effect.ratio == 0.5
    assert (effect.p, effect.p_adjusted, effect.low, effect.confidence) == (None, None, None, None)
    assert effect.verdict == "undecided"
    assert effect.least_p == 2 / 2**pairs
    assert effect.more_runs == 6 - pairs
    noun = "pair" if pairs == 1 else "pairs"
    assert effect.reason == f"{pairs} {noun} can never reach the level of 0.05 (6 pairs can)"


def test_three_runs_each_can_never_reach_the_level_unpaired() -> None:
    effect = judge_unpaired({"ttft.p99": [100.0] * 3}, {"ttft.p99": [50.0] * 3}, ["ttft.p99"])[0]
    assert (effect.p, effect.least_p, effect.more_runs) == (None, pytest.approx(0.1), 1)
    assert effect.reason == "3 and 3 runs can never reach the level of 0.05 (4 runs each can)"


def test_unequal_sets_are_judged_by_what_they_can_reach() -> None:
    effect = judge_unpaired({"ttft.p99": around(100, n=3)}, {"ttft.p99": around(50, n=9, seed=2)}, ["ttft.p99"])[0]
    assert effect.verdict == "better"
    assert effect.p == pytest.approx(2 / math.comb(12, 3))


def test_all_pairs_alike() -> None:
    assert one([100.0] * 6, [100.0] * 6).verdict == "no difference"
    halved = one([100.0] * 6, [50.0] * 6)
    assert (halved.verdict, halved.low, halved.high, halved.p) == ("better", 0.5, 0.5, 2 / 64)


# --- missing and zero


def test_pairs_without_the_figure_are_left_out_of_that_figure_only() -> None:
    base = {"ttft.p99": [100.0] * 6, "itl.p99": [10.0, None, 10, 10, 10, 10]}
    cand = {"ttft.p99": [90.0] * 6, "itl.p99": [9.0, 9, 9, None, 9, 9]}
    ttft, itl = judge_paired(base, cand, ["ttft.p99", "itl.p99"])
    assert (ttft.n, itl.n) == (6, 4)


def test_missing_figure_of_the_family_is_shown_with_its_reason() -> None:
    base, cand = {"ttft.p99": [100.0] * 6, "itl.p99": [None] * 6}, {"ttft.p99": [90.0] * 6, "itl.p99": [9.0] * 6}
    ttft, itl = judge_paired(base, cand, ["ttft.p99", "itl.p99"])
    assert ttft.p_adjusted == ttft.p, "what cannot be tested takes no share"
    assert (itl.verdict, itl.reason, itl.ratio) == ("undecided", "no pair has it in both runs", None)
    assert judge_unpaired(base, cand, ["itl.p99"])[0].reason == "no run of the base has it"


def test_figure_that_may_be_zero_is_a_difference_and_never_tested() -> None:
    base = {"ttft.p99": [100.0] * 6, "failed_share": [0.0] * 6}
    cand = {"ttft.p99": [90.0] * 6, "failed_share": [0, 0, 0, 0.2, 0.2, 0.2]}
    failed = judge_paired(base, cand, ["ttft.p99", "failed_share"])[1]
    assert (failed.kind, failed.role, failed.verdict, failed.p) == ("difference", "estimate", "not tested", None)
    assert (failed.ratio, failed.low, failed.high) == (pytest.approx(0.1), 0.0, 0.2)


def test_zero_in_a_ratio_figure_leaves_it_untested_with_a_reason() -> None:
    effect = one([1.0] * 6, [0.0, 1, 1, 1, 1, 1], "goodput_per_s")
    assert (effect.kind, effect.verdict, effect.p) == ("difference", "undecided", None)
    assert effect.reason == "0 in a run, so that no ratio can be taken"


def test_figures_outside_the_family_are_estimates() -> None:
    both = {"ttft.p99": around(100), "e2e.p50": around(500), "stall.p50": [None] * 6}
    primary, other = judge_paired(both, both, ["ttft.p99"])
    assert (primary.role, other.role) == ("primary", "estimate")
    assert (other.figure, other.verdict, other.p, other.least_p, other.power) == (
        "e2e.p50",
        "not tested",
        None,
        None,
        None,
    )
    assert other.low is not None


# --- families and candidates


def test_family_of_three_needs_seven_pairs() -> None:
    figures = ["ttft.p99", "itl.p99", "e2e.p99"]
    for pairs, decided in ((6, 1), (7, 3)):
        base, cand = {name: [100.0] * pairs for name in figures}, {name: [80.0] * pairs for name in figures}
        effects = judge_paired(base, cand, figures)
        assert [effect.verdict for effect in effects].count("better") == decided
        assert [effect.p is not None for effect in effects].count(True) == decided
    assert "shared by 3 tests (7 pairs can)" in judge_paired(*_first(6, figures), figures)[1].reason


def _first(pairs: int, figures: list[str]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    return {name: [100.0] * pairs for name in figures}, {name: [80.0] * pairs for name in figures}


def test_candidates_share_one_chance_of_a_false_alarm() -> None:
    sides = {name: ({"ttft.p99": [100.0] * 6}, {"ttft.p99": [90.0] * 6}) for name in ("a", "b")}
    found = judge_candidates(sides, Rules(["ttft.p99"], paired=True))
    assert [found[name][0].p for name in "ab"] == [None, None], "2/64 for two tests is above 5 %"
    sides = {name: ({"ttft.p99": [100.0] * 7}, {"ttft.p99": [90.0] * 7}) for name in ("a", "b")}
    found = judge_candidates(sides, Rules(["ttft.p99"], paired=True))
    assert [found[name][0].p_adjusted for name in "ab"] == [4 / 128, 4 / 128]


def test_trade_is_told_in_one_sentence_and_only_when_there_is_one() -> None:
    figures = ["ttft.p99", "itl.p99"]
    base = {"ttft.p99": [100.0] * 6, "itl.p99": [10.0] * 6}
    traded = judge_paired(base, {"ttft.p99": [122.0] * 6, "itl.p99": [6.2] * 6}, figures)
    assert trade(traded) == "A trade: inter-token latency, p99 −38.0 % for time to first token, p99 +22.0 %."
    assert trade(judge_paired(base, {"ttft.p99": [80.0] * 6, "itl.p99": [6.2] * 6}, figures)) is None


# --- the noise floor


def floor(*again: float) -> float:
    """The floor of runs of 100 each and their repetitions."""
    return noise_floors({"ttft.p99": [100.0] * len(again)}, {"ttft.p99": again})["ttft.p99"]


def test_noise_floor_is_that_of_a_median_of_as_many_pairs() -> None:
    random = np.random.default_rng(1)
    floors = np.log([floor(*100 * np.exp(random.normal(0, 0.02, 6))) for _ in range(200)])
    medians = np.median(random.normal(0, 0.02, (20_000, 6)), axis=1)
    assert float(np.median(floors)) == pytest.approx(float(np.quantile(np.abs(medians), 0.95)), rel=0.15)


def test_about_nine_of_ten_equal_experiments_stay_below_the_floor_of_six_pairs() -> None:
    random = np.random.default_rng(2)
    floors = np.log([floor(*100 * np.exp(random.normal(0, 0.02, 6))) for _ in range(200)])
    others = np.abs(np.median(random.normal(0, 0.02, (20_000, 6)), axis=1))
    assert 0.88 <= float((others[:, None] < floors).mean()) <= 0.95


def test_noise_floor_hardly_minds_one_odd_pair_but_does_mind_a_drift() -> None:
    assert floor(100, 101, 99, 100, 101, 300) < 1.1
    assert floor(*[105] * 6) == pytest.approx(1.05)


def test_noise_floor_of_few_pairs() -> None:
    assert floor(102) == floor(100 / 1.02) == pytest.approx(1.02)
    assert floor(100, 100) == 1.0


def test_figures_without_pairs_or_ratios_have_no_floor() -> None:
    base = {"ttft.p99": [None, 1.0], "goodput_per_s": [0.0, 1], "failed_share": [0.1, 0.1], "itl.p50": [1.0, 1]}
    again = {"ttft.p99": [1.0, None], "goodput_per_s": [1.0, 1], "failed_share": [0.1, 0.1]}
    assert noise_floors(base, again) == {}


# --- against queues whose truth is known (issue: A/A at most 7 %, power at least 80 %, coverage 90 to 98 %)


def judged(arms: Arms, runs: int, *, paired: bool = True, **options: float) -> tuple[list[list[Effect]], float]:
    """The effects of many experiments, and the true log ratio of the primary figure."""
    base, cand = two_arms(EXPERIMENTS, runs, arms, seed=20261130)
    judge = judge_paired if paired else judge_unpaired
    effects = [
        judge(
            *({f: side[f.split(".")[1]][i] for f in FAMILY} for side in (base, cand)), FAMILY, outlook=False, **options
        )
        for i in range(EXPERIMENTS)
    ]
    logs = np.log(base["p99"]), np.log(cand["p99"])
    truth = float(np.median(logs[1] - logs[0])) if paired else float(logs[1].mean() - logs[0].mean())
    return effects, truth


def share(effects: list[list[Effect]], *verdicts: str, primary: bool = False) -> float:
    """Share of experiments in which any figure, or the primary one, has one of the verdicts."""
    return float(np.mean([any(e.verdict in verdicts for e in each[: 1 if primary else None]) for each in effects]))


def coverage(effects: list[list[Effect]], truth: float) -> float:
    """Share of experiments whose interval of the primary figure holds the truth."""
    ends = [(math.log(each[0].low or 0), math.log(each[0].high or 0)) for each in effects]
    return float(np.mean([low - 1e-7 <= truth <= high + 1e-7 for low, high in ends]))


@pytest.mark.parametrize("rho", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("shared", [("arrivals",), BOTH])
def test_equal_arms_in_pairs_are_rarely_told_apart(rho: float, shared: tuple[str, ...]) -> None:
    effects, truth = judged(Arms(rho, share=shared, noise=0.02), 6, min_effect=0.0)
    assert share(effects, "better", "worse") <= 0.07
    assert share(effects, "better", "worse", primary=True) <= 0.07
    assert 0.90 <= coverage(effects, truth) <= 0.98


@pytest.mark.parametrize("rho", [0.5, 0.8, 0.9])
def test_equal_sets_of_runs_are_rarely_told_apart(rho: float) -> None:
    effects, truth = judged(Arms(rho), 5, paired=False, min_effect=0.0)
    assert share(effects, "better", "worse") <= 0.07
    assert share(effects, "better", "worse", primary=True) <= 0.07
    assert 0.90 <= coverage(effects, truth) <= 0.98


def test_faster_service_is_found_in_six_pairs() -> None:
    effects, truth = judged(Arms(0.5, share=BOTH, noise=0.01, change=0.95), 6, min_effect=0.03)
    assert share(effects, "better", primary=True) >= 0.80
    assert share(effects, "worse", primary=True) == 0
    assert math.exp(truth) == pytest.approx(0.92, abs=0.01), "waiting shrinks, too, by more than service does"
    assert 0.90 <= coverage(effects, truth) <= 0.98


def test_faster_service_is_found_beyond_the_measured_noise() -> None:
    same, faster = (Arms(0.5, share=BOTH, noise=0.01, change=change) for change in (1.0, 0.95))
    (base, again), (ours, theirs) = two_arms(EXPERIMENTS, 6, same, seed=1), two_arms(EXPERIMENTS, 6, faster, seed=2)
    found = 0
    for i in range(EXPERIMENTS):
        floors = noise_floors({"ttft.p99": base["p99"][i]}, {"ttft.p99": again["p99"][i]})
        sides = {"ttft.p99": ours["p99"][i]}, {"ttft.p99": theirs["p99"][i]}
        found += judge_paired(*sides, ["ttft.p99"], floors=floors, outlook=False)[0].verdict == "better"
    assert found / EXPERIMENTS >= 0.80
