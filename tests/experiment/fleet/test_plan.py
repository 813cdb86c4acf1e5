"""Plans: arithmetic that a reader can follow, and what is said about it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servebench.errors import UsageError
from servebench.experiment.fleet import demand
from servebench.experiment.fleet.arithmetic import plain
from servebench.experiment.fleet.demand import Demand, Step
from servebench.experiment.fleet.deployment import Deployment, of_document, read_deployment
from servebench.experiment.fleet.plan import plan
from servebench.experiment.fleet.sizing import Policy, serving

SHAPE = (Step(0, 6, 5, 5), Step(6, 3, 20, 20), Step(9, 9, 50, 50), Step(18, 6, 25, 25))
DAY = demand.of_shape(SHAPE, "a made-up day")


def result(sustained: float | None = 4.2, failed: float | None = 4.8, **more: Any) -> dict[str, Any]:
    """The result of a capacity experiment, as its module documents it."""
    return {
        "sustained_per_s": sustained,
        "failed_per_s": failed,
        "goodput_per_s": sustained,
        "binding": {"objective": "ttft p95", "text": "ttft p95 at 4.8/s: 91 %, 95 % are asked"},
        "slo": [{"objective": "ttft p95", "text": "ttft p95 < 800 ms", "target": 0.95}],
        "tokens": {"input_mean": 900.0, "output_mean": 220.0},
        "energy_j_per_output_token": 0.3,
        "energy_reason": None,
        "engine": {"name": "vllm", "version": "0.32", "model": "m", "flags": {}, "gpus": 1, "gpu": "G"},
        "confirmed": True,
        "simulated": False,
        "random_weights": False,
        "verdict": {"status": "VALID", "exit_code": 0, "codes": []},
    } | more


def deployment(name: str = "one", **more: Any) -> Deployment:
    workload = more.pop("workload", "chat")
    question = {"scenario": {"workload": workload}}
    return of_document({"question": question, "result": result(**more)}, Path("/results") / name)


def evaluated(expression: str) -> float:
    """An expression's value as a pocket calculator has it: units struck out, signs as a calculator has them."""
    if match := re.fullmatch(r"(\S+) rounded up", expression):
        return math.ceil(float(match[1].replace(",", "")))
    text = expression.replace(",", "").replace("×", "*").replace("÷", "/")
    text = re.sub(r"/s\b|[a-zA-Z]+", "", text)
    assert re.fullmatch(r"[-+*/(). 0-9]+", text), text
    return float(eval(text))  # digits and signs only, as asserted


