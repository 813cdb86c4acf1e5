"""The gate on made-up runs: equal code passes, slower code fails, and what cannot be judged is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gate_sets import SCENARIO, queues, run
from servebench.errors import UsageError
from servebench.experiment.cell import Outcome
from servebench.experiment.gate import Rules, judge_gate
from servebench.experiment.gate.limits import parse_limit

TRIALS = 20


def gate(candidate: list[Outcome], baseline: list[Outcome], *limits: str, **rules: Any) -> dict[str, Any]:
    return judge_gate(candidate, baseline, Rules(tuple(map(parse_limit, limits)), **rules))


def sets(name: str, *values: float, figure: str = "e2e.mean", **more: Any) -> list[Outcome]:
    return [run(f"{name}/r{i}", figures={figure: value}, **more) for i, value in enumerate(values)]


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in found["checks"] if each["figure"] == name)


def code(found: dict[str, Any], name: str) -> dict[str, str]:
    return next(each for each in found["verdict"]["codes"] if each["code"] == name)


def trial(slower: float, noise: np.random.Generator, limits: Sequence[str]) -> int:
    """The exit code of a gate of three runs against five."""
    return int(gate(queues("cand", 3, slower, noise), queues("base", 5, 1.0, noise), *limits)["exit_code"])


BASE = (100.0, 101.0, 99.0, 100.5, 99.5)  # s = 0.79 %


class TestEqualAndSlower:
    """The promise: equal code passes 20 of 20, a server that is 10 % slower fails 19 of 20 or more."""

    @pytest.mark.parametrize("limits", [(), ("e2e.mean < +5%", "ttft.p95 < +5%")])
    def test_equal_code_passes_every_time(self, limits: tuple[str, ...]) -> None:
        noise = np.random.default_rng(20261130)
        found = [
            gate(queues("cand", 3, 1.0, noise), queues("base", 5, 1.0, noise), *limits)["exit_code"]
            for _ in range(TRIALS)
        ]
        assert found == [0] * TRIALS

    @pytest.mark.parametrize("limits", [(), ("e2e.mean < +5%", "ttft.p95 < +5%")])
    def test_a_tenth_slower_fails_nineteen_times_at_least(self, limits: tuple[str, ...]) -> None:
        noise = np.random.default_rng(20261130)
        found = [
            gate(queues("cand", 3, 1.1, noise), queues("base", 5, 1.0, noise), *limits)["exit_code"]
            for _ in range(TRIALS)
        ]
        assert sum(code == 4 for code in found) >= TRIALS - 1
        assert set(found) <= {0, 4}

    def test_plans_by_pairs_find_it_too(self) -> None:
        """Six seeds on both sides: the spread between plans, which is large, is not in the differences."""
        noise, seeds = np.random.default_rng(1), range(1, 7)
        equal, slower = (
            [gate(queues("cand", 6, by, noise, seeds), queues("base", 6, 1.0, noise, seeds)) for _ in range(TRIALS)]
            for by in (1.0, 1.1)
        )
        assert {each["exit_code"] for each in equal} == {0}
        assert sum(each["exit_code"] == 4 for each in slower) >= TRIALS - 1
        assert {check["design"] for each in slower for check in each["checks"] if check["design"]} == {"pairs"}

    def test_without_common_plans_their_spread_counts_and_the_gate_says_so(self) -> None:
        noise = np.random.default_rng(1)
        base, cand = queues("base", 6, 1.0, noise, range(1, 7)), queues("cand", 3, 1.1, noise, range(11, 14))
        found = gate(cand, base)
        assert named(found, "e2e.mean")["design"] == "separate plans"
        assert named(found, "e2e.mean")["limit"] > 0.1
        assert "one seed" in code(found, "gate.plans")["next"]


class TestNoiseLimits:
    def test_the_limit_is_what_chance_does_by_the_baseline_alone(self) -> None:
        """t(1 - 0.001/6; 4) = 11.44; the medians of 5 and 3 normal values have the variances 0.2868 and 0.4487."""
        found = named(gate(sets("cand", 100, 100, 100), sets("base", *BASE)), "e2e.mean")
        s = float(np.std(np.log(BASE), ddof=1))
        assert found["limit"] == pytest.approx(math.expm1(11.439 * s * math.sqrt(0.2868 + 0.4487)), rel=1e-3)
        wilder = named(gate(sets("cand", 50, 100, 200), sets("base", *BASE)), "e2e.mean")
        assert wilder["limit"] == found["limit"]

    def test_a_quiet_baseline_still_allows_three_percent(self) -> None:
        quiet = sets("base", *[100.0] * 5)
        assert gate(sets("cand", *[102.9] * 3), quiet)["exit_code"] == 0
        found = gate(sets("cand", *[103.1] * 3), quiet)
        assert found["exit_code"] == 4
        assert named(found, "e2e.mean")["limit"] == pytest.approx(0.03)

    def test_one_disturbed_run_of_three_does_not_fail_the_gate(self) -> None:
        assert gate(sets("cand", 100, 130, 100), sets("base", *BASE))["exit_code"] == 0
        assert gate(sets("cand", 130, 130, 100), sets("base", *BASE))["exit_code"] == 4

    def test_what_is_better_when_higher_fails_downwards_only(self) -> None:
        def rates(name: str, *values: float) -> list[Outcome]:
            scenario = SCENARIO | {"load": {"closed": {"concurrency": 4}}}
            each = [{"output_tokens_per_s": value} for value in values]
            return [run(f"{name}/r{i}", throughput=rate, scenario=scenario) for i, rate in enumerate(each)]

        base = rates("base", 100, 100, 100, 100, 100)
        assert gate(rates("up", 110, 110, 110), base)["exit_code"] == 0
        found = gate(rates("down", 90, 90, 90), base)
        assert found["exit_code"] == 4
        assert named(found, "output_tokens_per_s")["limit"] == pytest.approx(-0.03)
        assert named(found, "output_tokens_per_s")["change"] == pytest.approx(-0.1)

    def test_an_improvement_beyond_the_noise_asks_for_a_new_baseline(self) -> None:
        found = gate(sets("cand", 80, 80, 80), sets("base", *BASE))
        assert found["exit_code"] == 0
        assert "a new baseline" in named(found, "e2e.mean")["text"]

    def test_too_few_baseline_runs_fall_back_to_a_stated_limit_and_say_so(self) -> None:
        found = gate(sets("cand", 109, 109, 109), sets("base", 100, 100, 100))
        check = named(found, "e2e.mean")
        assert (found["exit_code"], check["source"], check["noise"]) == (0, "stated", None)
        assert check["limit"] == pytest.approx(0.10)
        assert "3 baseline runs do not say how far equal runs lie apart" in code(found, "gate.few_runs")["text"]
        single = gate(sets("cand", 100), sets("base", 100))
        assert code(single, "gate.few_runs")["text"].startswith("1 baseline run does not say")
        assert gate(sets("cand", 111, 111, 111), sets("base", 100, 100, 100))["exit_code"] == 4

    def test_a_gate_that_finds_only_large_changes_says_so(self) -> None:
        found = gate(sets("cand", 100, 110, 90), sets("base", 100, 140, 70, 120, 85))
        assert "take longer runs" in code(found, "gate.blunt")["next"]


class TestGivenLimits:
    def test_beyond_the_limit_and_beyond_chance_fails(self) -> None:
        found = gate(sets("cand", 120, 121, 119), sets("base", *BASE), "e2e.mean < +5%")
        check = named(found, "e2e.mean")
        assert (found["exit_code"], check["status"], check["name"]) == (4, "fail", "e2e.mean < +5%")
        assert check["change"] == pytest.approx(0.2)
        assert check["limit"] == pytest.approx(0.05)

    def test_beyond_the_limit_within_chance_is_undecided_and_passes_unless_strict(self) -> None:
        arguments = sets("cand", 104, 104, 104), sets("base", *BASE), "e2e.mean < +2%"
        found = gate(*arguments)
        check = named(found, "e2e.mean")
        assert (found["exit_code"], check["status"]) == (0, "undecided")
        assert check["noise"] > 0.04
        assert "11 runs on each side would settle it" in check["text"]
        assert gate(*arguments, strict=True)["exit_code"] == 4

    def test_the_runs_that_are_asked_for_do_settle_it(self) -> None:
        """As many runs as the sentence wants, with the spread of the five."""
        s = float(np.std(np.log(BASE), ddof=1))
        steps = np.linspace(-1, 1, 11)
        base = 100 * np.exp(s * steps / steps.std(ddof=1))
        found = gate(sets("cand", *[104.0] * 11), sets("base", *base), "e2e.mean < +2%")
        assert named(found, "e2e.mean")["status"] == "fail"
        fewer = gate(sets("cand", *[104.0] * 5), sets("base", *BASE), "e2e.mean < +2%")
        assert named(fewer, "e2e.mean")["status"] == "undecided"

    def test_within_the_limit_passes_whatever_the_noise(self) -> None:
        assert gate(sets("cand", 104.9), sets("base", 100.0), "e2e.mean < +5%")["exit_code"] == 0

    def test_with_too_few_baseline_runs_the_given_limit_decides_alone(self) -> None:
        found = gate(sets("cand", 106.0), sets("base", 100.0), "e2e.mean < +5%")
        assert found["exit_code"] == 4
        assert "given limits decide alone" in code(found, "gate.few_runs")["text"]

    @pytest.mark.parametrize(("values", "exit_code"), [((799, 700, 900), 0), ((801, 700, 900), 4)])
    def test_an_absolute_limit_holds_for_the_middle_run(self, values: tuple[float, ...], exit_code: int) -> None:
        found = gate(sets("cand", *values), sets("base", 100, 100), "e2e.mean < 800ms")
        assert found["exit_code"] == exit_code
        assert not [each for each in found["verdict"]["codes"] if each["code"] == "gate.few_runs"]

    def test_a_share_is_averaged_so_that_one_bad_run_counts(self) -> None:
        base, cand = sets("base", *[100.0] * 5), sets("cand", 100, 100)
        cand.append(run("cand/bad", figures={"e2e.mean": 100.0}, failed=6))
        assert gate(cand, base, "failed_share < 0.5%")["exit_code"] == 4
        assert gate(cand, base, "failed_share < 2%")["exit_code"] == 0

    def test_a_figure_that_no_run_has_is_no_pass(self) -> None:
        found = gate(sets("cand", 100), sets("base", *BASE), "j_per_output_token < +5%")
        assert (found["exit_code"], found["status"]) == (3, "invalid")
        assert "no run of the candidate has j_per_output_token" in code(found, "gate.no_figure")["text"]

    def test_a_default_figure_that_no_run_has_is_said_and_no_more(self) -> None:
        found = gate(sets("cand", 100, 100, 100), sets("base", *BASE))
        assert found["exit_code"] == 0
        assert named(found, "ttft.p50")["status"] == "not judged"
        assert any(each["text"].startswith("not judged: ttft.p50") for each in found["verdict"]["codes"])


class TestFailures:
    def test_more_failures_than_chance_fail_the_gate_whatever_the_speed(self) -> None:
        base = sets("base", *BASE)
        fast = [run(f"cand/r{i}", figures={"e2e.mean": 50.0}, failed=8) for i in range(3)]
        found = gate(fast, base)
        assert found["exit_code"] == 4
        assert named(found, "failed_share")["text"] == "24 of 600 requests failed, 0 of 1,000 in the baseline"

    def test_a_few_failures_are_chance(self) -> None:
        assert gate(sets("cand", 100, 100, 100, failed=1), sets("base", *BASE))["exit_code"] == 0

    def test_as_many_failures_as_the_baseline_pass(self) -> None:
        assert gate(sets("cand", *[100] * 3, failed=9), sets("base", *BASE, failed=9))["exit_code"] == 0


class TestNotComparable:
    @pytest.mark.parametrize(
        ("more", "name", "said"),
        [
            ({"scenario": SCENARIO | {"workload": {"input_tokens": 30}}}, "runs.workload", "workload.input_tokens"),
            ({"scenario": SCENARIO | {"load": {"poisson": 60.0}}}, "runs.workload", "load.poisson is 50.0 in"),
            ({"model": "other"}, "runs.model", "the models differ: m against other"),
            ({"verdict": "INVALID"}, "runs.invalid", "INVALID"),
            ({"profile": {"tool": "nsys"}}, "runs.profiled", "a profiler was attached to the server of cand/r0"),
        ],
    )
    def test_it_judges_nothing_and_exits_with_3(self, more: dict[str, Any], name: str, said: str) -> None:
        found = gate(sets("cand", 100, 100, 100, **more), sets("base", *BASE))
        assert (found["exit_code"], found["status"], found["checks"]) == (3, "invalid", [])
        assert said in code(found, name)["text"]

    def test_an_invalid_baseline_run_is_left_out_and_said(self) -> None:
        base = [*sets("base", *BASE), *sets("bad", 500, verdict="INVALID")]
        found = gate(sets("cand", 100, 100, 100), base)
        assert found["exit_code"] == 0
        assert [each["path"] for each in found["runs"]["left_out"]] == ["bad/r0"]
        assert len(found["runs"]["baseline"]) == 5
        assert "left out: bad/r0: INVALID" in code(found, "baseline.invalid")["text"]

    def test_a_baseline_of_invalid_runs_only_is_none(self) -> None:
        found = gate(sets("cand", 100), sets("bad", 100, 100, verdict="INVALID"))
        assert (found["exit_code"], found["checks"]) == (3, [])

    def test_a_run_on_both_sides_is_refused(self) -> None:
        with pytest.raises(UsageError, match="is a candidate and in the baseline; give --baseline a folder"):
            gate(sets("base", 100), sets("base", *BASE))

    def test_another_seed_is_comparable(self) -> None:
        cand = [run("cand/r0", figures={"e2e.mean": 100.0}, plan="plan-2")]
        assert gate(cand, sets("base", *BASE))["status"] == "passed"


def test_quantiles_below_their_floor_are_named() -> None:
    cand = sets("cand", 100, 100, figure="ttft.p95")
    cand[0].summary["metrics"]["ttft"] |= {"n": 90, "below_floor": ["p95"]}
    found = gate(cand, sets("base", *BASE, figure="ttft.p95"))
    assert "ttft.p95 (at least 90)" in code(found, "gate.floor")["text"]
    assert found["exit_code"] == 0


def test_a_side_of_several_set_ups_is_said() -> None:
    base = [*sets("old", *BASE[:3], servebench="1"), *sets("new", *BASE[3:], servebench="2")]
    found = gate(sets("cand", 100, 100, servebench="2"), base)
    assert code(found, "baseline.mixed")["text"] == "the baseline's runs differ among themselves: servebench"
    assert not [each for each in found["verdict"]["codes"] if each["code"] == "candidate.mixed"]


def test_what_changed_is_listed_but_not_what_follows_from_it() -> None:
    servers = [{"engine": "vllm", "flags": {"max-num-seqs": seqs}} for seqs in (64, 128)]
    old, new = ({"endpoint": {"model": "m", "server": server}} for server in servers)
    found = gate(sets("cand", 100, **new), sets("base", 100, **old))
    assert found["differences"] == [{"key": "engine.vllm.flags.max-num-seqs", "base": 64, "cand": 128, "kind": "set"}]
