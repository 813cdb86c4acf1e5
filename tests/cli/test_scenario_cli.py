import json

import pytest

from servebench.cli.main import main
from servebench.scenario import Scenario, load_scenario, shipped_scenarios
from servebench.workload import make_plan


def test_list_names_every_shipped_scenario(capsys):
    assert main(["scenario", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_scenarios())
    assert load_scenario("rag").description in lines[-2]


def test_list_as_json(capsys):
    assert main(["scenario", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in found] == list(shipped_scenarios())
    assert all(item["description"] and item["path"].endswith(".yaml") for item in found)


def test_check_says_ok(capsys):
    assert main(["scenario", "check", "chat", "smoke"]) == 0
    assert capsys.readouterr().out.splitlines() == ["chat: OK, 387 requests planned", "smoke: OK, 122 requests planned"]


def test_check_reports_each_wrong_scenario_in_one_line(capsys, tmp_path):
    (tmp_path / "bad.yaml").write_text("servebench: 1\nnmae: x\n")
    assert main(["scenario", "check", str(tmp_path / "bad.yaml"), "chta", "smoke"]) == 2
    out, err = capsys.readouterr()
    assert out == "smoke: OK, 122 requests planned\n"
    first, second = err.splitlines()
    assert first == f'servebench: error: {tmp_path}/bad.yaml:2: nmae: unknown key "nmae" (did you mean "name"?)'
    assert second.startswith("servebench: error: chta: no such scenario")


def test_check_finds_what_cannot_be_planned(capsys):
    assert main(["scenario", "check", "chat", "--set", "load.rate=1000000/s"]) == 2
    assert "chat: the load means 9.5e+07 requests; a plan holds at most" in capsys.readouterr().err


def test_show_prints_the_plan(capsys):
    assert main(["scenario", "show", "chat", "--set", "load.rate=8/s"]) == 0
    out = capsys.readouterr().out
    assert "poisson 8/s" in out
    assert "input tokens" in out
    assert "█" in out


def test_show_as_json_holds_the_scenario_and_the_plan(capsys):
    assert main(["scenario", "show", "chat", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    scenario = load_scenario("chat")
    assert Scenario.from_resolved(found["scenario"]) == scenario
    assert found["plan"]["hash"] == make_plan(scenario).hash
    assert found["plan"]["seeds"] == {"arrivals": 1, "lengths": 1, "content": 1}
    assert found["plan"]["input_tokens"]["n"] == found["plan"]["phases"]["measured"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "cht"], 'did you mean "chat"?'),
        (["show", "chat", "--set", "load.poison=8/s"], '--set load.poison=8/s: load.poison: unknown key "poison"'),
        (["show"], "Missing argument"),
        (["check"], "Missing argument"),
        (["shwo", "chat"], "No such command"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert main(["scenario", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
