"""vLLM's result file: its keys, its formulas, and what consumers rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servebench.analysis.definitions import under
from servebench.record.rundir import RunDir
from servebench.report.summary_io import read
from servebench.testing.synthetic import open_run

KEYS = {
    *("date", "endpoint_type", "backend", "label", "model_id", "num_prompts", "request_rate", "burstiness"),
    *("max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "input_lens"),
    *("output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors"),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
}
MARKS = ("mean", "median", "std", "p50", "p90", "p95", "p99", "p99.9")
STATISTICS = {f"{mark}_{name}_ms" for mark in MARKS for name in ("ttft", "tpot", "itl", "e2el")}
METADATA = {"servebench", "verdict", "note"}
ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors")


def refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def document(made: Any, folder: Path) -> dict[str, Any]:
    (file,) = made.write("vllm", folder / "out.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"), parse_constant=refuse)
    return found


def test_the_keys_are_those_of_vllm(example: Any, tmp_path: Path) -> None:
    found = document(example, tmp_path)
    assert set(found) == KEYS | STATISTICS | METADATA
    assert (found["backend"], found["model_id"], found["label"]) == ("openai-chat", "tiny-random", "chat")
    assert (found["request_rate"], found["burstiness"], found["max_concurrency"]) == (4.0, 1.0, None)
    assert (found["verdict"], found["note"]) == ("VALID", "RANDOM WEIGHTS")


@pytest.mark.parametrize("name", ["example", "mixed"])
def test_the_figures_are_those_of_the_report_by_vllms_definitions(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made = request.getfixturevalue(name)
    found, theirs = document(made, tmp_path), under(read(made.run), "vllm")["metrics"]
    for title, key in {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2el"}.items():
        row = next(row for row in theirs if row["name"] == title)
        for mark, ours in {"mean": "mean", "median": "p50", "p95": "p95", "p99": "p99"}.items():
            assert found[f"{mark}_{key}_ms"] == pytest.approx(row[ours], abs=1e-6)
    rates = ("request_throughput", "output_throughput", "total_token_throughput")
    for key, row in zip(rates, theirs[4:], strict=True):
        assert found[key] == pytest.approx(row["mean"], abs=1e-6)


def test_the_totals_are_those_of_the_summary(example: Any, tmp_path: Path) -> None:
    found, tokens = document(example, tmp_path), example.summary["tokens"]
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (tokens["input"], tokens["output"])
    assert (found["completed"], found["failed"], found["num_prompts"]) == (260, 0, 260)
    assert found["output_throughput"] * found["duration"] == pytest.approx(tokens["output"])


@pytest.mark.parametrize("name", ["example", "mixed"])
def test_the_details_give_the_figures_again(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    found = document(request.getfixturevalue(name), tmp_path)
    assert {len(found[key]) for key in ARRAYS} == {found["num_prompts"]}
    good = [i for i, error in enumerate(found["errors"]) if not error]
    assert len(good) == found["completed"]
    assert sum(found["output_lens"]) == found["total_output_tokens"]
    assert np.percentile([found["ttfts"][i] for i in good], 99) * 1e3 == pytest.approx(found["p99_ttft_ms"])
    assert np.mean([gap for i in good for gap in found["itls"][i]]) * 1e3 == pytest.approx(found["mean_itl_ms"])
    for i in good:
        assert found["ttfts"][i] + sum(found["itls"][i]) == pytest.approx(found["latencies"][i])


def test_the_peaks_are_what_vllm_computes_from_the_details(example: Any, tmp_path: Path) -> None:
    found = document(example, tmp_path)
    first = min(found["start_times"])
    tokens, level = np.zeros(200), np.zeros(200)
    for i, start in enumerate(found["start_times"]):
        at = start + found["ttfts"][i] + np.concatenate([[0.0], np.cumsum(found["itls"][i])])
        np.add.at(tokens, (at - first).astype(int), 1)
        level[int(start - first) : int(start + found["latencies"][i] - first) + 1] += 1
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (tokens.max(), level.max())


def test_what_failed_has_an_error_and_what_was_never_sent_is_not_there(mixed: Any, tmp_path: Path) -> None:
    found = document(mixed, tmp_path)
    assert (found["num_prompts"], found["completed"], found["failed"]) == (199, 197, 2)
    assert sorted(error for error in found["errors"] if error) == [
        'http_error: HTTP 500: "a|b", <b>*c*</b>',
        "timeout: no byte for 60 s",
    ]
    assert found["output_lens"][60] == found["ttfts"][60] == 0
    assert found["note"] == "SIMULATED"


def test_without_an_answer_there_are_no_rates(failed: Any, tmp_path: Path) -> None:
    found = document(failed, tmp_path)
    assert (found["completed"], found["failed"]) == (0, 20)
    assert not {"duration", "request_throughput", "mean_ttft_ms", "max_output_tokens_per_s"} & set(found)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ({"gamma": {"rate": 8.0, "cv": 2.0}}, {"request_rate": 8.0, "burstiness": 0.25, "max_concurrency": None}),
        ({"constant": 3.0}, {"request_rate": 3.0, "max_concurrency": None}),
        ({"ramp": {"from": 1.0, "to": 3.0}}, {"max_concurrency": None}),
        ({"poisson": 2.0, "max_in_flight": {"limit": 9, "policy": "wait"}}, {"max_concurrency": 9}),
        ({"poisson": 2.0, "max_in_flight": {"limit": 9, "policy": "drop"}}, {"max_concurrency": None}),
        ({"closed": {"concurrency": 7, "think": 0.0}}, {"request_rate": "inf", "max_concurrency": 7}),
    ],
)
def test_the_load_in_vllms_words(load: dict[str, Any], expected: dict[str, Any], mixed: Any, tmp_path: Path) -> None:
    run = open_run(requests=20, warmup=0.1, cooldown=0.1)
    kept = {key: value for key, value in run.manifest["scenario"]["load"].items() if key != "poisson"}
    run.manifest["scenario"]["load"] = kept | load
    written: RunDir = run.write(tmp_path / "run")
    found = document(type(mixed)(written, mixed.summary), tmp_path)
    assert found.items() >= expected.items()
    assert ("queue_times" in found) == ("closed" not in load)
    absent = {"request_rate", "burstiness"} - set(expected) if "poisson" not in load else set()
    assert not absent & set(found)
