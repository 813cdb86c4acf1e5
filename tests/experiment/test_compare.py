from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ab_runs import Made, design, experiment, manifest, store, summary
from servebench.errors import UsageError
from servebench.experiment.compare import Asked, compare, names_of, pairs_of_plans
from servebench.experiment.comparison.run_sets import RunSet, load_runs
from servebench.experiment.directory import ExperimentDir

EXAMPLE = Path(__file__).parents[2] / "results" / "example-chat"


def runs(folder: Path, plans: list[str], ttft: float = 100.0, **changes: Any) -> RunSet:
    """Run directories of these plans, one a plan, the oldest first, each with its own latency."""
    for number, plan in enumerate(plans):
        wobble = ttft * (1 + 0.003 * (number % 3)) * (1 + int(plan[1:]))
        made = summary(plan, ttft_p99=wobble, itl_p99=wobble / 10)
        made["plan"]["seeds"] = {"arrivals": int(plan[1:])}
        store(folder / f"run-{number}", (made, manifest(**changes)), created=number)
    return load_runs(str(folder))


def compared(base: RunSet, cand: RunSet, **asked: Any) -> dict[str, Any]:
    return compare(base, cand, Asked(**asked))


def primary(result: dict[str, Any]) -> dict[str, Any]:
    return dict(result["comparisons"][0]["effects"][0])


def codes(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["code"]: (each["level"], each["text"]) for each in result["verdict"]["codes"]}


SIX = [f"p{n}" for n in range(6)]


# --- naming runs


def test_a_run_directory_is_a_set_of_one() -> None:
    found = load_runs(str(EXAMPLE))
    assert len(found.runs) == 1
    assert found.runs[0].verdict == "VALID"
    assert found.short == "example-chat"


def test_a_folder_holds_runs_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    for name, created in (("a", 3), ("b", 1), ("c", 2)):
        store(tmp_path / name, (summary(), manifest()), created)
    (tmp_path / "notes.txt").write_text("no run")
    assert [run.path.name for run in load_runs(f"{tmp_path}/").runs] == ["b", "c", "a"]


def test_several_separated_by_commas(tmp_path: Path) -> None:
    for name in "ab":
        store(tmp_path / name, (summary(), manifest()))
    assert len(load_runs(f"{tmp_path}/a, {tmp_path}/b").runs) == 2


def test_folder_whose_name_has_a_comma_or_a_colon(tmp_path: Path) -> None:
    for name in ("a,b", "a:b"):
        store(tmp_path / name, (summary(), manifest()))
        assert len(load_runs(str(tmp_path / name)).runs) == 1


def test_an_arm_of_an_experiment_with_what_it_lost(tmp_path: Path) -> None:
    experiment(
        tmp_path / "e",
        design(),
        lambda cell: "it died" if cell.name == "r02-cand" else (summary(ttft_p99=1.0), manifest()),
    )
    found = load_runs(f"{tmp_path}/e:cand")
    assert (len(found.runs), [cell.reason for cell in found.lost]) == (5, ["it died"])
    assert found.short == "cand"
    assert len(load_runs(f"{tmp_path}/e:r01-base").runs) == 1


