"""The correctness gate: arms held against one another by what their runs answered."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servebench.experiment.cell import Cell, Outcome
from servebench.experiment.comparison.answers import Answers, agreement, distances, first_difference, margin_at
from servebench.experiment.comparison.correctness import DIFFERS, NEAR_TIES, NOT_JUDGED, SAME, exchange_p, judge, of

_numbers = count(1)


def answer(
    text: str, ids: list[int] | None = None, finish: str = "length", words: int = 8, margins: Any = None
) -> dict[str, Any]:
    return {
        "margins": margins,
        "sha": text,
        "text": text,
        "token_ids": ids,
        "output_tokens": len(text.split()),
        "finish_reason": finish,
        "words": words,
    }


def run(*texts: str | None) -> Answers:
    """A run whose probe i was answered with text i; None for one without an answer."""
    given = {f"p{i:02d}": answer(text) for i, text in enumerate(texts) if text is not None}
    return Answers("r", len(texts), given)


def runs(number: int, *texts: str) -> list[Answers]:
    return [run(*texts) for _ in range(number)]


def outcome(folder: Path, arm: str, texts: list[str], manifest: dict[str, Any] | None = None, **known: Any) -> Outcome:
    """A cell with a run directory, as `ask_probes` leaves it."""
    path = folder / f"{arm}-{next(_numbers)}"
    path.mkdir()
    probes = [{"prompt_id": f"p{i}", "reason": None, **answer(text, **known)} for i, text in enumerate(texts)]
    (path / "probes.json").write_text(json.dumps(probes))
    told = {"probes": {"asked": len(texts), "answered": len(texts), "reason": None}}
    cell = Cell(path.name, {"arm": arm})
    return Outcome(cell, "done", {}, told if manifest is None else manifest, None, 1.0, path)


class TestAnswers:
    def test_agreement_is_over_the_probes_that_both_answered(self) -> None:
        assert agreement(run("a", "b", None), run("a", "c", "d")) == 0.5
        assert agreement(run("a"), run(None)) is None

    def test_distances(self) -> None:
        found = distances([run("a", "b"), run("a", "c"), run("d", "e")])
        assert found.tolist() == [[0, 0.5, 1], [0.5, 0, 1], [1, 1, 0]]

    @pytest.mark.parametrize(
        ("a", "b", "place"),
        [
            (answer("x y z"), answer("x q z"), (2, "word")),
            (answer("x y"), answer("x y z"), (3, "word")),
            (answer("x", [1, 2, 3]), answer("y", [1, 2, 4]), (3, "token")),
            (answer("x", [1, 2, 3]), answer("y z"), (1, "word")),
        ],
    )
    def test_first_difference(self, a: dict[str, Any], b: dict[str, Any], place: tuple[int, str]) -> None:
        assert first_difference(a, b) == place

    def test_a_run_directory_without_probes_has_none(self, tmp_path: Path) -> None:
        found = Answers.of(outcome(tmp_path, "base", ["a"], manifest={}))
        assert (found.asked, found.by_probe, found.reason) == (0, {}, "no probes were asked")

    @pytest.mark.parametrize("text", ["[{", "[{}]", "[1]", "7", '{"a": 1}'])
    def test_a_damaged_file_is_a_reason(self, tmp_path: Path, text: str) -> None:
        broken = outcome(tmp_path, "base", ["a"])
        (broken.path / "probes.json").write_text(text)
        assert Answers.of(broken).reason == "its probes.json is gone or damaged"

    def test_a_failed_cell_says_why(self, tmp_path: Path) -> None:
        failed = Outcome(Cell("r01-a"), "failed", None, None, "the server died", 1.0, tmp_path)
        assert Answers.of(failed).reason == "the server died"


class TestJudge:
    def test_identical_answers_need_no_test(self) -> None:
        found = judge(runs(1, "a", "b"), runs(1, "a", "b"))
        assert (found.verdict, found.p) == (SAME, None)

    def test_arms_that_each_repeat_themselves_and_differ(self) -> None:
        found = judge(runs(6, "a", "b"), runs(6, "a", "c"))
        assert found.verdict == DIFFERS
        assert found.p == found.least_p == 2 / 924

    @pytest.mark.parametrize(("each", "verdict"), [(1, NOT_JUDGED), (2, NOT_JUDGED), (3, NOT_JUDGED), (4, DIFFERS)])
    def test_too_few_runs_claim_nothing(self, each: int, verdict: str) -> None:
        found = judge(runs(each, "a"), runs(each, "b"))
        assert found.verdict == verdict
        assert found.least_p == pytest.approx({1: 1, 2: 1 / 3, 3: 0.1, 4: 2 / 70}[each])
        assert ("can never tell" in found.reason) == (verdict == NOT_JUDGED)

    def test_arms_that_do_not_repeat_themselves_and_mix(self) -> None:
        base = [run("a"), run("b"), run("a"), run("b")]
        cand = [run("b"), run("a"), run("b"), run("a")]
        found = judge(base, cand)
        assert found.verdict == SAME
        assert found.p is not None
        assert found.p > 0.5

    def test_a_noisy_probe_does_not_hide_that_another_changed(self) -> None:
        noise = "xyxyxy"
        base = [run("a", "b", flip) for flip in noise]
        cand = [run("a", "c", flip) for flip in reversed(noise)]
        assert judge(base, cand).verdict == DIFFERS

    def test_an_arm_without_answers(self) -> None:
        silent = [Answers("r", 4, reason="HTTP 400: no temperature")]
        found = judge(runs(6, "a"), silent)
        assert (found.verdict, found.reason) == (NOT_JUDGED, "HTTP 400: no temperature")
        assert judge(runs(1, "a"), []).verdict == NOT_JUDGED

    def test_different_probes_cannot_be_compared(self) -> None:
        other = [Answers("r", 1, {"p99": answer("a")})]
        assert judge(runs(2, "a"), other).reason == "the arms were not asked the same probes"


class TestNearTies:
    """Answers of three tokens that part at the second; `sure` is each arm's margin there."""

    def judged(self, tmp_path: Path, sure: float | None, each: int = 4) -> dict[str, Any]:
        texts = {"base": [1, 2, 3], "cand": [1, 5, 6]}
        arms = {
            arm: [outcome(tmp_path, arm, [str(ids)], ids=ids, margins=[2.0, sure, 0.0]) for _ in range(each)]
            for arm, ids in texts.items()
        }
        return of(arms, "base")

    def test_a_tie_that_fell_the_other_way_is_no_wrong_answer(self, tmp_path: Path) -> None:
        found = self.judged(tmp_path, 0.02)
        assert found["verdict"] == NEAR_TIES
        assert "within 0.02 in log p" in found["reason"]
        assert found["comparisons"][0]["differing"][0]["margin"] == 0.02
        assert found["comparisons"][0]["p"] == 2 / 70

    @pytest.mark.parametrize("sure", [0.5, None])
    def test_a_choice_that_was_sure_or_is_not_told_is(self, tmp_path: Path, sure: float | None) -> None:
        assert self.judged(tmp_path, sure)["verdict"] == DIFFERS

    def test_few_runs_are_enough_to_see_it(self, tmp_path: Path) -> None:
        assert self.judged(tmp_path, 0.02, each=2)["verdict"] == NEAR_TIES
        assert self.judged(tmp_path, 0.5, each=2)["verdict"] == NOT_JUDGED

    @pytest.mark.parametrize(
        ("a", "b", "place", "unit", "margin"),
        [
            ([1.0, 0.1], [1.0, 0.3], 2, "token", 0.3),
            ([1.0, None], [1.0, 0.3], 2, "token", None),
            ([1.0], [1.0, 0.3], 2, "token", None),
            (None, [1.0, 0.3], 1, "token", None),
            ([1.0], [1.0], 1, "word", None),
        ],
    )
    def test_margin(self, a: Any, b: Any, place: int, unit: str, margin: float | None) -> None:
        assert margin_at({"margins": a}, {"margins": b}, place, unit) == margin


