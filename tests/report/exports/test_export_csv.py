"""The CSV folder, read by the csv module and by pyarrow."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow.csv import read_csv

from servebench.analysis.quantiles import Quantile, rank

PER_REQUEST = ("ttft", "ttft_service", "ttfv", "tpot", "e2e", "e2e_service", "stall")
OF_ALL_SENT = ("schedule_lag", "send_lag")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def requests(made: Any, folder: Path) -> list[dict[str, str]]:
    made.write("csv", folder / "out")
    return rows(folder / "out" / "requests.csv")


def p99(values: list[float]) -> float:
    return sorted(values)[rank(Quantile.parse("p99"), len(values)) - 1]


@pytest.mark.parametrize("name", ["example", "mixed", "failed", "cut"])
def test_what_it_adds_up_to_is_in_the_summary(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = request.getfixturevalue(name)
    table = requests(made, tmp_path)
    outcomes = {word: n for word, n in made.summary["outcomes"].items() if n}
    assert Counter(row["outcome"] for row in table).items() <= outcomes.items()
    assert len(table) == outcomes["planned"] - outcomes.get("unrecorded", 0)
    cohort = [row for row in table if row["cohort"] == "true"]
    assert sum(row["outcome"] == "ok" for row in cohort) == made.summary["cohort"]["ok"]
    assert sum(int(row["input_tokens"] or 0) for row in table) == (made.summary["tokens"]["input"] or 0)
    assert sum(int(row["output_tokens"] or 0) for row in table) == made.summary["tokens"]["output"]


@pytest.mark.parametrize("name", ["example", "mixed"])
def test_the_latencies_are_those_of_the_summary(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = request.getfixturevalue(name)
    cohort = [row for row in requests(made, tmp_path) if row["cohort"] == "true"]
    ok = [row for row in cohort if row["outcome"] == "ok"]
    for metric in (*PER_REQUEST, *OF_ALL_SENT):
        population = cohort if metric in OF_ALL_SENT else ok
        values = [float(row[f"{metric}_ms"]) for row in population if row[f"{metric}_ms"]]
        assert len(values) == made.metrics[metric]["n"]
        assert sum(values) / len(values) == pytest.approx(made.metrics[metric]["mean"], abs=1e-6)
        assert (p99(values), max(values)) == (made.metrics[metric]["p99"], made.metrics[metric]["max"])


def test_pyarrow_reads_the_recorded_columns_back(example: Any, tmp_path: Path) -> None:
    example.write("csv", tmp_path / "out")
    read, recorded = read_csv(tmp_path / "out" / "requests.csv"), example.run.requests()
    for field in recorded.schema:
        if recorded[field.name].null_count < len(recorded):
            assert read[field.name].cast(field.type).to_pylist() == recorded[field.name].to_pylist(), field.name
    samples = read_csv(tmp_path / "out" / "telemetry.csv").select(["source", "device", "name", "t_ns", "value"])
    assert samples.to_pylist() == example.run.telemetry().to_pylist()


def test_milliseconds_are_exact_and_count_from_the_start(example: Any, tmp_path: Path) -> None:
    start = example.summary["phases"]["start_ns"]
    for row in requests(example, tmp_path):
        assert round(float(row["last_token_ms"]) * 1e6) == int(row["last_token_ns"]) - start
        assert len(row["last_token_ms"].partition(".")[2]) <= 6


def test_what_did_not_happen_is_empty(mixed: Any, tmp_path: Path) -> None:
    by_index = {int(row["index"]): row for row in requests(mixed, tmp_path)}
    dropped = by_index[61]
    assert dropped["outcome"] == "dropped"
    assert {dropped[c] for c in ("sent_ns", "sent_ms", "ttft_ms", "e2e_ms", "output_tokens", "send_lag_ms")} == {""}
    assert by_index[60]["error"] == 'HTTP 500: "a|b", <b>*c*</b>'


def test_every_column_is_explained_and_the_marks_stand_in_every_row(mixed: Any, tmp_path: Path) -> None:
    table = requests(mixed, tmp_path)
    assert {row["marks"] for row in table} == {"SIMULATED"}
    page = (tmp_path / "out" / "columns.md").read_text("utf-8")
    assert page.startswith("# ")
    assert "SIMULATED" in page.splitlines()[0]
    explained = dict(re.findall(r"^\| (\w+) \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    assert set(table[0]) <= set(explained)
    assert all(meaning.strip() for meaning in explained.values())
    assert explained["ttft_ms"] == "first_token − scheduled"
    assert explained["sent_ms"].endswith("since the load began")