def test_run_without_a_summary_is_analysed(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    stored, again = load_runs(str(EXAMPLE)).runs[0].summary, load_runs(str(tmp_path / "run")).runs[0].summary
    assert stored is not None
    assert again is not None
    assert again["metrics"] == stored["metrics"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{}/none", "there is no .*/none; expected a run directory, a folder"),
        ("{}/empty", "holds no run directory"),
        ("{}/e", "is an experiment; say which of its arms: .*/e:(base, .*/e:cand|cand, .*/e:base)$"),
        ("{}/e:cend", r'has no arm cend \(did you mean "cand"\?\); it has (base, cand|cand, base)$'),
        ("{}/empty:base", "is no experiment"),
        ("{}/run,{}/run", "a run is named twice"),
        ("{}/run,", "names nothing between two commas"),
        ("{}/failed:base", "no run in it has ended"),
    ],
)
def test_what_names_no_runs(tmp_path: Path, given: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    store(tmp_path / "run", (summary(), manifest()))
    experiment(tmp_path / "e", design(), lambda cell: (summary(), manifest()))
    experiment(tmp_path / "failed", design(), lambda cell: "no")
    with pytest.raises(UsageError, match=message):
        load_runs(given.format(tmp_path, tmp_path))


# --- pairs or not


def test_sets_with_the_same_plans_are_paired_by_plan(tmp_path: Path) -> None:
    base, cand = runs(tmp_path / "a", SIX), runs(tmp_path / "b", SIX[::-1], ttft=80)
    pairs = pairs_of_plans(base.runs, cand.runs)
    assert len(pairs) == 6
    assert all(a.summary["plan"] == b.summary["plan"] for a, b in pairs if a.summary and b.summary)
    result = compared(base, cand)
    assert result["design"]["paired"] is True
    assert primary(result)["verdict"] == "better"
    assert primary(result)["ratio"] == pytest.approx(0.8, rel=0.01), "although the plans differ sixfold"
    assert (result["verdict"]["exit_code"], result["pairs"]["planned"]) == (0, 6)


def test_runs_of_one_plan_are_no_pairs_since_any_of_them_could_be_exchanged(tmp_path: Path) -> None:
    result = compared(runs(tmp_path / "a", ["p1"] * 4), runs(tmp_path / "b", ["p1"] * 4, ttft=80))
    assert result["design"]["paired"] is False
    assert primary(result)["verdict"] == "better", "four and four suffice"
    assert primary(result)["p"] == pytest.approx(2 / 70)


def test_other_seeds_are_no_pairs(tmp_path: Path) -> None:
    result = compared(runs(tmp_path / "a", SIX), runs(tmp_path / "b", ["p1", "p2"]))
    assert (result["design"]["paired"], result["pairs"]["planned"]) == (False, None)
    assert (primary(result)["n_base"], primary(result)["n_cand"]) == (6, 2)


def test_plan_that_is_there_twice_makes_two_pairs_in_order_of_time(tmp_path: Path) -> None:
    base, cand = runs(tmp_path / "a", ["p1", "p1", "p2"]), runs(tmp_path / "b", ["p2", "p1", "p1"])
    found = [(a.path.name, b.path.name) for a, b in pairs_of_plans(base.runs, cand.runs)]
    assert found == [("run-0", "run-1"), ("run-1", "run-2"), ("run-2", "run-0")]


def test_two_single_runs_give_an_estimate_no_p_and_how_many_would(tmp_path: Path) -> None:
    result = compared(runs(tmp_path / "a", ["p1"]), runs(tmp_path / "b", ["p1"], ttft=50))
    effect = primary(result)
    assert (effect["ratio"], effect["p"], effect["low"], effect["verdict"]) == (0.5, None, None, "undecided")
    assert effect["reason"] == "1 and 1 runs can never reach the level of 0.05 shared by 2 tests (4 runs each can)"
    assert effect["more_runs"] == 3
    assert codes(result)["design.reach"][0] == "warn"


# --- refusals


def invalid(folder: Path) -> RunSet:
    store(folder / "bad-run", (summary("p1", "INVALID", ttft_p99=1.0), manifest()))
    return load_runs(str(folder))


def changed(folder: Path, made: Made) -> RunSet:
    store(folder / "run", made)
    return load_runs(str(folder))


def other_load() -> Made:
    found = manifest()
    found["scenario"]["load"]["poisson"] = 8.0
    return summary("p9"), found


def other_lengths() -> Made:
    found = manifest()
    found["scenario"]["workload"]["classes"][0]["input_tokens"] = 99
    return summary("p9"), found


REFUSED = {
    "runs.simulated": (lambda: (summary(simulated=False), manifest()), "simulated against real runs"),
    "runs.profiled": (
        lambda: (summary(), manifest(profile=[{"tool": "nsys"}])),
        "a profiler was attached to the server of ",
    ),
    "runs.model": (
        lambda: (summary(), manifest(endpoint__model="other")),
        "the models differ: simulated against other",
    ),
    "runs.invalid": (lambda: (summary(verdict="INVALID"), manifest()), "run is INVALID: client.loop_lag"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_each_refusal_names_what_differs_and_can_be_forced(tmp_path: Path, code: str) -> None:
    make, text = REFUSED[code]
    base, cand = runs(tmp_path / "a", ["p1"]), changed(tmp_path / "b", make())
    with pytest.raises(UsageError, match=f"cannot be compared: .*{text}.*--force"):
        compared(base, cand)
    result = compared(base, cand, force=True)
    level, said = codes(result)[code]
    assert level == "warn"
    assert text in said
    assert (result["verdict"]["status"], result["verdict"]["exit_code"]) == ("SUSPECT", 3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (other_load, "load.poisson is 4.0 in run-0 and 8.0 in run"),
        (other_lengths, "workload.classes.default.input_tokens is 20 in run-0 and 99 in run"),
    ],
)
def test_different_workloads_are_refused_by_the_key_that_differs(tmp_path: Path, make: Any, text: str) -> None:
    with pytest.raises(UsageError, match=f"the workloads differ: {text}"):
        compared(runs(tmp_path / "a", ["p1"]), changed(tmp_path / "b", make()))


def test_same_seeds_with_another_plan_are_refused(tmp_path: Path) -> None:
    base, cand = runs(tmp_path / "a", ["p1"]), runs(tmp_path / "b", ["p1"])
    assert cand.runs[0].summary is not None
    cand.runs[0].summary["plan"]["hash"] = "another"
    with pytest.raises(UsageError, match="run-0 and run-0 have the same scenario and seeds, and different plans"):
        compared(base, cand)


def test_every_refusal_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is INVALID.*the models differ"):
        compared(
            runs(tmp_path / "a", ["p1"]),
            changed(tmp_path / "b", (summary(verdict="INVALID"), manifest(endpoint__model="x"))),
        )


def test_nothing_to_force_is_no_doubt(tmp_path: Path) -> None:
    result = compared(runs(tmp_path / "a", SIX), runs(tmp_path / "b", SIX), force=True)
    assert (result["verdict"]["status"], result["verdict"]["exit_code"]) == ("VALID", 0)


# --- what else is said


def test_one_difference_is_what_the_comparison_is_about(tmp_path: Path) -> None:
    result = compared(runs(tmp_path / "a", SIX), runs(tmp_path / "b", SIX, tokens=256))
    assert [(each["key"], each["named"]) for each in result["differences"]] == [
        ("engine.sim.max_num_batched_tokens", True)
    ]
    assert codes(result)["arms.one_variable"] == (
        "ok",
        "one thing differs: engine.sim.max_num_batched_tokens (2048 and 256)",
    )


def test_several_differences_share_the_effect(tmp_path: Path) -> None:
    result = compared(
        runs(tmp_path / "a", SIX), runs(tmp_path / "b", SIX, tokens=256, endpoint__engine__version="0.2.0")
    )
    level, text = codes(result)["arms.one_variable"]
    assert level == "warn"
    assert text.startswith("2 things differ between the sets")
    assert result["verdict"]["status"] == "SUSPECT"


def test_objectives_of_the_base_are_tested_unless_told_otherwise(tmp_path: Path) -> None:
    base, cand = runs(tmp_path / "a", SIX), runs(tmp_path / "b", SIX)
    assert compared(base, cand)["design"]["family"] == ["ttft.p99", "itl.p99"]
    asked = compared(base, cand, primary="itl.p99", metrics=("e2e.p50",))
    assert asked["design"]["family"] == ["itl.p99", "ttft.p99", "e2e.p50"]
    with pytest.raises(UsageError, match=r'no figure "tftt.p99" \(did you mean "ttft.p99"\?\)'):
        compared(base, cand, primary="tftt.p99")
    with pytest.raises(UsageError, match="--primary preemptions: it may be 0"):
        compared(base, cand, primary="preemptions")


def test_lost_cells_of_an_arm_are_told(tmp_path: Path) -> None:
    def some(cell: Any) -> Made | str:
        plan = f"p{cell.labels['repeat']}"
        return "it died" if cell.name == "r02-cand" else (summary(plan, ttft_p99=9.0, itl_p99=1.0), manifest())

    experiment(tmp_path / "e", design(), some)
    result = compared(load_runs(f"{tmp_path}/e:base"), load_runs(f"{tmp_path}/e:cand"))
    assert codes(result)["runs.lost"] == ("warn", "lost: r02-cand: it died")
    assert result["pairs"]["lost"] == [{"repeat": None, "arm": "cand", "cell": "r02-cand", "reason": "it died"}]
    assert result["arms"]["cand"]["verdicts"] == {"VALID": 5, "failed": 1}


def test_names_in_tables() -> None:
    def named(a: str, b: str) -> tuple[str, str]:
        return names_of(RunSet(a, ()), RunSet(b, ()))

    assert named("results/x/", "results/y") == ("x", "y")
    assert named("e:base", "results/e:cand") == ("base", "cand")
    assert named("old/x", "new/x") == ("A", "B")
    assert named("x,y", "z") == ("A", "B")


def test_result_is_json_and_has_an_ab_results_shape(tmp_path: Path) -> None:
    from servebench.experiment.ab import judge

    result = compared(runs(tmp_path / "a", SIX), runs(tmp_path / "b", SIX))
    json.dumps(result, allow_nan=False)
    ab = judge(experiment(tmp_path / "e", design(), lambda cell: (summary(), manifest())))
    assert set(result) == set(ab)
    assert set(result["design"]) == set(ab["design"])
    assert set(result["pairs"]) == set(ab["pairs"])
    assert set(ab["arms"]["base"]) <= set(result["arms"]["a"])


def test_runs_are_not_held_against_themselves(tmp_path: Path) -> None:
    base = runs(tmp_path / "a", SIX)
    with pytest.raises(UsageError, match=r"cannot be compared: both hold .*run-0; .*run-2 and 3 more$"):
        compared(base, load_runs(str(tmp_path / "a")), force=True)


def test_cell_of_an_arm_without_its_summary_is_analysed_and_not_lost_in_silence(tmp_path: Path) -> None:
    directory = experiment(tmp_path / "e", design(), lambda cell: (summary(ttft_p99=1.0), manifest()))
    cell = directory.cell_path("r03-cand")
    shutil.rmtree(cell)
    shutil.copytree(EXAMPLE, cell)
    (cell / "summary.json").write_text("[1]")
    found = load_runs(f"{tmp_path}/e:cand")
    assert len(found.runs) == 6
    assert any(run.path == cell and run.summary and "metrics" in run.summary for run in found.runs)
    shutil.rmtree(cell)
    with pytest.raises(UsageError, match="r03-cand"):
        load_runs(f"{tmp_path}/e:cand")


def test_experiment_of_which_no_run_has_ended(tmp_path: Path) -> None:
    ExperimentDir.begin(tmp_path / "e", "ab", "chat", {}, [])
    with pytest.raises(UsageError, match="is an experiment of which no run has ended"):
        load_runs(str(tmp_path / "e"))
