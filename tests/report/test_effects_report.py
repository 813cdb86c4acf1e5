"""The report of a comparison: the sentence, the figures in it, and everything that a reader must not miss."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from effects_example import KEY, arm, correctness, effect, judged, result
from servebench.report import effect_words as words
from servebench.report.effects import print_effects


def shown(document: dict[str, Any], width: int = 100, path: Path | None = None) -> str:
    console = Console(width=width, file=io.StringIO())
    print_effects(document, path, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def squeezed(document: dict[str, Any], **more: Any) -> str:
    """Without the line breaks that the width makes."""
    return " ".join(shown(document, **more).split())


def sentence(*effects: dict[str, Any], **changes: Any) -> str:
    (answer,) = words.answers(result(list(effects), **changes))
    return answer.sentence


PRIMARY = {"role": "primary"}


class TestSentence:
    def test_a_trade(self) -> None:
        assert sentence(*result()["comparisons"][0]["effects"]) == (
            "max-num-batched-tokens 128 against 2048: ITL p99 4.2 × lower (3.6 to 4.8), TTFT p95 22.0 % higher "
            "(18.0 to 27.0 %): a trade."
        )

    def test_one_direction_alone_is_no_trade(self) -> None:
        text = sentence(judged("itl.p99", "better", 0.9, 0.88, 0.93, **PRIMARY))
        assert text.endswith("ITL p99 10.0 % lower (7.0 to 12.0 %): better.")

    def test_what_is_open_is_said_after_what_is_decided(self) -> None:
        text = sentence(
            judged("itl.p99", "better", 0.9, 0.88, 0.93, **PRIMARY), judged("ttft.p95", "undecided", 1.01, 0.9, 1.2)
        )
        assert text.endswith(": better; undecided: TTFT p95 1.0 % higher (−10.0 to +20.0 %).")

    def test_no_difference(self) -> None:
        text = sentence(judged("itl.p99", "no difference", 1.002, 0.99, 1.012, **PRIMARY))
        assert text.endswith("no difference that matters (ITL p99 0.2 % higher (−1.0 to +1.2 %)).")

    def test_undecided_says_how_many_more_runs(self) -> None:
        text = sentence(judged("itl.p99", "undecided", 0.95, 0.85, 1.07, more_runs=9, **PRIMARY))
        assert text.endswith("(ITL p99 5.0 % lower (−15.0 to +7.0 %)); about 9 more pairs would settle ITL p99.")

    def test_one_more_is_no_plural(self) -> None:
        text = sentence(judged("itl.p99", "undecided", 0.95, 0.85, 1.07, more_runs=1, **PRIMARY))
        assert text.endswith("about 1 more pair would settle ITL p99.")

    def test_too_few_runs_give_an_estimate_without_an_interval(self) -> None:
        text = sentence(judged("itl.p99", "undecided", 0.5, None, None, **PRIMARY))
        assert "undecided (ITL p99 2 × lower)" in text

    def test_arms_that_differ_in_several_keys_go_by_their_names(self) -> None:
        arms = {"base": arm("base", ["a=1"], 6), "fast": arm("candidate", ["a=2", "b=3"], 6)}
        comparisons = [
            {"base": "base", "cand": "fast", "effects": result()["comparisons"][0]["effects"], "trade": None}
        ]
        design = result()["design"] | {"variables": ["a", "b"]}
        text = sentence(arms=arms, design=design, comparisons=comparisons)
        assert text.startswith("fast against base: ")

    def test_an_interval_that_spans_factors(self) -> None:
        wide = judged("ttft.p50", "undecided", 1.22, 0.9, 60.0, **PRIMARY)
        assert "TTFT p50 1.2 × higher (ratio 0.9 to 60)" in sentence(wide)
        assert (words.change(wide), words.interval(wide)) == ("1.22 ×", "0.9 to 60 ×")

    def test_a_figure_that_no_run_has(self) -> None:
        gone = judged("ttft.p95", "undecided", 1.0, None, None, **PRIMARY) | {"ratio": None, "base": None, "cand": None}
        other = judged("itl.p99", "undecided", 0.9, 0.8, 1.01)
        assert "(TTFT p95 not measured, ITL p99 10.0 % lower" in sentence(gone, other)

    def test_nothing_at_all(self) -> None:
        gone = judged("itl.p99", "undecided", 1.0, None, None, reason="no pair has it", **PRIMARY) | {"ratio": None}
        assert sentence(gone).endswith("nothing was measured (no pair has it).")


class TestWords:
    @pytest.mark.parametrize(
        ("name", "title"),
        [
            ("ttft.p99_9", "TTFT p99.9"),
            ("itl.mean", "ITL mean"),
            ("goodput_per_s", "goodput/s"),
            ("other_thing", "other_thing"),
        ],
    )
    def test_titles(self, name: str, title: str) -> None:
        assert words.title(name) == title

    @pytest.mark.parametrize(
        ("found", "unit", "text"),
        [
            (1530.0, "ms", "1.53 s"),
            (0.214, "share", "21.4 %"),
            (84e9, "bytes", "84,000 MB"),
            (256.3, "tokens/s", "256.3"),
            (0.3, "J", "0.300 J"),
            (None, "ms", "–"),
        ],
    )
    def test_amounts(self, found: float | None, unit: str, text: str) -> None:
        assert words.amount(found, unit) == text

    @pytest.mark.parametrize(
        ("known", "change", "interval"),
        [
            ({"ratio": 1.224, "low": 1.18, "high": 1.27}, "+22.4 %", "+18.0 to +27.0 %"),
            ({"ratio": 4.2, "low": 3.6, "high": 4.8}, "4.2 ×", "3.6 to 4.8 ×"),
            ({"ratio": 0.24, "low": 0.21, "high": 1.02}, "0.24 ×", "0.21 to 1.02 ×"),
            ({"ratio": 0.98, "low": None, "high": None}, "−2.0 %", "–"),
            ({"ratio": -0.02, "low": -0.05, "high": 0.01, "kind": "difference"}, "−0.02", "−0.05 to +0.01"),
        ],
    )
    def test_changes(self, known: dict[str, Any], change: str, interval: str) -> None:
        found = effect("itl.p99", **known)
        assert (words.change(found), words.interval(found)) == (change, interval)

    @pytest.mark.parametrize(("p", "text"), [(0.0002, "<0.001"), (0.03125, "0.031"), (0.4, "0.40"), (None, "–")])
    def test_probabilities(self, p: float | None, text: str) -> None:
        assert words.probability(p) == text


class TestReport:
    def test_verdict_and_what_lowered_it_come_first(self) -> None:
        lines = [line.strip(" │") for line in shown(result()).splitlines()]
        assert "SIMULATED" in lines[0]
        assert "long-prefill-mix" in lines[0]
        assert lines[2] == "SUSPECT   use this comparison with care: 1 warning from 2 checks"
        assert lines[4].startswith("! pairs.lost")
        assert lines[5] == "→ --retry-failed"

    def test_a_failed_check_forbids_the_use(self) -> None:
        codes = [{"code": "pairs.none", "level": "fail", "text": "no pair", "next": ""}]
        text = shown(result(verdict={"status": "INVALID", "exit_code": 3, "codes": codes}))
        assert "do not use this comparison: 1 check of 1 failed" in text
        assert "✘ pairs.none" in text

    def test_good_news_is_short(self) -> None:
        text = shown(result(verdict={"status": "VALID", "exit_code": 0, "codes": []}, simulated=False))
        assert "all 0 checks of the comparison passed" in text
        assert "SIMULATED" not in text

    def test_a_row_has_both_arms_the_change_its_interval_floor_and_p(self) -> None:
        rows = [" ".join(line.split()) for line in shown(result()).splitlines()]
        assert "ITL p99 ● 500 ms 120 ms 0.24 × 0.21 to 0.28 × 2.3 % 0.031 0.031 better" in rows
        assert "TTFT p50 100 ms 100 ms +40.0 % +30.0 to +50.0 % 2.3 % not tested" in rows

    def test_nothing_is_cut_off_at_a_hundred_columns(self) -> None:
        assert "…" not in shown(result())

    @pytest.mark.parametrize("width", [70, 80, 200])
    def test_no_line_is_wider_than_the_terminal_or_the_report(self, width: int) -> None:
        assert max(len(line) for line in shown(result(), width).splitlines()) <= min(width, 100)

    def test_everything_beside_the_effects(self, tmp_path: Path) -> None:
        (tmp_path / "record.md").touch()
        text = squeezed(result(), path=tmp_path)
        for words_of_it in (
            "smaller chunks interrupt the decodes less",
            "6 pairs used of 7 planned, in random balanced order",
            "chance to find a true effect of 3 % with them: 83 %",
            "r03-128: the server died",
            "93.8 % of 16 probes answered alike (95 % within an arm), p 0.40",
            "1500-word prompt from token 12 on (margin 0.31)",
            "KV cache in use, p95 40 % 50 % +25.0 %",
            "not measured: energy per output token",
            f"✔ {KEY}: 2048 → 128",
            "server.kv_cache.blocks: 25 → 26 (a consequence)",
            "record.md",
        ):
            assert words_of_it in text

    def test_a_difference_that_nobody_named_is_marked(self) -> None:
        other = {"arm": "128", "key": "engine.version", "base": "1", "cand": None, "kind": "software", "named": False}
        assert "! engine.version: 1 → not set (not named)" in squeezed(result(differences=[other]))
        many = squeezed(result(differences=[other | {"key": f"k{n}"} for n in range(12)]))
        assert "and 4 more, in experiment.json" in many

    def test_answers_that_differ_are_seen(self) -> None:
        text = squeezed(result(correctness=correctness("differs beyond A/A")))
        assert "128: differs beyond A/A" in text

    def test_brackets_are_text(self) -> None:
        found = result()
        found["design"]["hypothesis"] = "it falls [/s], see [red]#12"
        found["arms"]["run[/1]"] = found["arms"].pop("128")
        found["comparisons"][0]["cand"] = "run[/1]"
        text = squeezed(found)
        assert "it falls [/s], see [red]#12" in text
        assert "figure 2048 run[/1] change" in text

    def test_no_probes_are_said_to_be_none(self) -> None:
        assert "not judged: no probes were asked" in squeezed(result(correctness=None))

    def test_each_candidate_has_its_sentence_and_table(self) -> None:
        one = result()["comparisons"][0]
        arms = result()["arms"] | {"512": arm("candidate", [f"{KEY}=512"], 6)}
        used = {"planned": 7, "used": {"128": 6, "512": 5}, "lost": []}
        text = squeezed(result(comparisons=[one, one | {"cand": "512"}], arms=arms, pairs=used))
        assert "max-num-batched-tokens 512 against 2048: " in text
        assert text.count("ITL p99 ●") == 2
        assert "6 for 128 and 5 for 512 used of 7 planned" in text


class TestUnpaired:
    def compared(self) -> dict[str, Any]:
        effects = [
            judged("itl.p99", "undecided", 0.9, 0.8, 1.01, more_runs=3, reason="may be chance", **PRIMARY)
            | {"paired": False, "n": None, "n_base": 4, "n_cand": 5}
        ]
        design = result()["design"] | {"paired": False, "order": None, "order_seed": None, "hypothesis": None}
        arms = {"a": arm("base", [], 4), "b": arm("candidate", [], 5)}
        pairs = {"planned": None, "used": {"b": 0}, "lost": []}
        difference = {"arm": "b", "key": "engine.version", "base": "1", "cand": "2", "kind": "software", "named": False}
        return result(
            kind="compare",
            design=design | {"variables": []},
            arms=arms,
            pairs=pairs,
            differences=[difference],
            noise_floor=None,
            side_effects=None,
            comparisons=[{"base": "a", "cand": "b", "effects": effects, "trade": None}],
        )

    def test_it_says_what_kind_of_test_it_is(self) -> None:
        text = squeezed(self.compared())
        assert "runs that are no pairs (a 4, b 5): run-level permutation test" in text
        assert "ratio of the geometric means" in text
        assert "about 3 more runs an arm would settle ITL p99" in text

    def test_nothing_was_named_so_nothing_is_marked(self) -> None:
        text = squeezed(self.compared())
        assert "engine.version: 1 → 2" in text
        assert "(not named)" not in text

    def test_pairs_that_were_there_already(self) -> None:
        document = self.compared()
        document["design"]["paired"] = True
        document["pairs"]["used"] = {"b": 4}
        assert "4 pairs of runs that were there already" in squeezed(document)
