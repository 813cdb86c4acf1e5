import pytest

import servebench.scenario.loading as loading
from servebench.scenario import Scenario, load_scenario, resolve_scenario, shipped_scenarios
from servebench.workload import make_plan
from servebench.workload.overview import cohort

NAMES = ("batch", "chat", "code-completion", "conversation", "long-prefill-mix", "rag", "smoke")
CONTEXT = 8192


def test_these_are_shipped():
    assert tuple(shipped_scenarios()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_scenario_says_what_it_models_and_runs_anywhere(name):
    scenario = load_scenario(name)
    text = resolve_scenario(name).read_text()
    assert scenario.name == name
    assert scenario.description
    assert "Figures:" in text or "Shape:" in text
    assert "warmup:" in text
    assert scenario.slo.objectives
    assert scenario.engine.sim is not None
    assert scenario.engine.vllm is not None
    assert scenario.engine.vllm.model == "tiny-random"
    assert scenario.engine.vllm.flags["max-model-len"] == CONTEXT


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_scenario_plans_within_its_context(name):
    scenario = load_scenario(name)
    plan = make_plan(scenario)
    # A chat template adds some tokens to short prompts; they are part of input_tokens, which must leave room for it.
    assert int((plan.input_tokens + plan.output_tokens).max()) <= CONTEXT
    assert max(item.input_tokens.upper + item.output_tokens.upper for item in scenario.workload.classes) <= CONTEXT
    assert Scenario.from_resolved(scenario.resolved()) == scenario


@pytest.mark.parametrize(
    ("name", "measured"),
    [("chat", 200), ("code-completion", 130), ("conversation", 130), ("long-prefill-mix", 200), ("rag", 130)],
)
def test_a_shipped_open_loop_measures_enough_requests(name, measured):
    scenario = load_scenario(name)
    assert cohort(scenario, make_plan(scenario)).sum() >= measured


def test_chat_takes_little_more_than_a_minute():
    load = load_scenario("chat").load
    assert load.duration is not None
    assert load.warmup_s + load.duration <= 70


@pytest.mark.parametrize(
    ("name", "column", "p50"),
    [
        ("code-completion", "input_tokens", 1469),
        ("code-completion", "output_tokens", 13),
        ("conversation", "input_tokens", 1020),
        ("conversation", "output_tokens", 129),
    ],
)
def test_the_azure_shapes_have_the_published_medians(name, column, p50):
    law = getattr(load_scenario(name).workload.classes[0], column)
    assert dict(law.points)[0.5] == p50


@pytest.mark.parametrize(("name", "cv"), [("code-completion", 13.0), ("conversation", 1.09)])
def test_the_azure_shapes_have_the_published_burstiness(name, cv):
    (stage,) = load_scenario(name).load.stages
    assert (stage.law, stage.cv) == ("gamma", cv)


def test_an_installed_package_brings_its_own(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "servebench"
    (package / "scenarios").mkdir(parents=True)
    (package / "scenarios" / "mine.yaml").write_text("")
    monkeypatch.setattr(loading, "__file__", str(package / "scenario" / "loading.py"))
    assert list(shipped_scenarios()) == ["mine"]


def test_a_path_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat").write_text("")
    assert resolve_scenario("chat").resolve() == tmp_path / "chat"
