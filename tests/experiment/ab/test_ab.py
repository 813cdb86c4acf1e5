from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ab_runs import ARMS, FAMILY, SCENARIO, Made, design, experiment, manifest, summary
from servebench.errors import UsageError
from servebench.experiment import judge as judge_any
from servebench.experiment.ab import AGAIN, cells, check_plans, judge, orders, question, repeats_wanted
from servebench.experiment.ab.design import Design, read
from servebench.experiment.arms import Arm, parse_arm
from servebench.experiment.cell import Cell
from servebench.experiment.directory import ExperimentDir
from servebench.scenario import load_scenario

Make = Callable[[Cell], Made | str]
FOUR = tuple(Arm(name, (f"engine.sim.max_num_seqs={n}",)) for n, name in enumerate("abcd", start=1))


def latency(cell: Cell, factor: float) -> float:
    """Depends on the repeat much, on the arm by `factor`, and a little on both."""
    repeat = int(cell.labels["repeat"])
    wobble = 1 + 0.004 * ((repeat * 7 + len(str(cell.labels["arm"])) * 3) % 5 - 2)
    return 100.0 * (1 + repeat / 5) * factor * wobble


def measured(cell: Cell, ttft: float = 1.2, itl: float = 0.7, **changes: Any) -> Made:
    """A run whose candidate has a TTFT and an ITL so much larger than the base's."""
    is_cand = cell.labels["arm"] not in ("base", AGAIN)
    figures = {
        "ttft_p99": latency(cell, ttft if is_cand else 1.0),
        "itl_p99": latency(cell, itl if is_cand else 1.0) / 10,
    }
    plan = f"plan-{cell.labels['repeat']}"
    return summary(plan, **figures), manifest(256 if is_cand else 2048, **changes)


def codes(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["code"]: (each["level"], each["text"]) for each in result["verdict"]["codes"]}


def effects(result: dict[str, Any], number: int = 0) -> dict[str, dict[str, Any]]:
    return {each["figure"]: each for each in result["comparisons"][number]["effects"]}


# --- design


@pytest.mark.parametrize("arms", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_every_arm_has_every_place_equally_often(arms: int, seed: int) -> None:
    found = orders(design(arms=FOUR[:arms], repeats=2 * arms, order_seed=seed))
    names = {arm.name for arm in FOUR[:arms]}
    assert all(set(order) == names for order in found)
    for place in range(arms):
        assert Counter(order[place] for order in found) == dict.fromkeys(names, 2)


@pytest.mark.parametrize("seed", range(5))
def test_odd_repeats_are_balanced_as_far_as_they_can_be(seed: int) -> None:
    firsts = Counter(order[0] for order in orders(design(repeats=7, order_seed=seed)))
    assert sorted(firsts.values()) == [3, 4]


def test_three_arms_follow_one_another_equally_often() -> None:
    found = orders(design(arms=FOUR[:3], repeats=6))
    follows = Counter(pair for order in found for pair in itertools.pairwise(order))
    assert set(follows.values()) == {2}
    assert len(follows) == 6


def test_order_is_random_and_repeatable() -> None:
    several = {str(orders(design(order_seed=seed))) for seed in range(10)}
    assert len(several) > 3
    assert orders(design(order_seed=3)) == orders(design(order_seed=3))


def test_cells_of_a_repeat_have_one_seed_and_every_repeat_another() -> None:
    found = cells(design(seed=40, aa=True))
    assert len(found) == 18
    by_repeat = {repeat: {c.seed for c in found if c.labels["repeat"] == repeat} for repeat in range(1, 7)}
    assert by_repeat == {repeat: {40 + repeat} for repeat in range(1, 7)}
    assert [cell.labels["block"] for cell in found] == sorted(cell.labels["block"] for cell in found)
    assert {cell.name for cell in found if cell.labels["repeat"] == 1} == {"r01-base", "r01-cand", "r01-base-again"}


def test_second_base_is_an_exact_copy_that_a_hook_cannot_tell() -> None:
    base = Arm("base", ("engine.sim.base=4ms",), endpoint="http://127.0.0.1:8000", model="m")
    found = {cell.labels["arm"]: cell for cell in cells(design(arms=(base, ARMS[1]), aa=True, prepare="true"))}
    one, other = found["base"], found[AGAIN]
    assert (one.overrides, one.endpoint, one.model, one.prepare) == (
        other.overrides,
        other.endpoint,
        other.model,
        other.prepare,
    )
    assert one.environ["SERVEBENCH_ARM"] == other.environ["SERVEBENCH_ARM"] == "base"


def test_question_keeps_the_whole_design() -> None:
    asked = design(aa=True, hypothesis="it helps", prepare="./set.sh", order_seed=9, seed=3, alpha=0.1, min_effect=0.02)
    stored = json.loads(json.dumps(question(asked, SCENARIO, "sim")))
    assert read(stored) == asked
    assert stored["primary"] == "ttft.p99"


@pytest.mark.parametrize(
    ("candidates", "figures", "repeats"), [(1, 1, 6), (1, 2, 6), (1, 3, 7), (2, 1, 7), (2, 2, 7), (3, 2, 8)]
)
def test_default_repeats_let_every_test_be_decided(candidates: int, figures: int, repeats: int) -> None:
    names = ["ttft.p99", "itl.p99", "e2e.p99"][:figures]
    assert repeats_wanted(candidates, names) == repeats
    assert repeats_wanted(candidates, [*names, "failed_share"]) == repeats, "what is not tested needs none"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ARMS[:1]}, "two arms at least"),
        ({"arms": (ARMS[0], Arm(AGAIN, ("a=1",)))}, "is the name of the arm that --aa adds"),
        ({"repeats": 0}, "--repeats 0"),
        ({"alpha": 0.0}, "--alpha 0"),
        ({"alpha": 5.0}, "--alpha 5"),
        ({"min_effect": -0.1}, "--min-effect -0.1"),
        ({"family": ("failed_share",)}, "--primary failed_share: it may be 0"),
        ({"family": ("ttft.p99", "preemptions")}, "--metric preemptions: it may be 0"),
    ],
)
def test_design_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        design(**changes)