class TestExchange:
    def test_false_alarms_stay_at_the_level(self) -> None:
        """Equal arms whose 16 probes each fall either way at random: p ≤ 5 % in at most 5 % of experiments."""
        draw = np.random.Generator(np.random.PCG64(4))
        alarms = 0
        for _ in range(400):
            answers = draw.random((12, 16)) < 0.3
            between = (answers[:, None, :] != answers[None, :, :]).mean(axis=2)
            alarms += exchange_p(between, 6) <= 0.05
        assert alarms <= 0.07 * 400

    def test_a_probe_that_changed_is_found_among_noise(self) -> None:
        draw = np.random.Generator(np.random.PCG64(5))
        found = 0
        for _ in range(100):
            answers = draw.random((12, 16)) < 0.1
            answers[6:, :2] ^= True  # two of the probes answer otherwise in the second arm
            between = (answers[:, None, :] != answers[None, :, :]).mean(axis=2)
            found += exchange_p(between, 6) <= 0.05
        assert found >= 88

    def test_many_runs_are_sampled(self) -> None:
        arms = np.repeat([0, 1], 10)
        between = (arms[:, None] != arms[None, :]).astype(float)
        assert 0 < exchange_p(between, 10) <= 2 / 20_000


class TestOf:
    def test_the_document(self, tmp_path: Path) -> None:
        base = [outcome(tmp_path, "base", ["a b", "c d"]) for _ in range(4)]
        cand = [outcome(tmp_path, "cand", ["a b", "c x x"]) for _ in range(4)]
        found = of({"base": base, "cand": cand}, "base")
        assert found["verdict"] == DIFFERS
        assert found["probes"] == 2
        assert found["arms"]["cand"] == {
            "runs": 4,
            "answered": 8,
            "asked": 8,
            "agreement": 1.0,
            "output_tokens": 2.5,
            "finish_reasons": {"length": 8},
            "reason": None,
        }
        (compared,) = found["comparisons"]
        assert (compared["agreement"], compared["within"]) == (0.5, 1.0)
        assert compared["lengths"] == {"agreement": 0.5, "within": 1.0}
        assert compared["finish_reasons"] == {"agreement": 1.0, "within": 1.0}
        assert compared["p"] == compared["p_adjusted"] == 2 / 70
        assert compared["differing"] == [
            {
                "prompt_id": "p1",
                "words": 8,
                "agreement": 0.0,
                "within": 1.0,
                "first_difference": 2,
                "unit": "word",
                "margin": None,
            }
        ]
        json.dumps(found, allow_nan=False)

    def test_holm_over_several_arms(self, tmp_path: Path) -> None:
        arms = {name: [outcome(tmp_path, name, [name]) for _ in range(4)] for name in ("base", "a", "b")}
        found = of(arms, "base")
        assert [c["p_adjusted"] for c in found["comparisons"]] == [4 / 70, 4 / 70]
        assert found["verdict"] == NOT_JUDGED

    def test_no_probes_at_all(self, tmp_path: Path) -> None:
        arms = {name: [outcome(tmp_path, name, [], manifest={})] for name in ("base", "cand")}
        found = of(arms, "base")
        assert (found["verdict"], found["probes"]) == (NOT_JUDGED, 0)
        assert "no probes were asked" in found["reason"]
        assert found["comparisons"][0]["agreement"] is None

    def test_the_worst_arm_decides(self, tmp_path: Path) -> None:
        arms = {
            name: [outcome(tmp_path, name, [text]) for _ in range(6)] for name, text in zip("xyz", "aab", strict=True)
        }
        found = of(arms, "x")
        assert [c["verdict"] for c in found["comparisons"]] == [SAME, DIFFERS]
        assert found["verdict"] == DIFFERS
        assert found["reason"].startswith("z: ")

    def test_one_failed_run_is_left_out_with_its_reason(self, tmp_path: Path) -> None:
        base = [outcome(tmp_path, "base", ["a"]) for _ in range(3)]
        failed = Outcome(Cell("r04-cand"), "failed", None, None, "the server died", 1.0, tmp_path)
        found = of({"base": base, "cand": [*(outcome(tmp_path, "cand", ["a"]) for _ in range(2)), failed]}, "base")
        assert found["verdict"] == SAME
        assert (found["arms"]["cand"]["runs"], found["arms"]["cand"]["reason"]) == (2, "the server died")

    def test_a_base_without_answers_is_not_blamed_on_the_arm(self, tmp_path: Path) -> None:
        arms = {"base": [], "cand": [outcome(tmp_path, "cand", ["a"])]}
        assert of(arms, "base")["reason"] == "cand: the base: it has no run that can be compared"