class TestArithmetic:
    @pytest.mark.parametrize(
        "known", [demand.of_peak(50), demand.of_users(2000, 0.013), DAY, demand.scaled_to(demand.of_peak(7), DAY)]
    )
    @pytest.mark.parametrize("policy", [Policy(gpu_hour={"": 2.5}), Policy(0.35, 2, {"": 0.77}, {"": 8})])
    def test_every_line_can_be_repeated_from_its_own_figures(self, known: Demand, policy: Policy) -> None:
        found = plan([deployment()], known, policy)["rows"][0]
        lines = found["lines"]
        assert len(lines) >= 10
        for line in lines:
            assert evaluated(line["expression"]) == pytest.approx(line["value"], rel=2e-5), line

    def test_each_result_is_what_a_later_line_starts_from(self) -> None:
        lines = plan([deployment()], DAY, Policy(gpu_hour={"": 2.5}))["rows"][0]["lines"]
        expressions = " ".join(line["expression"] for line in lines)
        for label in (
            "peak with headroom",
            "replicas for that",
            "replicas in all",
            "cost an hour",
            "cost a day, static",
        ):
            value = next(line["value"] for line in lines if line["label"] == label)
            assert plain(value) in expressions, label

    def test_the_sizes_and_costs_by_hand(self) -> None:
        """60/s over 4.2/s is 14.3: 15 and one spare; 27.5/s on average over the day."""
        row = plan([deployment()], DAY, Policy(gpu_hour={"": 2.5}))["rows"][0]
        assert row["replicas"] == {"serving": 15, "spare": 1, "total": 16, "at_failed_end": 14}
        assert row["gpus"]["total"] == 16
        cost = row["cost"]
        assert cost["per_hour"] == 40
        assert cost["per_million_output_peak"] == pytest.approx(40 / (50 * 220 * 3600 / 1e6))
        assert cost["per_million_total_peak"] == pytest.approx(40 / (50 * 1120 * 3600 / 1e6))
        assert cost["day_static"] == 960
        assert row["by_step"] == [[6, 3], [3, 7], [9, 16], [6, 9]]
        assert cost["gpu_hours_following"] == 6 * 3 + 3 * 7 + 9 * 16 + 6 * 9
        assert cost["day_following"] == pytest.approx(2.5 * cost["gpu_hours_following"])
        mean = (6 * 5 + 3 * 20 + 9 * 50 + 6 * 25) / 24
        assert cost["per_million_output_following"] == pytest.approx(cost["day_following"] / (mean * 220 * 86400 / 1e6))
        assert row["energy"]["kwh_per_day"] == pytest.approx(mean * 86400 * 220 * 0.3 / 3.6e6)

    @pytest.mark.parametrize(
        ("rate", "headroom", "sustained", "replicas"),
        [(10, 0, 5, 2), (10, 0.2, 4, 3), (10, 0.1, 1.1, 10), (10.001, 0, 5, 3), (0.01, 0, 5, 1), (0.3, 0, 0.1, 3)],
    )
    def test_a_whole_quotient_is_not_rounded_up_by_a_binary_fraction(
        self, rate: float, headroom: float, sustained: float, replicas: int
    ) -> None:
        assert serving(rate, headroom, sustained) == replicas

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0, "0"),
            (39_600_000, "39,600,000"),
            (0.05, "0.05"),
            (1 / 3, "0.333333"),
            (2661.12, "2,661.12"),
            (1e-7, "0.0000001"),
        ],
    )
    def test_plain_figures_have_no_exponent(self, value: float, text: str) -> None:
        assert plain(value) == text

    def test_a_day_of_another_length_is_scaled(self) -> None:
        two = demand.of_shape([*SHAPE, *SHAPE], "two days alike")
        once, twice = (plan([deployment()], d, Policy(gpu_hour={"": 2.5}))["rows"][0] for d in (DAY, two))
        assert twice["cost"]["day_following"] == pytest.approx(once["cost"]["day_following"])
        assert twice["energy"]["kwh_per_day"] == pytest.approx(once["energy"]["kwh_per_day"])


class TestSustainedEnd:
    def test_the_middle_of_the_bracket_is_never_used(self) -> None:
        wide, narrow = (
            plan([deployment(failed=failed)], demand.of_peak(50), Policy())["rows"][0] for failed in (40.0, 4.3)
        )
        assert wide["replicas"]["total"] == narrow["replicas"]["total"]
        assert wide["replicas"]["at_failed_end"] < narrow["replicas"]["at_failed_end"]

    def test_nothing_sustained_is_not_planned_and_says_so(self) -> None:
        found = plan([deployment(sustained=None, failed=0.5)], demand.of_peak(50), Policy())
        assert found["rows"] == []
        assert found["not_planned"][0]["reason"] == "no rate was sustained: 0.5 /s failed, and no lower one passed"
        assert found["exit_code"] == 3
        open_ = plan([deployment(sustained=None, failed=None)], demand.of_peak(50), Policy())
        assert "none could be decided" in open_["not_planned"][0]["reason"]

    def test_an_open_bracket_is_marked(self) -> None:
        row = plan([deployment(failed=None)], demand.of_peak(50), Policy())["rows"][0]
        assert row["marks"] == ["BRACKET OPEN ABOVE"]
        assert row["replicas"]["at_failed_end"] is None

    def test_every_reservation_stands_beside_the_row_and_among_the_assumptions(self) -> None:
        codes = [{"level": "warn", "text": "the bracket is wide"}, {"level": "ok", "text": "all is well"}]
        verdict = {"status": "SUSPECT", "codes": codes}
        weak = deployment(simulated=True, random_weights=True, confirmed=False, verdict=verdict)
        found = plan([weak], demand.of_peak(5), Policy())
        assert found["rows"][0]["marks"] == ["SIMULATED", "RANDOM WEIGHTS", "NOT CONFIRMED", "SUSPECT"]
        marks = "the capacity is SIMULATED, RANDOM WEIGHTS, NOT CONFIRMED, SUSPECT (the bracket is wide); so is all"
        assert any(marks in said for said in found["assumptions"])
        assert found["simulated"]
        assert found["exit_code"] == 0

    def test_a_plan_from_an_invalid_capacity_alone_is_invalid(self) -> None:
        bad = deployment(verdict={"status": "INVALID"})
        assert plan([bad], demand.of_peak(5), Policy())["exit_code"] == 3
        both = plan([replace(bad, sustained=100.0), deployment("two")], demand.of_peak(50), Policy())
        assert both["exit_code"] == 0
        assert [row["name"] for row in both["rows"]] == ["two", "one"]


