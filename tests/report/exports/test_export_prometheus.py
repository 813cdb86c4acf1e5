"""The exposition, read by prometheus_client's own parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[str, list[tuple[dict[str, str], float]]]
EVERY = {"name", "model", "verdict", "marks"}


def samples(made: Any, folder: Path) -> Samples:
    (file,) = made.write("prometheus", folder / "out.prom")
    found: Samples = {}
    for family in text_string_to_metric_families(file.read_text("utf-8")):
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            assert sample.timestamp is None, "a push gateway refuses them"
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def one(found: Samples, name: str, **labels: str) -> float:
    (value,) = [value for has, value in found[name] if has.items() >= labels.items()]
    return value


@pytest.mark.parametrize("name", ["example", "mixed"])
def test_the_parser_finds_the_figures_of_the_summary(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = request.getfixturevalue(name)
    found = samples(made, tmp_path)
    marks = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99", "0.999": "p99_9"}
    for metric, figures in made.metrics.items():
        for quantile, mark in marks.items():
            value = one(found, f"servebench_{metric}_seconds", quantile=quantile)
            assert value * 1e3 == pytest.approx(figures[mark], abs=1e-9)
        assert one(found, f"servebench_{metric}_samples") == figures["n"]
    assert one(found, "servebench_output_tokens") == made.summary["tokens"]["output"]
    rate = made.summary["throughput"]["output_tokens_per_s"]
    assert one(found, "servebench_output_tokens_per_second") == rate


@pytest.mark.parametrize("name", ["example", "mixed", "failed", "cut"])
def test_outcomes_and_checks_add_up(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = request.getfixturevalue(name)
    found = samples(made, tmp_path)
    outcomes = found["servebench_requests"]
    assert sum(value for _, value in outcomes) == one(found, "servebench_requests_planned")
    assert one(found, "servebench_requests", outcome="ok") == made.summary["outcomes"]["ok"]
    assert sum(value for _, value in found["servebench_checks"]) == len(made.summary["verdict"]["codes"])


def test_every_sample_says_which_run_and_what_it_is_worth(mixed: Any, tmp_path: Path) -> None:
    found = samples(mixed, tmp_path)
    everywhere = [labels for family in found.values() for labels, _ in family]
    assert all(set(labels) >= EVERY for labels in everywhere)
    assert {labels["model"] for labels in everywhere} == {'my|model "x" <y>'}
    assert {labels["marks"] for labels in everywhere} == {"SIMULATED"}
    assert {labels["verdict"] for labels in everywhere} == {mixed.summary["verdict"]["status"]}


def test_no_two_samples_are_of_the_same_series(mixed: Any, tmp_path: Path) -> None:
    for name, family in samples(mixed, tmp_path).items():
        assert len({tuple(sorted(labels.items())) for labels, _ in family}) == len(family), name


def test_what_does_not_exist_has_no_sample(failed: Any, tmp_path: Path) -> None:
    found = samples(failed, tmp_path)
    assert "servebench_ttft_seconds" not in found
    assert one(found, "servebench_ttft_samples") == 0
    assert "servebench_slo_met" not in found
