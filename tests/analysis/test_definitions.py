"""The other tools' formulas, each against a plain loop."""

from typing import Any

import numpy as np
import pytest

from servebench.analysis.definitions import TOOLS, under
from servebench.record.columns import Outcome
from servebench.testing.synthetic import SyntheticRun, open_run


@pytest.fixture
def run() -> SyntheticRun:
    made = open_run(requests=60, warmup=1, cooldown=1, tokens=13, tokens_per_chunk=4)
    made.fail(20, Outcome.TIMEOUT)
    return made


def rows(run: SyntheticRun, tool: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in under(run.data(), tool)["metrics"]}


def ok(run: SyntheticRun) -> list[Any]:
    return [r for r in run.records if r.outcome == Outcome.OK]


def check(row: dict[str, Any], values: list[float]) -> None:
    assert row["n"] == len(values)
    assert row["mean"] == pytest.approx(np.mean(values))
    assert row["p99"] == pytest.approx(np.percentile(values, 99))


def test_vllm(run: SyntheticRun) -> None:
    found = rows(run, "vllm")
    check(found["TTFT"], [(r.first_token_ns - r.dispatched_ns) / 1e6 for r in ok(run)])
    check(found["TPOT"], [(r.last_token_ns - r.first_token_ns) / 1e6 / 12 for r in ok(run)])
    check(found["E2EL"], [(r.last_token_ns - r.dispatched_ns) / 1e6 for r in ok(run)])
    check(found["ITL"], [gap / 1e6 for r in ok(run) for gap in np.diff(run.chunks[r.index][0])])
    span = (max(r.end_ns for r in ok(run)) - min(r.dispatched_ns for r in ok(run))) / 1e9
    assert found["request throughput"]["mean"] == pytest.approx(59 / span)
    assert found["output token throughput"]["mean"] == pytest.approx(59 * 13 / span)
    assert found["total token throughput"]["mean"] == pytest.approx(59 * 213 / span)


def test_aiperf(run: SyntheticRun) -> None:
    found = rows(run, "aiperf")
    itl = [(r.last_token_ns - r.first_token_ns) / 1e6 / 12 for r in ok(run)]
    check(found["inter token latency"], itl)
    check(found["output token throughput per user"], [1e3 / v for v in itl])
    check(found["time to second token"], [float(np.diff(run.chunks[r.index][0])[0]) / 1e6 for r in ok(run)])


def test_guidellm_tpot_includes_the_first_wait(run: SyntheticRun) -> None:
    found = rows(run, "guidellm")
    check(found["TPOT"], [(r.last_token_ns - r.dispatched_ns) / 1e6 / 13 for r in ok(run)])
    check(found["request latency"], [(r.end_ns - r.dispatched_ns) / 1e6 for r in ok(run)])


def test_guidellm_weights_its_itl_by_tokens(run: SyntheticRun) -> None:
    few = run.records[5]
    few.output_tokens = 2
    values = [(r.last_token_ns - r.first_token_ns) / 1e6 / (r.output_tokens - 1) for r in ok(run)]
    weights = [r.output_tokens - 1 for r in ok(run)]
    assert rows(run, "guidellm")["ITL"]["mean"] == pytest.approx(np.average(values, weights=weights))


def test_llmperf_divides_by_chunks(run: SyntheticRun) -> None:
    found = rows(run, "llmperf")
    check(found["inter_token_latency"], [(r.last_token_ns - r.dispatched_ns) / 1e6 / 4 for r in ok(run)])
    check(found["request_output_throughput"], [13e9 / (r.end_ns - r.dispatched_ns) for r in ok(run)])


@pytest.mark.parametrize("tool", TOOLS)
def test_a_run_without_any_success_has_no_figures(tool: str) -> None:
    run = open_run(requests=10, warmup=0, cooldown=0)
    for index in range(10):
        run.fail(index, Outcome.TIMEOUT)
    for row in under(run.data(), tool)["metrics"]:
        assert row["n"] in (0, None)
        assert row["mean"] is None
        assert row["p99"] is None


@pytest.mark.parametrize("tool", TOOLS)
def test_ours_are_names_of_the_summary(tool: str, run: SyntheticRun) -> None:
    from servebench.analysis.facts import gather
    from servebench.analysis.summary import document

    summary = document(gather(run.data()))
    for row in under(run.data(), tool)["metrics"]:
        assert not row["ours"] or row["ours"] in summary["metrics"] or row["ours"] in summary["throughput"]