class TestBreaksFirst:
    def test_one_lost_replica_is_survived_with_a_spare_and_not_without(self) -> None:
        row = plan([deployment()], demand.of_peak(40), Policy(headroom=0.0, spare=1))["rows"][0]
        found = row["breaks_first"]
        assert (row["replicas"]["total"], found["survives_one"]) == (11, True)
        assert found["utilisation"] == pytest.approx(40 / (11 * 4.2))
        assert found["one_lost"] == pytest.approx(40 / (10 * 4.2))
        assert "91 %" in found["objective"]
        bare = plan([deployment()], demand.of_peak(40), Policy(headroom=0.0, spare=0))["rows"][0]["breaks_first"]
        assert not bare["survives_one"]
        assert bare["one_lost"] == pytest.approx(40 / (9 * 4.2))
        assert bare["fails_at"] == pytest.approx(4.8 / 4.2)

    def test_the_only_replica_cannot_be_lost(self) -> None:
        found = plan([deployment()], demand.of_peak(1), Policy(spare=0))["rows"][0]["breaks_first"]
        assert found["one_lost"] is None
        assert not found["survives_one"]


class TestSeveral:
    def test_the_cheapest_comes_first_by_its_own_price(self) -> None:
        big = deployment("big", sustained=9.0, engine={"name": "vllm", "flags": {"tensor-parallel-size": 2}, "gpus": 2})
        policy = Policy(gpu_hour={"": 2.0, "big": 0.5})
        rows = plan([deployment("small"), big], demand.of_peak(50), policy)["rows"]
        assert [row["name"] for row in rows] == ["big", "small"]
        assert [row["cost"]["per_hour"] for row in rows] == sorted(row["cost"]["per_hour"] for row in rows)

    def test_gpus_come_from_the_flags_else_from_the_run_else_from_the_option(self) -> None:
        flags = {"tensor-parallel-size": 4, "pipeline-parallel-size": 2}
        by_flags = deployment(engine={"name": "vllm", "flags": flags, "gpus": 1})
        unknown = deployment(engine={"name": "unknown", "flags": {}, "gpus": None})
        assert plan([by_flags], demand.of_peak(1), Policy())["rows"][0]["gpus"]["per_replica"] == 8
        row = plan([unknown], demand.of_peak(1), Policy())["rows"][0]["gpus"]
        assert (row["per_replica"], row["from"]) == (1, "assumed, as nothing says it; --gpus-per-replica does")
        given = plan([unknown], demand.of_peak(1), Policy(gpus_per_replica={"one": 2}))["rows"][0]["gpus"]
        assert given["per_replica"] == 2

    @pytest.mark.parametrize(
        ("other", "said"),
        [
            ({"slo": [{"text": "ttft p95 < 400 ms", "target": 0.95}]}, "another SLO"),
            ({"workload": "documents"}, "another workload"),
        ],
    )
    def test_another_question_is_said_not_to_be_comparable(self, other: dict[str, Any], said: str) -> None:
        rows = plan([deployment("a"), deployment("b", sustained=2.0, **other)], demand.of_peak(5), Policy())["rows"]
        assert {row["name"]: row["not_comparable"] for row in rows} == {
            "a": None,
            "b": f"not comparable with a: {said}",
        }

    def test_names_must_be_unique_and_known(self) -> None:
        with pytest.raises(UsageError, match='two capacities are called "one"'):
            plan([deployment(), deployment()], demand.of_peak(5), Policy())
        with pytest.raises(UsageError, match=r'--gpu-hour: no capacity is called "onee" \(did you mean "one"'):
            plan([deployment()], demand.of_peak(5), Policy(gpu_hour={"onee": 1}))


