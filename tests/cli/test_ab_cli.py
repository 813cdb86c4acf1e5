"""`servebench ab` as a user runs it: a real experiment on the simulated engine, and everything that can go wrong."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runs import EVENTS, OpenAI, command, tokens, write_scenario
from servebench.cli.main import main
from servebench.testing import (
    DONE,
    GroundTruth,
    Reset,
    Script,
    Wait,
    json_response,
    refusing_port,
    sse,
    sse_response,
)

REPOSITORY = Path(__file__).parent.parent.parent
MIX = REPOSITORY / "scenarios" / "long-prefill-mix.yaml"
LOAD = {"constant": "30/s", "duration": "1s", "drain": "5s"}
SHORT = ("-s", "load.duration=4s", "-s", "load.warmup=0s", "-s", "load.poisson=10/s")
FAKE_VLLM = REPOSITORY / "tests" / "engine" / "fake_vllm.py"

Started = tuple[int, str, str, float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trade")


@pytest.fixture(scope="module")
def trade(folder: Path) -> Started:
    """Two prefill budgets, six pairs: exit code, stdout, stderr and seconds."""
    asked = ["ab", MIX, "--vary", "sim.max-num-batched-tokens=2048,128", *SHORT, "--repeats", "6", "--probes", "2"]
    asked += ["--primary", "itl.p99", "--metric", "ttft.p50", "--hypothesis", "chunks interrupt less"]
    begin = time.monotonic()
    with command(folder / "streams", *asked, "--out", folder / "ab") as ran:
        code = ran.wait(220)
        return code, ran.stdout, ran.stderr, time.monotonic() - begin


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "experiment.json").read_text())
    return found


def effects(path: Path) -> dict[str, dict[str, Any]]:
    (comparison,) = document(path)["result"]["comparisons"]
    return {effect["figure"]: effect for effect in comparison["effects"]}


@pytest.mark.slow
@pytest.mark.timeout(240)
class TestTrade:
    def test_it_ends_well_in_under_two_minutes(self, trade: Started, folder: Path) -> None:
        code, _, errors, seconds = trade
        status = document(folder / "ab")["result"]["verdict"]["status"]
        assert code == (3 if status == "INVALID" else 0), errors  # a busy machine may make too many runs INVALID
        assert seconds < 120

    def test_a_small_budget_helps_the_tail_of_itl_and_costs_ttft(self, trade: Started, folder: Path) -> None:
        found = effects(folder / "ab")
        assert found["itl.p99"]["ratio"] < 0.6
        assert found["stall.p99"]["ratio"] < 0.8
        assert found["ttft.p95"]["ratio"] > 1.2
        assert found["itl.p99"]["role"] == "primary"
        assert {found[name]["role"] for name in ("ttft.p95", "ttft.p50")} == {"secondary"}

    def test_the_pairs_have_one_plan_and_their_own_salts(self, trade: Started, folder: Path) -> None:
        runs = {path.name: json.loads((path / "run.json").read_text()) for path in (folder / "ab" / "cells").iterdir()}
        assert len(runs) == 12
        for repeat in range(1, 7):
            base, cand = (runs[f"r{repeat:02d}-{arm}"]["plan"] for arm in ("2048", "128"))
            assert base["hash"] == cand["hash"]
            assert base["salt"] != cand["salt"]
        assert len({manifest["plan"]["hash"] for manifest in runs.values()}) == 6

    def test_the_arms_answer_alike_and_one_key_differs(self, trade: Started, folder: Path) -> None:
        result = document(folder / "ab")["result"]
        assert result["correctness"]["verdict"] == "same"
        assert result["correctness"]["probes"] == 2
        assert [each["key"] for each in result["differences"]] == ["engine.sim.max_num_batched_tokens"]

    def test_side_effects_of_the_runs(self, trade: Started, folder: Path) -> None:
        found = {row["name"]: row for row in document(folder / "ab")["result"]["side_effects"]["figures"]}
        assert found["kv_usage_p95"]["arms"]["128"] > 0
        assert found["ready_s"]["n"] == {"2048": 6, "128": 6}
        assert "GPU" in found["j_per_output_token"]["reasons"]["128"]

    def test_what_is_printed(self, trade: Started) -> None:
        _, shown, errors, _ = trade
        assert "SIMULATED" in shown
        assert "max_num_batched_tokens 128 against 2048: ITL p99" in " ".join(shown.split())
        assert "12/12" in errors

    def test_the_record(self, trade: Started, folder: Path) -> None:
        text = (folder / "ab" / "record.md").read_text()
        assert "**SIMULATED**" in text
        assert "chunks interrupt less" in text
        for heading in ("Problem", "Baseline", "Change", "Effect", "Correctness", "Environment", "How to repeat"):
            assert f"\n## {heading}\n" in text
        assert "servebench ab " in text
        assert str(folder) not in text
        assert str(REPOSITORY) not in text

    def test_the_same_command_again_runs_nothing_and_says_the_same(
        self, trade: Started, folder: Path, tmp_path: Path
    ) -> None:
        before = document(folder / "ab")
        again = shutil.copytree(folder / "ab", tmp_path / "ab")
        asked = ["ab", MIX, "--vary", "sim.max-num-batched-tokens=2048,128", *SHORT, "-n", "6", "--probes", "2"]
        asked += ["--primary", "itl.p99", "--metric", "ttft.p50", "--hypothesis", "chunks interrupt less"]
        with command(tmp_path / "streams", *asked, "-o", again, "--json") as ran:
            assert ran.wait(30) == trade[0], ran.stderr
        assert json.loads(ran.stdout)["experiment"]["result"] == before["result"]
        assert (again / "record.md").read_text().split("## How to repeat")[0] == (
            (folder / "ab" / "record.md").read_text().split("## How to repeat")[0]
        )

    def test_another_question_in_the_same_place_is_refused(
        self, trade: Started, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        asked = ["ab", str(MIX), "--vary", "sim.max-num-batched-tokens=2048,256", *SHORT, "-o", str(folder / "ab")]
        assert main(asked) == 2
        assert "another question" in capsys.readouterr().err


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    return str(write_scenario(tmp_path, LOAD))


@pytest.fixture
def ab(scenario: str, tmp_path: Path) -> list[str]:
    """The beginning of a command line: no telemetry, no probes, two repeats."""
    return ["ab", scenario, "-o", str(tmp_path / "out"), "--no-telemetry", "--probes", "0", "-n", "2", "-q"]


@pytest.fixture(scope="module")
def truth() -> Iterator[GroundTruth]:
    with GroundTruth(step_us=2000, ttft_us=5000) as server:
        yield server


class TestTooLittle:
    def test_two_repeats_give_an_estimate_no_p_and_say_how_many_would_do(
        self, ab: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*ab, "--vary", "sim.base=4ms,12ms"]) in (0, 3)  # a busy machine may make a run INVALID
        shown = " ".join(capsys.readouterr().out.split())
        primary = effects(tmp_path / "out")["ttft.p99"]
        assert primary["p"] is None
        assert primary["verdict"] == "undecided"
        assert "can never reach" in shown
        assert "SUSPECT" in shown or "INVALID" in shown


class TestLost:
    def test_a_server_that_dies_in_arm_b(
        self, ab: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What was measured of arm A stays, each failure has its reason, and there is nothing to compare."""
        python = environment(tmp_path / "environment")
        arms = ["--arm", "a: endpoint=sim", "--arm", "b: endpoint=vllm engine.vllm.env.FAKE_VLLM=die"]
        model = ["-s", "engine.vllm.model=tiny-random", "--model", "m", "--vllm-python", str(python)]
        assert main([*ab, *arms, *model]) == 3
        shown = " ".join(capsys.readouterr().out.split())
        assert "INVALID" in shown
        assert "no room for the KV cache" in shown
        cells = {cell["name"]: cell for cell in document(tmp_path / "out")["cells"]}
        assert {name: cell["status"] for name, cell in cells.items()} == {
            "r01-a": "done",
            "r02-a": "done",
            "r01-b": "failed",
            "r02-b": "failed",
        }
        assert (tmp_path / "out" / "cells" / "r02-a" / "requests.parquet").exists()
        assert "no room for the KV cache" in (tmp_path / "out" / "record.md").read_text()

    def test_an_arm_whose_server_resets_every_connection(
        self, ab: list[str], truth: GroundTruth, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with OpenAI(lambda n: sse_response([sse(EVENTS.text(" tok")), Reset()])) as broken:
            arms = ["--arm", f"good: endpoint={truth.url}", "--arm", f"bad: endpoint={broken.url}"]
            assert main([*ab, *arms]) == 3
        shown = " ".join(capsys.readouterr().out.split())
        assert "pairs.none" in shown
        assert "server.failures" in shown
        assert [cell["status"] for cell in document(tmp_path / "out")["cells"]] == ["done"] * 4

    def test_a_hook_that_fails(self, ab: list[str], truth: GroundTruth, capsys: pytest.CaptureFixture[str]) -> None:
        hook = ["--hook", 'test "$SERVEBENCH_ARM" = a || { echo "no such preset" >&2; exit 7; }']
        arms = ["--arm", "a: hook.preset=1", "--arm", "b: hook.preset=2", "-e", truth.url]
        assert main([*ab, *arms, *hook]) == 3
        shown = " ".join(capsys.readouterr().out.split())
        assert "exit code 7: no such preset" in shown


class TestAnswers:
    def test_a_model_that_answers_otherwise_is_seen(
        self, scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        asked = ["ab", scenario, "-o", str(tmp_path / "out"), "--no-telemetry", "--probes", "1", "-n", "4", "-q"]
        assert main([*asked, "-e", "sim", "--arm", "a: model=one", "--arm", "b: model=two"]) in (0, 3)
        result = document(tmp_path / "out")["result"]
        if all(arm["used"] == 4 for arm in result["arms"].values()):  # a busy machine may make a run INVALID
            assert result["correctness"]["verdict"] == "differs beyond A/A"
            assert "differs beyond A/A" in capsys.readouterr().out

    def test_a_server_that_refuses_greedy_requests_is_not_judged(
        self, ab: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The ordinary requests of the load are answered, those of the probes with 500."""

        class Picky(OpenAI):
            def _answer(self, seen: Any) -> Any:
                if seen.path == EVENTS.path and "temperature" in seen.json():
                    return json_response(500, {"error": {"message": "no greedy decoding here"}})
                return super()._answer(seen)

        with Picky(lambda n: paced(10)) as one, Picky(lambda n: paced(10)) as two:
            arms = ["--arm", f"a: endpoint={one.url}", "--arm", f"b: endpoint={two.url}"]
            main([*ab, "--probes", "3", *arms])
        shown = " ".join(capsys.readouterr().out.split())
        assert "not judged" in shown
        assert "no greedy decoding here" in shown


def paced(count: int) -> Script:
    """An answer of so many tokens, one every few milliseconds, so that each is read alone."""
    steps = [step for _ in range(count) for step in (Wait(0.004), sse(EVENTS.text(" tok")))]
    return sse_response([*steps, sse(EVENTS.finish("length")), sse(EVENTS.usage(20, count)), DONE])


def environment(folder: Path) -> Path:
    """The Python of an environment whose vLLM plays one."""
    site = folder / "site"
    for name in ("torch", "transformers", "vllm", "vllm/entrypoints", "vllm/entrypoints/openai"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("cuda = None\n")
    shutil.copy(FAKE_VLLM, site / "vllm" / "entrypoints" / "openai" / "api_server.py")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


class TestRefused:
    """All of it before the first run: exit 2, one line, and no directory."""

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], "either --vary KEY=V1,V2 or --arm"),
            (["--vary", "sim.base=1ms,2ms", "--arm", "a: sim.base=1ms"], "either --vary"),
            (["--vary", "sim.base=1ms"], "one value varies nothing"),
            (["--vary", "sim.bas=1ms,2ms"], 'did you mean "base"'),
            (["--vary", "sim.base=0s,2ms"], "engine.sim.base"),
            (["--vary", "sim.max-num-seqs=0,2"], "engine.sim.max_num_seqs: expected more than 0"),
            (["--arm", "a: sim.base=1ms"], "two arms at least"),
            (["--arm", "a: sim.base=1ms", "--arm", "a: sim.base=2ms"], "two arms are named 'a'"),
            (["--arm", "a: sim.base=1ms", "--arm", "b: sim.base=1ms"], "are the same"),
            (["--vary", "load.constant=10/s,20/s", "-e", "sim"], "would send different requests"),
            (["--vary", "sim.base=1ms,2ms", "-e", "http://127.0.0.1:1"], "which --endpoint http://127.0.0.1:1 is not"),
            (["--vary", "sim.base=1ms,2ms", "--primary", "itl.p88x"], 'no figure "itl.p88x"'),
            (["--vary", "sim.base=1ms,2ms", "--metric", "ttfb.p99"], "ttfv.p99"),
            (["--vary", "sim.base=1ms,2ms", "--metric", "ttft.p97"], "p97 of ttft is not kept"),
            (["--vary", "sim.base=1ms,2ms", "--metric", "preemptions"], "--metric preemptions: it may be 0"),
            (["--vary", "hook.mode=a,b", "-e", "http://127.0.0.1:1"], "differ in hook.mode, which only a --hook"),
            (["--vary", "sim.base=1ms,2ms", "--alpha", "2"], "--alpha 2"),
            (["--vary", "sim.base=1ms,2ms", "--min-effect", "much"], '"much" is no share'),
            (["--vary", "sim.base=1ms,2ms", "--probes", "17"], "17"),
            (["--vary", "sim.base=1ms,2ms", "--repeats", "0"], "0"),
            (["--vary", "sim.base=1ms,2ms", "-s", "load.duratoin=3s"], "duration"),
        ],
    )
    def test_what_cannot_be_asked(
        self,
        arguments: list[str],
        words: str,
        scenario: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert main(["ab", scenario, "-o", str(tmp_path / "out"), *arguments]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert len(said.strip().splitlines()) == 1
        assert not (tmp_path / "out").exists()

    def test_a_flag_that_this_vllm_lacks(
        self, ab: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        python = environment(tmp_path / "environment")
        asked = [*ab, "--vary", "vllm.max-num-batched-tokenz=128,2048", "--vllm-python", str(python)]
        assert main(asked) == 2
        said = capsys.readouterr().err
        assert 'has no flag "max-num-batched-tokenz" (did you mean "max-num-batched-tokens"?)' in said
        assert not (tmp_path / "out").exists()

    def test_a_server_that_is_not_there(
        self, ab: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with refusing_port() as port, OpenAI(lambda n: tokens(3)) as up:
            arms = ["--arm", f"a: endpoint={up.url}", "--arm", f"b: endpoint=http://127.0.0.1:{port}"]
            assert main([*ab, *arms]) == 2
            assert up.load == []
        assert f"127.0.0.1:{port}: connection refused" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


class TestDryRun:
    def test_prints_the_runs_in_their_order_and_makes_nothing(
        self, ab: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*ab, "--vary", "sim.base=1ms,2ms,3ms", "--aa", "--dry-run"]) == 0
        shown = capsys.readouterr().out
        assert "8 runs, about" in shown
        assert "r02-base-again" in shown
        assert not (tmp_path / "out").exists()

    def test_too_few_repeats_are_said_before_the_first_run(
        self, ab: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*ab, "--vary", "sim.base=1ms,2ms", "--dry-run"]) == 0
        assert "--repeats 2: some tests can never reach the level of 0.05; 6 can" in capsys.readouterr().err
        assert main([*ab, "--vary", "sim.base=1ms,2ms", "--dry-run", "-n", "6"]) == 0
        assert "can never reach" not in capsys.readouterr().err

    def test_a_hook_may_set_flags_of_a_server_that_runs(
        self, ab: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        asked = [*ab, "--vary", "vllm.max-num-seqs=64,128", "-e", "http://127.0.0.1:1", "--dry-run"]
        assert main([*asked, "--hook", "./set.sh"]) == 0
        assert main(asked) == 2
        assert "which --endpoint http://127.0.0.1:1 is not" in capsys.readouterr().err

    def test_the_number_of_repeats_is_chosen_for_the_tests(
        self, scenario: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["ab", scenario, "--vary", "sim.base=1ms,2ms", "--dry-run", "--json"]) == 0
        cells = json.loads(capsys.readouterr().out)["cells"]
        assert len(cells) == 12
        assert {cell["labels"]["arm"] for cell in cells} == {"1ms", "2ms"}
