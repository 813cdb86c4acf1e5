import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from servebench.analysis import exit_code, summarize
from servebench.analysis.data import load
from servebench.errors import ExitCode
from servebench.record.columns import Outcome
from servebench.report.summary_io import encode
from servebench.testing.synthetic import SyntheticRun, closed_run, open_run

SCHEMA = json.loads((resources.files("servebench.analysis") / "summary.schema.json").read_text())


def failing_run() -> SyntheticRun:
    run = open_run(requests=120, rate=20, warmup=1, cooldown=1)
    for index in range(120):
        run.fail(index, Outcome.CONNECT_ERROR, "connection refused")
    return run


def killed_run() -> SyntheticRun:
    run = open_run(requests=300)
    run.manifest = {k: run.manifest[k] for k in ("schema", "name", "scenario", "created_ns")} | {"status": "running"}
    return run


def empty_run() -> SyntheticRun:
    run = killed_run()
    run.records, run.chunks, run.samples = [], {}, []
    return run


def mixed_run() -> SyntheticRun:
    run = open_run(slo={"ttft": ["p95 < 55ms", "p99.9 < 1s"], "itl": ["p99 < 60ms"]}, tokens_per_chunk=3)
    for index, outcome in enumerate(o for o in Outcome if o != Outcome.OK):
        run.fail(200 + 10 * index, outcome, f"{outcome} happened", 500)
    return run


RUNS = {
    "open": lambda: open_run(slo={"ttft": "p95 < 60ms"}),
    "closed": closed_run,
    "failing": failing_run,
    "killed": killed_run,
    "empty": empty_run,
    "mixed": mixed_run,
}


@pytest.fixture(params=RUNS)
def summary(request: pytest.FixtureRequest, run_path: Path) -> dict[str, Any]:
    return summarize(RUNS[request.param]().write(run_path))


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_summary_keeps_to_the_schema(summary: dict[str, Any]) -> None:
    jsonschema.validate(summary, SCHEMA)


def test_summary_is_strict_json(summary: dict[str, Any]) -> None:
    assert json.loads(encode(summary)) == summary


@pytest.mark.parametrize("kind", ["open", "closed", "killed", "mixed"])
def test_recomputing_gives_the_same_bytes(kind: str, run_path: Path) -> None:
    run = RUNS[kind]().write(run_path)
    assert encode(summarize(run)) == encode(summarize(run))


def test_merging_the_journals_changes_no_figure(run_path: Path) -> None:
    made = open_run(requests=200)
    made.manifest["status"] = "interrupted"
    run = made.write(run_path)
    before = encode(summarize(run))
    run.finalise()
    assert encode(summarize(run)) == before


def test_tokens_of_the_whole_run_are_those_of_every_request(run_path: Path) -> None:
    run = open_run(requests=200)
    run.records[199].outcome = Outcome.RESET  # what a failed one received counts as well
    found = summarize(run.write(run_path))["tokens"]
    assert found["output"] == 200 * 40
    assert found["input"] == 200 * 200
    assert 0 < found["cohort_output"] < found["output"]
    assert found["source"] == {"events": 200}


def test_what_does_not_exist_is_null(run_path: Path) -> None:
    found = summarize(failing_run().write(run_path))
    ttft = found["metrics"]["ttft"]
    assert (ttft["n"], ttft["p99"], ttft["mean"], ttft["within_run"]) == (0, None, None, None)
    assert found["tokens"]["input"] is None
    assert found["slo"] is None
    assert found["throughput"]["attainment"] is None
    assert found["verdict"]["status"] == "INVALID"
    assert found["errors"] == [
        {"outcome": "connect_error", "http_status": None, "error": "connection refused", "n": 120}
    ]


def test_ranks_and_floors_are_told(run_path: Path) -> None:
    found = summarize(open_run().write(run_path))["metrics"]["ttft"]
    n = found["n"]
    assert found["ranks"] == {
        "p50": -(-n // 2),
        "p90": -(-n * 9 // 10),
        "p95": -(-n * 19 // 20),
        "p99": -(-n * 99 // 100),
        "p99_9": -(-n * 999 // 1000),
    }
    assert 130 <= n < 662
    assert found["below_floor"] == ["p99", "p99_9"]


def test_times_are_exact_milliseconds(run_path: Path) -> None:
    made = open_run(requests=50, warmup=0, cooldown=0)
    slowest = max(r.first_token_ns - r.scheduled_ns for r in made.records[:-1])
    assert summarize(made.write(run_path))["metrics"]["ttft"]["max"] * 1e6 == pytest.approx(slowest, abs=0.6)


def test_incomplete_is_said(run_path: Path) -> None:
    found = summarize(killed_run().write(run_path))
    assert found["incomplete"]
    assert found["verdict"]["status"] != "VALID"
    assert "stats.incomplete" in {c["code"] for c in found["verdict"]["codes"] if c["level"] == "warn"}


@pytest.mark.parametrize(
    ("slo", "code"),
    [(None, ExitCode.GOOD), ({"ttft": "p95 < 60ms"}, ExitCode.GOOD), ({"ttft": "p95 < 40ms"}, ExitCode.OBJECTIVE)],
)
def test_exit_code(slo: dict[str, str] | None, code: ExitCode, run_path: Path) -> None:
    assert exit_code(summarize(open_run(slo=slo).write(run_path))) == code


def test_unsorted_journals_are_sorted(run_path: Path) -> None:
    made = open_run(requests=60, warmup=0, cooldown=0)
    made.manifest["status"] = "interrupted"
    made.records.reverse()
    run = made.write(run_path)
    data = load(run)
    assert data.requests.index.tolist() == list(range(60))
    assert summarize(run)["verdict"]["status"] == "SUSPECT"


def test_chunks_of_an_unknown_request_are_refused() -> None:
    from servebench.analysis.data import chunk_columns, request_columns

    run = open_run(requests=5)
    requests = request_columns(run.requests().slice(0, 4))
    with pytest.raises(ValueError, match="without a record"):
        chunk_columns(run.chunk_table(), requests.index)


def test_importing_the_analysis_alone_is_light() -> None:
    import subprocess

    code = "import sys, servebench.analysis; print('numpy' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
