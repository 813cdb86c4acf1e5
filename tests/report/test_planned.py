import io

import pytest
from rich.console import Console

from servebench.report.planned import describe_load, print_plan
from servebench.scenario import load_scenario
from servebench.workload import make_plan


def show(name, *overrides, width=100):
    scenario = load_scenario(name, overrides)
    out = io.StringIO()
    print_plan(scenario, make_plan(scenario), Console(file=out, width=width))
    return out.getvalue()


def test_a_plan_shows_figures_seeds_and_hash():
    text = show("chat")
    assert "poisson 4/s · warm-up 5s · measured for 1m · drain 30s" in text
    assert "249 measured, 11 before them, up to 127 more while they finish" in text
    assert "arrivals 1 · lengths 1 · content 1" in text
    assert make_plan(load_scenario("chat")).hash[:16] in text
    assert "arrivals a second, in bins of 2s" in text
    header = next(line for line in text.splitlines() if "p95" in line)
    assert header.split() == ["n", "mean", "cv", "p50", "p95", "p99", "min", "max"]


def test_a_narrow_terminal_gets_a_narrow_plot():
    assert max(len(line) for line in show("chat", width=60).splitlines() if "┤" in line) <= 60


def test_a_closed_loop_has_no_arrivals_to_plot():
    text = show("batch")
    assert "closed loop of 32, think time 0s" in text
    assert "as many as are answered" in text
    assert "arrivals a second" not in text


def test_classes_have_rows_of_their_own():
    text = show("long-prefill-mix")
    assert "chat, input" in text
    assert "document, output" in text


def test_a_fixed_length_needs_no_plot():
    assert "output tokens: always 7" in show("chat", "workload.output_tokens=7")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["load.gamma={rate: 2, cv: 3}"], "gamma 2/s (gap CV 3) · warm-up 5s"),
        (["load.ramp={from: 0, to: 3}"], "ramp 0/s to 3/s · warm-up"),
        (["load.stages=[{poisson: 1, for: 20s}, {constant: 2}]"], "poisson 1/s for 20s, then constant 2/s · warm-up"),
        (["load.requests=50", "load.warmup=auto"], "poisson 4/s · warm-up auto · 50 requests · drain 30s"),
        (["load.max_in_flight={limit: 3, policy: drop}"], "drain 30s · at most 3 in flight, the others drop"),
        (["load.throttle=600/min"], "drain 30s · throttled to 600 in 1m"),
    ],
)
def test_a_load_in_one_line(overrides, text):
    assert text in describe_load(load_scenario("chat", overrides).load)