class TestSensitivity:
    def test_capacity_scales_with_tokens_where_one_length_was_measured(self) -> None:
        cases = plan([deployment()], demand.of_peak(50), Policy())["rows"][0]["sensitivity"]["prompt_length"]
        rates = {case["factor"]: case["sustained_per_s"] for case in cases}
        assert rates == pytest.approx({f: 4.2 * 1120 / (900 * f + 220) for f in (0.5, 1, 1.5, 2)})
        assert [case["replicas"] for case in cases] == sorted(case["replicas"] for case in cases)

    def test_between_measured_lengths_the_measurement_is_used(self) -> None:
        """1/rate is linear in the prompt: 0.1 s and 0.2 s of a replica at 900 and 1800 tokens make 0.15 s at 1350."""
        short = deployment("short", sustained=10.0, failed=11.0)
        long = deployment("long", sustained=5.0, failed=6.0, tokens={"input_mean": 1800.0, "output_mean": 225.0})
        rows = plan([short, long], demand.of_peak(50), Policy())["rows"]
        cases = next(row for row in rows if row["name"] == "short")["sensitivity"]["prompt_length"]
        assert [case["basis"] for case in cases] == ["scaled by tokens", *["between measured capacities"] * 3]
        assert [case["sustained_per_s"] for case in cases][1:] == pytest.approx([10, 1 / 0.15, 5])

    def test_another_engine_or_other_answers_are_no_measurement_of_this_one(self) -> None:
        tokens = {"input_mean": 1800.0, "output_mean": 220.0}
        faster = deployment("faster", tokens=tokens, engine={"name": "vllm", "gpus": 4})
        longer = deployment("longer", tokens=tokens | {"output_mean": 440.0})
        rows = plan([deployment(), faster, longer], demand.of_peak(50), Policy())["rows"]
        cases = next(row for row in rows if row["name"] == "one")["sensitivity"]["prompt_length"]
        assert {case["basis"] for case in cases if case["factor"] != 1} == {"scaled by tokens"}

    def test_the_chosen_headroom_is_among_those_shown(self) -> None:
        cases = plan([deployment()], demand.of_peak(50), Policy(0.25))["rows"][0]["sensitivity"]["headroom"]
        assert 0.25 in [case["headroom"] for case in cases]
        assert [case["replicas"] for case in cases] == sorted(case["replicas"] for case in cases)


class TestUnknown:
    def test_what_was_not_measured_is_null_with_its_reason(self) -> None:
        bare = deployment(tokens={}, energy_j_per_output_token=None, energy_reason="no GPU was sampled")
        row = plan([bare], DAY, Policy(gpu_hour={"": 1.0}))["rows"][0]
        assert row["cost"]["per_million_output_peak"] is None
        assert "does not say how many tokens" in row["cost"]["reason"]
        assert row["energy"] == {"kwh_per_hour_at_peak": None, "kwh_per_day": None, "reason": "no GPU was sampled"}
        assert row["sensitivity"]["prompt_length"] == []

    def test_without_a_price_or_a_shape_there_is_no_cost_or_day(self) -> None:
        row = plan([deployment()], demand.of_peak(5), Policy())["rows"][0]
        assert (row["cost"]["per_hour"], row["cost"]["reason"]) == (None, "no price: --gpu-hour was not given")
        row = plan([deployment()], demand.of_peak(5), Policy(gpu_hour={"": 1.0}))["rows"][0]
        assert (row["cost"]["day_static"], row["cost"]["reason"]) == (
            None,
            "no daily shape was given (--daily or --trace)",
        )
        assert row["energy"]["kwh_per_hour_at_peak"] is not None
        assert row["energy"]["kwh_per_day"] is None


class TestReading:
    def store(self, folder: Path, **more: Any) -> Path:
        document = {"schema": 1, "kind": "capacity", "question": {}, "cells": [], "result": result()} | more
        (folder / "experiment.json").write_text(json.dumps(document))
        return folder

    def test_an_experiment_of_the_kind_capacity(self, tmp_path: Path) -> None:
        found = read_deployment(self.store(tmp_path))
        assert (found.name, found.sustained, found.failed) == (tmp_path.name, 4.2, 4.8)

    def test_what_is_no_finished_capacity_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is no experiment"):
            read_deployment(tmp_path)
        with pytest.raises(UsageError, match='of the kind "sweep"; a plan needs those of `servebench capacity`'):
            read_deployment(self.store(tmp_path, kind="sweep"))
        with pytest.raises(UsageError, match="has no result yet"):
            read_deployment(self.store(tmp_path, result=None))