def test_arms_with_different_workloads_are_refused_before_any_run() -> None:
    chat = load_scenario("scenarios/chat.yaml")
    check_plans({"a": chat, "b": load_scenario("scenarios/chat.yaml", ["engine.sim.base=9ms"])})
    with pytest.raises(UsageError, match=r"'a' and 'b' would send different requests.*servebench sweep"):
        check_plans({"a": chat, "b": load_scenario("scenarios/chat.yaml", ["load.poisson=9/s"])})


# --- judging


def test_trade_is_found_in_pairs_although_repeats_differ_far_more(tmp_path: Path) -> None:
    result = judge(experiment(tmp_path / "e", design(), measured))
    found = effects(result)
    assert found["ttft.p99"]["verdict"] == "worse"
    assert found["ttft.p99"]["ratio"] == pytest.approx(1.2, rel=0.02)
    assert found["itl.p99"]["verdict"] == "better"
    assert result["comparisons"][0]["trade"].startswith("A trade: inter-token latency, p99 −")
    assert (result["verdict"]["status"], result["verdict"]["exit_code"]) == ("VALID", 0)
    assert result["pairs"] == {"planned": 6, "used": {"cand": 6}, "lost": []}
    assert result["simulated"] is True
    assert result["noise_floor"] is None


def test_result_is_the_same_each_time_and_by_its_kind(tmp_path: Path) -> None:
    directory = experiment(tmp_path / "e", design(aa=True), measured)
    again = ExperimentDir.open(directory.path)
    assert json.dumps(judge(directory), allow_nan=False) == json.dumps(judge_any(again), allow_nan=False)


def test_noise_floor_comes_from_the_second_base_and_stands_beside_every_claim(tmp_path: Path) -> None:
    result = judge(experiment(tmp_path / "e", design(aa=True), measured))
    floors = result["noise_floor"]["floors"]
    assert 1.0 < floors["ttft.p99"] < 1.03
    assert effects(result)["ttft.p99"]["floor"] == floors["ttft.p99"]
    assert [each["verdict"] for each in result["noise_floor"]["effects"][:2]] == ["no difference"] * 2
    assert codes(result)["noise.aa"][0] == "ok"


