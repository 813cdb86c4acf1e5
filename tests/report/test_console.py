"""The console report: what it must say, in what order, and that it fits."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from servebench.analysis.definitions import TOOLS, under
from servebench.analysis.facts import gather
from servebench.analysis.summary import document
from servebench.record.columns import Outcome
from servebench.report.console import print_report, render
from servebench.testing.synthetic import MS, SyntheticRun, closed_run, open_run


def summary_of(run: SyntheticRun) -> dict[str, Any]:
    return document(gather(run.data()))


def shown(summary: dict[str, Any], width: int = 100, **kwargs: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(render(summary, **kwargs))
    return out.getvalue()


def words(text: str) -> str:
    """The text without frames and line breaks."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


@pytest.fixture
def healthy() -> dict[str, Any]:
    return summary_of(open_run(slo={"ttft": ["p95 < 60ms"], "itl": ["p99 < 8ms"]}))


def failing_run() -> SyntheticRun:
    run = open_run(requests=60, warmup=0.5, cooldown=0.5)
    for index in range(60):
        run.fail(index, Outcome.CONNECT_ERROR, "connection refused")
    return run


def test_the_verdict_comes_first(healthy: dict[str, Any]) -> None:
    text = shown(healthy)
    order = ["VALID", "users wait", "TTFT", "SLO   ", "Throughput", "Lengths", "Outcomes", "Client", "Window"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [70, 80, 100, 120])
@pytest.mark.parametrize("make", [open_run, closed_run, failing_run])
def test_it_fits_and_no_figure_is_cut(width: int, make: Any) -> None:
    text = shown(summary_of(make()), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_latencies_with_their_n_and_unit(healthy: dict[str, Any]) -> None:
    line = next(line for line in shown(healthy).splitlines() if line.strip().startswith("TTFT  "))
    metric = healthy["metrics"]["ttft"]
    cells = line.split()
    assert cells[:2] == ["TTFT", "ms"]
    assert cells[2] == f"{metric['p50']:.2f}"
    assert cells[-2:] == [f"{metric['n']}", "requests"]


def test_quantiles_below_their_floor_are_marked(healthy: dict[str, Any]) -> None:
    text = shown(healthy)
    assert f"{healthy['metrics']['ttft']['p99']:.2f}†" in text
    assert f"{healthy['metrics']['ttft']['p95']:.2f}†" not in text
    assert "† fewer samples" in words(text)


def test_no_mark_no_footnote() -> None:
    run = open_run(requests=6800, rate=200, tokens=3, warmup=0, cooldown=0)
    summary = summary_of(run)
    assert summary["metrics"]["ttft"]["below_floor"] == []
    assert "†" not in shown(summary)


def test_definitions_and_populations_are_told(healthy: dict[str, Any]) -> None:
    text = words(shown(healthy))
    for name in ("ttft", "tpot", "e2e", "stall", "itl"):
        assert healthy["metrics"][name]["definition"] in text
    assert "requests scheduled inside the measured window" in text
    assert "nearest rank" in text


def test_repeated_metrics_are_named_and_not_shown_twice(healthy: dict[str, Any]) -> None:
    text = shown(healthy)
    assert "the same as TTFT here" in text
    assert "the same as ITL here" in words(text)
    assert not any(line.strip().startswith(("ICL  ms", "TTFV  ms")) for line in text.splitlines())


def test_metrics_that_differ_are_all_shown() -> None:
    run = open_run(tokens_per_chunk=3)
    for record in run.records:
        record.first_visible_ns += MS
    text = shown(summary_of(run))
    assert re.search(r"ICL +ms", text)
    assert re.search(r"TTFV +ms", text)


def test_objectives(healthy: dict[str, Any]) -> None:
    text = shown(healthy)
    assert "✔ ttft p95 < 60 ms" in text
    assert "✘ itl p99 < 8 ms" in text
    assert "SLO missed" in text
    assert "attainment" in text


def test_codes_show_figure_limit_and_next_step() -> None:
    run = open_run()
    run.fail(300, Outcome.TIMEOUT, "no byte for 60 s")
    run.manifest["workers"][0]["exit"] = "died"
    text = words(shown(summary_of(run)))
    assert "SUSPECT use these figures with care: 2 warnings" in text
    assert "! server.failures 1 of 622 requests failed (1 timeout" in text
    assert "limit 0 %]" in text
    assert "→ the load was not the plan's from then on" in text
    assert "client.loop_lag" not in text  # what is well is not repeated


def test_a_run_without_latencies_says_so() -> None:
    text = shown(summary_of(failing_run()))
    assert "INVALID" in text
    assert "there are no latencies" in text
    assert "TTFT" not in text
    assert "connection refused" in text


@pytest.mark.parametrize(("key", "banner"), [("simulated", "SIMULATED"), ("random_weights", "RANDOM WEIGHTS")])
def test_banners(key: str, banner: str) -> None:
    run = open_run(requests=60, warmup=0.5, cooldown=0.5)
    assert banner not in shown(summary_of(run))
    run.manifest[key] = True
    assert banner in shown(summary_of(run)).splitlines()[0]


def test_incomplete_is_in_the_title() -> None:
    run = open_run(requests=60, warmup=0.5, cooldown=0.5)
    run.manifest["status"] = "interrupted"
    assert "INCOMPLETE" in shown(summary_of(run)).splitlines()[0]


def test_unverified_tls_is_named() -> None:
    run = open_run(requests=60, warmup=0.5, cooldown=0.5)
    run.manifest["endpoint"]["tls"] = {"verified": False}
    assert "TLS NOT VERIFIED" in shown(summary_of(run))


def test_what_is_joined_comes_last(healthy: dict[str, Any]) -> None:
    text = shown(healthy)
    assert text.index("Window  ") < text.index("Phases  ") < text.index("Telemetry  ")


def test_markup_in_foreign_text_is_text() -> None:
    run = open_run(requests=60, warmup=0.5, cooldown=0.5)
    run.manifest["name"] = "[red]x[/red]"
    for index in range(30):
        run.fail(index, Outcome.HTTP_ERROR, "[bold]no[/bold] [/]")
    text = shown(summary_of(run))
    assert "[red]x[/red]" in text
    assert "[bold]no[/bold] [/]" in text


def test_only_files_that_exist_are_listed(tmp_path: Path, healthy: dict[str, Any]) -> None:
    (tmp_path / "summary.json").write_text("{}")
    text = shown(healthy, path=tmp_path)
    assert "summary.json" in text
    assert "server.log" not in text


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("width", [80, 100])
def test_another_tools_definitions(tool: str, width: int, healthy: dict[str, Any]) -> None:
    found = under(open_run().data(), tool)
    text = shown(healthy, width, definitions=found)
    assert f"under the definitions of {tool}" in text
    assert max(len(line) for line in text.splitlines()) <= width
    flat = words(text)
    for metric in found["metrics"]:
        assert metric["formula"].split(" ")[0] in flat
        assert f"{metric['mean']:,.2f}"[:4] in flat


def test_without_a_terminal_it_is_100_wide(healthy: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    print_report(healthy)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines[0]) == 100


def test_a_narrow_terminal_is_obeyed(healthy: dict[str, Any]) -> None:
    out = io.StringIO()
    print_report(healthy, console=Console(file=out, width=80, highlight=False))
    assert len(out.getvalue().splitlines()[0]) == 80


def test_a_wide_terminal_is_not_filled(healthy: dict[str, Any]) -> None:
    out = io.StringIO()
    print_report(healthy, console=Console(file=out, width=200, highlight=False))
    assert len(out.getvalue().splitlines()[0]) == 100
