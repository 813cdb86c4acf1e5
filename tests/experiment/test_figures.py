from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servebench.errors import UsageError
from servebench.experiment.figures import LATENCIES, family_of, figure, known, value_of

EXAMPLE = Path(__file__).parents[2] / "results" / "example-chat" / "summary.json"
CHAT = {"slo": {"ttft": ["p95 < 800ms"], "itl": ["p99 < 60ms", "p50 < 20ms"]}, "load": {"poisson": 4.0}}


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXAMPLE.read_text("utf-8"))
    return document


def test_every_known_figure_has_a_unit_and_a_direction() -> None:
    assert len(known()) == len(set(known())) > 50
    for name in known():
        found = figure(name)
        assert found.name == name
        assert found.better in ("lower", "higher")
        assert found.title
        assert found.unit == "ms" or name.partition(".")[0] not in LATENCIES


def test_more_is_better_only_of_work_done() -> None:
    higher = {name for name in known() if figure(name).better == "higher"}
    assert {"output_tokens_per_s", "goodput_per_s", "attainment"} < higher
    assert not {"ttft.p99", "failed_share", "j_per_output_token", "preemptions"} & higher


def test_values_are_those_of_the_summary(summary: dict[str, Any]) -> None:
    assert value_of(summary, "ttft.p99") == summary["metrics"]["ttft"]["p99"]
    assert value_of(summary, "itl.p99.9") == value_of(summary, "itl.p99_9") == summary["metrics"]["itl"]["p99_9"]
    assert value_of(summary, "e2e.mean") == summary["metrics"]["e2e"]["mean"]
    assert value_of(summary, "output_tokens_per_s") == summary["throughput"]["output_tokens_per_s"]
    assert value_of(summary, "preemptions") == summary["server_side"]["counters"]["preemptions"]["window"]
    assert value_of(summary, "queue_mean") == summary["server_side"]["histograms"]["queue"]["window_mean_ms"]


def test_the_example_has_every_figure_but_those_of_a_gpu(summary: dict[str, Any]) -> None:
    missing = {name for name in known() if value_of(summary, name) is None}
    assert missing == {"j_per_output_token", "j_per_request", "mean_power"}


def test_what_a_run_lacks_is_none_and_not_zero() -> None:
    assert all(value_of({}, name) is None for name in known())
    assert value_of({"metrics": {"ttft": {"p99": None}}, "energy": None}, "ttft.p99") is None
    assert value_of({"energy": None}, "j_per_output_token") is None


def test_failed_share_counts_whatever_did_not_end_well() -> None:
    assert value_of({"cohort": {"planned": 200, "ok": 190, "failed": 4}}, "failed_share") == pytest.approx(0.05)
    assert value_of({"cohort": {"planned": 0, "ok": 0}}, "failed_share") is None


def test_an_objectives_own_quantile_is_a_figure() -> None:
    objective = {"metric": "ttft", "quantile": "p97", "value": 12.5}
    run = {"metrics": {"ttft": {"p99": 20.0}}, "slo": {"objectives": [objective]}}
    assert value_of(run, "ttft.p97") == 12.5
    assert value_of(run, "ttft.p98") is None
    assert figure("ttft.p97").unit == "ms"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("tfft.p99", "ttft.p99"), ("ttft.p999", "ttft.p99"), ("output_tokens", "output_tokens_per_s"), ("itl", "itl")],
)
def test_a_wrong_name_is_answered_with_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(UsageError, match=f'no figure "{wrong}" .*"{right}'):
        figure(wrong)


def test_the_family_is_the_objectives_in_their_order() -> None:
    assert family_of(CHAT, None, ()) == ("ttft.p95", "itl.p99", "itl.p50")


def test_the_primary_comes_first_and_nothing_twice() -> None:
    assert family_of(CHAT, "itl.p99", ("ttft.p95", "e2e.p50")) == ("itl.p99", "ttft.p95", "itl.p50", "e2e.p50")


def test_without_objectives_and_in_a_closed_loop() -> None:
    assert family_of({"load": {"poisson": 1}}, None, ()) == ("ttft.p99", "itl.p99")
    assert family_of({"load": {"closed": {"concurrency": 2}}}, None, ())[-1] == "output_tokens_per_s"


def test_an_objective_of_many_nines() -> None:
    assert family_of({"slo": {"ttft": ["p99.9 < 2s"]}}, None, ()) == ("ttft.p99_9",)


def test_a_family_of_unknown_figures_is_refused() -> None:
    with pytest.raises(UsageError, match="no figure"):
        family_of(CHAT, "latency", ())


def test_a_quantile_that_no_run_keeps_is_refused_before_it_is_missing() -> None:
    for primary, more in (("ttft.p97", ()), (None, ("ttft.p97",))):
        with pytest.raises(UsageError, match=r"p97 of ttft is not kept: runs keep mean, p50, .*, p99\.9 of"):
            family_of(CHAT, primary, more)
    assert family_of({"slo": {"ttft": ["p97 < 2s"]}}, "ttft.p97") == ("ttft.p97",)