def test_equal_arms_that_differ_make_everything_suspect(tmp_path: Path) -> None:
    def drifting(cell: Cell) -> Made:
        made = measured(cell)
        if cell.labels["arm"] == AGAIN:
            made[0]["metrics"]["ttft"]["p99"] *= 1.3
        return made

    result = judge(experiment(tmp_path / "e", design(aa=True), drifting))
    assert codes(result)["noise.aa"] == (
        "warn",
        "two equal arms differ in ttft.p99: something besides the arms moves the figures",
    )
    assert result["verdict"]["status"] == "SUSPECT"
    assert effects(result)["ttft.p99"]["verdict"] == "undecided", "20 % is within what equal arms differ"


def test_failed_and_invalid_runs_are_lost_pairs_with_their_reasons(tmp_path: Path) -> None:
    def some(cell: Cell) -> Made | str:
        if cell.name == "r02-cand":
            return "vLLM died: out of memory"
        made = measured(cell)
        return (summary("plan-4", "INVALID"), made[1]) if cell.name == "r04-base" else made

    result = judge(experiment(tmp_path / "e", design(), some))
    assert result["pairs"]["used"] == {"cand": 4}
    assert result["pairs"]["lost"] == [
        {"repeat": 2, "arm": "cand", "cell": "r02-cand", "reason": "vLLM died: out of memory"},
        {
            "repeat": 4,
            "arm": "base",
            "cell": "r04-base",
            "reason": "INVALID: client.loop_lag (the event loop was late by 200 ms)",
        },
    ]
    assert codes(result)["runs.lost"][0] == "warn"
    assert effects(result)["ttft.p99"]["p"] is None
    assert effects(result)["ttft.p99"]["ratio"] == pytest.approx(1.2, rel=0.02), "what was measured is still told"
    assert codes(result)["design.reach"][0] == "warn"
    assert result["arms"]["base"]["verdicts"] == {"INVALID": 1, "VALID": 5}
    assert result["arms"]["cand"]["used"] == 5


def test_arm_that_never_ran_leaves_the_base_measured_and_the_result_invalid(tmp_path: Path) -> None:
    result = judge(experiment(tmp_path / "e", design(), lambda cell: "no" if "cand" in cell.name else measured(cell)))
    assert codes(result)["pairs.none"] == ("fail", "no pair of base and cand can be compared")
    assert (result["verdict"]["status"], result["verdict"]["exit_code"]) == ("INVALID", 3)
    assert len(result["arms"]["base"]["figures"]["ttft.p99"]) == 6


def test_unfinished_experiment_is_judged_by_what_there_is(tmp_path: Path) -> None:
    asked = question(design(), SCENARIO, "sim")
    empty = ExperimentDir.begin(tmp_path / "e", "ab", "chat", asked, ["servebench", "ab"])
    result = judge(empty)
    assert codes(result)["runs.missing"] == ("warn", "12 of 12 runs have not ended yet")
    assert effects(result)["ttft.p99"]["reason"] == "no pair has it in both runs"


def test_pair_of_two_plans_is_an_error(tmp_path: Path) -> None:
    def other_plan(cell: Cell) -> Made:
        made = measured(cell)
        if cell.name == "r03-cand":
            made[0]["plan"]["hash"] = "another"
        return made

    result = judge(experiment(tmp_path / "e", design(), other_plan))
    assert codes(result)["pairs.plan"] == (
        "fail",
        "r03-cand: the plan is another one than the base's, so that there is no pair",
    )
    assert result["pairs"]["used"] == {"cand": 5}
    assert result["verdict"]["exit_code"] == 3


def test_simulated_and_real_runs_do_not_mix(tmp_path: Path) -> None:
    def half(cell: Cell) -> Made:
        made = measured(cell)
        made[0]["simulated"] = cell.labels["arm"] == "base"
        return made

    assert codes(judge(experiment(tmp_path / "e", design(), half)))["runs.mixed"][0] == "fail"


def test_one_variable_is_what_the_arms_name_and_nothing_else(tmp_path: Path) -> None:
    result = judge(experiment(tmp_path / "e", design(), measured))
    assert result["differences"] == [
        {
            "arm": "cand",
            "key": "engine.sim.max_num_batched_tokens",
            "base": 2048,
            "cand": 256,
            "kind": "set",
            "named": True,
        }
    ]
    assert result["design"]["variables"] == ["engine.sim.max_num_batched_tokens"]
    assert codes(result)["arms.one_variable"][0] == "ok"


