"""The report of a capacity search: the bracket first, what broke, a row a rate, curves."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from servebench.report.capacity import bracket, notes, sentences
from servebench.report.experiments import print_experiment


def probe(rate: float, decision: str, share: float = 1.0, **more: Any) -> dict[str, Any]:
    kept = {"value": share, "low": share - 0.02, "high": min(share + 0.01, 1.0), "target": 0.95, "decision": decision}
    return {
        "rate": rate,
        "runs": 2,
        "failed_runs": 0,
        "cells": ["a", "b"],
        "decision": decision,
        "binding": "ttft p95",
        "attainment": {"ttft p95": kept},
        "backlog": {"growth": 0.004},
        "all_objectives": share,
        "ttft_p95_ms": 100.0 * rate,
        "itl_p99_ms": None,
        "goodput_per_s": rate * share,
    } | more


def result(**more: Any) -> dict[str, Any]:
    return {
        "sustained_per_s": 4.76,
        "failed_per_s": 5.19,
        "max_per_s": None,
        "goodput_per_s": 4.61,
        "binding": {"objective": "ttft p95", "text": "93.1 % kept to ttft p95, target 95 %, at 5.19/s"},
        "slo": [{"objective": "ttft p95", "text": "ttft p95 < 800 ms", "target": 0.95}],
        "probes": [probe(2, "pass"), probe(4.76, "pass", 0.97), probe(5.19, "fail", 0.931), probe(8, "fail", 0.0)],
        "tokens": {"output_tokens_per_s": 950.0},
        "engine": {
            "name": "vllm",
            "version": "0.32.0",
            "model": "tiny",
            "flags": {"max-num-seqs": 64},
            "gpus": 2,
            "gpu": "H200",
        },
        "duration_s": 60.0,
        "confirmed": True,
        "confidence": 0.95,
        "budget": {"spent_s": 1234.0},
        "verdict": {"status": "VALID", "codes": [{"code": "capacity.bracket", "level": "ok", "text": "", "next": ""}]},
    } | more


def printed(found: dict[str, Any], width: int = 100, simulated: bool = False) -> str:
    console = Console(width=width, highlight=False, record=True, file=io.StringIO())
    document = {"kind": "capacity", "name": "chat", "cells": [], "simulated": simulated, "result": found}
    print_experiment(document, console=console)
    return console.export_text()


def test_the_bracket_comes_first() -> None:
    lines = [line.strip() for line in printed(result()).splitlines() if line.strip()]
    assert lines[1] == "VALID   capacity of one replica: 4.76/s sustained .. 5.19/s failed"
    assert lines[2] == "at 4.76/s: goodput 4.61 requests/s, 950.0 output tokens/s; confirmed with other seeds"
    assert lines[3] == "what breaks first: 93.1 % kept to ttft p95, target 95 %, at 5.19/s"
    assert lines[4] == "SLO: ttft p95 < 800 ms; no backlog that grows"
    assert lines[5] == "tiny · vllm 0.32.0 · --max-num-seqs 64 · 2 × H200"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (4.0, None, "at least 4/s: no rate failed"),
        (None, 1.0, "below 1/s, the lowest rate that was tried"),
        (None, None, "no rate could be decided"),
    ],
)
def test_a_bracket_that_is_open(low: float | None, high: float | None, text: str) -> None:
    found = result(sustained_per_s=low, failed_per_s=high, binding={"objective": None, "text": "no rate failed"})
    assert bracket(found) == text
    assert text in printed(found)
    assert ("what breaks first" in " ".join(sentences(found))) == (high is not None)


def test_a_rate_below_the_failed_one_that_could_not_be_decided_is_named() -> None:
    found = result(sustained_per_s=None, failed_per_s=4.0, probes=[probe(2, "undecided"), probe(4, "fail")])
    assert bracket(found) == "below 4/s, as 2/s could not be decided"


def test_the_table_has_a_row_a_rate_the_highest_first() -> None:
    text = printed(result())
    rows = [line.split() for line in text.splitlines() if line.strip().startswith(("8/s", "5.19/s", "4.76/s", "2/s"))]
    assert [row[0] for row in rows] == ["8/s", "5.19/s", "4.76/s", "2/s"]
    assert rows[1][1:5] == ["2", "✘", "ttft", "p95"]
    assert "93.1 (91.1–94.1)" in text
    assert "+0.4 %" in text


def test_no_column_is_lost_where_there_are_two_objectives() -> None:
    kept = {"value": 0.537, "low": 0.0131, "high": 0.9931, "target": 0.95, "decision": "fail"}
    slo = [{"objective": name, "text": f"{name} < 800 ms", "target": 0.95} for name in ("ttft p95", "itl p99")]
    both = {"attainment": {"ttft p95": kept, "itl p99": kept}, "ttft_p95_ms": 10_410.0, "itl_p99_ms": 137.0}
    lines = printed(result(slo=slo, probes=[probe(67.9, "fail", **both), probe(4, "pass", **both)])).splitlines()
    row = next(line.split() for line in lines if line.strip().startswith("67.9/s"))
    share = ["53.7", "(1.3–99.3)"]
    assert row == ["67.9/s", "2", "✘", "ttft", "p95", *share, *share, "+0.4", "%", "10.41", "s", "137", "ms", "67.90"]
    assert max(map(len, lines)) <= 100


def test_runs_that_were_lost_are_marked_and_explained() -> None:
    lost = result(probes=[probe(2, "undecided", failed_runs=1), probe(4, "fail")])
    text = printed(lost)
    assert "2+1✘" in text
    assert "✘: runs that failed, or say nothing of the server" in text
    assert not any("runs that failed" in note for note in notes(result()))


def test_a_rate_without_a_usable_run_has_dashes() -> None:
    nothing = {"runs": 0, "failed_runs": 2, "attainment": {}, "backlog": None, "all_objectives": None}
    blind = probe(8, "undecided", **nothing, binding=None, ttft_p95_ms=None, goodput_per_s=None)
    text = printed(result(probes=[probe(4, "pass"), probe(6, "pass"), blind]))
    row = next(line for line in text.splitlines() if line.strip().startswith("8/s"))
    assert row.count("–") == 5
    assert "None" not in text


def test_codes_that_are_not_ok_are_shown_with_what_to_do() -> None:
    code = {"code": "capacity.precision", "level": "warn", "text": "19 % apart", "next": "give longer runs"}
    text = printed(result(verdict={"status": "SUSPECT", "codes": [code]}))
    assert "! capacity.precision 19 % apart; give longer runs" in text
    assert "capacity.bracket" not in text


def test_curves_need_two_rates() -> None:
    assert "% within every objective, by requests/s" in printed(result())
    assert "by requests/s" not in printed(result(probes=[probe(4, "pass")]))


def test_a_simulated_answer_says_so_and_fits_its_width() -> None:
    text = printed(result(), simulated=True)
    assert text.index("SIMULATED") < text.index("4.76/s sustained")
    assert max(map(len, text.splitlines())) <= 100


def test_all_of_an_interval_is_all_whatever_the_last_bit_says() -> None:
    kept = {"value": 1.0, "low": 0.99, "high": 0.9999999999999998, "target": 0.95, "decision": "pass"}
    assert "100 (99.0–100)" in printed(result(probes=[probe(2, "pass", attainment={"ttft p95": kept})]))


def test_shares_are_never_rounded_to_all_or_nothing() -> None:
    nearly = probe(4, "undecided", 0.99999)
    assert "99.9 (" in printed(result(probes=[nearly, probe(5, "fail", 0.00001)]))
    assert "0.1 (" in printed(result(probes=[nearly, probe(5, "fail", 0.00001)]))