def test_second_variable_makes_it_suspect_and_is_named(tmp_path: Path) -> None:
    def also_upgraded(cell: Cell) -> Made:
        version = "0.2.0" if cell.labels["arm"] == "cand" else "0.1.0"
        return measured(cell, endpoint__engine__version=version)

    result = judge(experiment(tmp_path / "e", design(), also_upgraded))
    assert codes(result)["arms.one_variable"] == (
        "warn",
        "more than the arms' own settings differs: engine.version (0.1.0 and 0.2.0)",
    )
    assert result["verdict"]["status"] == "SUSPECT"


def test_consequence_that_the_server_reports_is_listed_and_no_second_variable(tmp_path: Path) -> None:
    def fewer_blocks(cell: Cell) -> Made:
        return measured(cell, server_identity__kv_cache__blocks=20_000 if cell.labels["arm"] == "cand" else 25_000)

    result = judge(experiment(tmp_path / "e", design(), fewer_blocks))
    assert [(each["key"], each["kind"]) for each in result["differences"] if not each["named"]] == [
        ("server.kv_cache.blocks", "observed")
    ]
    assert result["verdict"]["status"] == "VALID"


def test_several_named_settings_are_said_to_share_the_effect(tmp_path: Path) -> None:
    both = Arm("cand", ("engine.sim.max_num_batched_tokens=256", "engine.sim.max_num_seqs=8"))
    result = judge(experiment(tmp_path / "e", design(arms=(ARMS[0], both)), measured))
    level, text = codes(result)["arms.one_variable"]
    assert level == "ok"
    assert "change several things at once" in text


def test_change_in_the_middle_is_seen(tmp_path: Path) -> None:
    def upgraded(cell: Cell) -> Made:
        return measured(cell, environment__packages__numpy="2.0" if int(cell.labels["repeat"]) < 4 else "3.0")

    result = judge(experiment(tmp_path / "e", design(), upgraded))
    level, text = codes(result)["arms.changed"]
    assert level == "warn"
    assert "base: client.packages.numpy (2.0, then 3.0)" in text
    assert codes(result)["arms.one_variable"][0] == "ok", "both arms of each pair have it"


def test_suspect_runs_make_the_experiment_suspect(tmp_path: Path) -> None:
    def doubtful(cell: Cell) -> Made:
        made = measured(cell)
        if cell.name == "r01-base":
            made[0]["verdict"] = summary("", "SUSPECT")["verdict"]
        return made

    result = judge(experiment(tmp_path / "e", design(), doubtful))
    assert codes(result)["runs.suspect"] == ("warn", "1 of 12 runs that are used are SUSPECT: client.loop_lag in 1")
    assert result["verdict"] | {"codes": []} == {"status": "SUSPECT", "exit_code": 0, "codes": []}


def test_each_candidate_is_compared_with_the_base(tmp_path: Path) -> None:
    arms = (ARMS[0], *(Arm(name, (f"engine.sim.max_num_batched_tokens={name}",)) for name in ("256", "512")))
    repeats = repeats_wanted(2, FAMILY)

    def by_arm(cell: Cell) -> Made:
        return measured(cell, ttft=1.2 if cell.labels["arm"] == "256" else 0.8)

    result = judge(experiment(tmp_path / "e", design(arms=arms, repeats=repeats), by_arm))
    assert [(each["base"], each["cand"]) for each in result["comparisons"]] == [("base", "256"), ("base", "512")]
    assert [effects(result, n)["ttft.p99"]["verdict"] for n in range(2)] == ["worse", "better"]
    assert effects(result)["ttft.p99"]["p_adjusted"] > effects(result)["ttft.p99"]["p"]


def test_too_few_repeats_are_obeyed_and_said_to_be_too_few(tmp_path: Path) -> None:
    result = judge(experiment(tmp_path / "e", design(repeats=2), measured))
    level, text = codes(result)["design.reach"]
    assert level == "warn"
    assert "2 pairs can never reach the level of 0.05 shared by 2 tests (6 pairs can)" in text
    assert result["comparisons"][0]["trade"] is None


def test_worst_codes_come_first(tmp_path: Path) -> None:
    result = judge(experiment(tmp_path / "e", design(), lambda cell: "no" if "cand" in cell.name else measured(cell)))
    levels = [each["level"] for each in result["verdict"]["codes"]]
    assert levels == sorted(levels, key=("fail", "warn", "ok").index)
    assert all(each["next"] for each in result["verdict"]["codes"] if each["level"] != "ok")


def test_hook_settings_are_the_variable_of_a_running_server(tmp_path: Path) -> None:
    arms = tuple(
        Arm(name, environ={"SERVEBENCH_ARM": name, "SERVEBENCH_ARM_MAX_NUM_SEQS": seqs})
        for name, seqs in (("base", "64"), ("cand", "128"))
    )

    def attached(cell: Cell) -> Made:
        settings = {"scheduler_config.max_num_seqs": 128 if cell.labels["arm"] == "cand" else 64}
        return measured(cell, endpoint__server=None, server_identity__settings=settings)

    found = judge(experiment(tmp_path / "e", Design(arms, FAMILY, 6, prepare="true"), attached))
    assert [(each["key"], each["named"]) for each in found["differences"]] == [
        ("server.scheduler_config.max_num_seqs", True)
    ]


def test_hook_without_effect_is_seen_by_the_servers_own_word(tmp_path: Path) -> None:
    arms = tuple(
        Arm(name, environ={"SERVEBENCH_ARM_MAX_NUM_SEQS": seqs}) for name, seqs in (("base", "64"), ("cand", "9"))
    )

    def untouched(cell: Cell) -> Made:
        return measured(
            cell, endpoint__server=None, server_identity__settings={"scheduler_config.max_num_seqs": 64, "seed": 0}
        )

    found = judge(experiment(tmp_path / "e", Design(arms, FAMILY, 6, prepare="true"), untouched))
    assert codes(found)["arms.no_change"] == (
        "warn",
        "the change did not come about, by the server's own word: "
        "cand: server.scheduler_config.max_num_seqs is 64, as in the base",
    )
    assert found["verdict"]["status"] == "SUSPECT"


def test_arms_for_a_hook_that_is_not_there_are_refused() -> None:
    arms = (Arm("base"), Arm("cand", environ={"SERVEBENCH_ARM_MODE": "fast"}))
    assert design(arms=arms, prepare="true").variables("cand") == ("hook.mode",)
    with pytest.raises(UsageError, match=r"'base' and 'cand' differ in hook\.mode, which only a --hook"):
        design(arms=arms)


def test_what_only_the_hook_is_told_is_a_variable_beside_the_overrides() -> None:
    arms = [f"{name}: vllm.max-num-seqs={n} engine.vllm.flags.seed={n} hook.mode={n}" for n, name in enumerate("ab")]
    variables = design(arms=tuple(map(parse_arm, arms)), prepare="true").variables("b")
    assert variables == ("engine.vllm.flags.max-num-seqs", "engine.vllm.flags.seed", "hook.mode")


def test_nothing_good_is_said_of_runs_that_are_not_there(tmp_path: Path) -> None:
    none = judge(experiment(tmp_path / "none", design(), lambda cell: "no"))
    assert set(codes(none)) == {"runs.lost", "pairs.none", "design.reach"}
    half = judge(experiment(tmp_path / "half", design(), lambda cell: "no" if "cand" in cell.name else measured(cell)))
    assert "not known" in codes(half)["arms.one_variable"][1]
    assert "pairs.plan" not in codes(half)


@pytest.mark.parametrize("value", [0.0, None])
def test_primary_that_runs_lack_is_not_cured_by_more_runs(tmp_path: Path, value: float | None) -> None:
    def without(cell: Cell) -> Made:
        made = measured(cell)
        made[0]["metrics"]["ttft"]["p99"] = value
        return made

    result = judge(experiment(tmp_path / "e", design(), without))
    steps = {each["code"]: each["next"] for each in result["verdict"]["codes"]}
    assert steps["design.reach"] == "take a --primary that every run has, above 0"
