"""record.md: every section, what a colleague needs to judge it and to do it again, and no Markdown that breaks."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from effects_example import KEY, result
from servebench.report.markdown import bullets, code, table
from servebench.report.optimisation_record import write, write_record
from servebench.scenario.loading import load_scenario

REPOSITORY = Path(__file__).parent.parent.parent
EXAMPLE: dict[str, Any] = json.loads((REPOSITORY / "results" / "example-chat" / "summary.json").read_text())
SECTIONS = (
    *("Problem", "Baseline", "Hypothesis", "Change", "Effect", "Correctness", "Side effects", "Environment", "Limits"),
    *("How to repeat", "Files"),
)


def document(**changes: Any) -> dict[str, Any]:
    scenario = load_scenario(REPOSITORY / "scenarios" / "long-prefill-mix.yaml")
    return {
        "kind": "ab",
        "name": "long-prefill-mix",
        "servebench": "0.1.0",
        "command": ["servebench", "ab", "long-prefill-mix", "--hypothesis", "it's better", "--vary", "sim.x=1,2"],
        "question": {"scenario": scenario.resolved(), "prepare": None},
        "result": result(**changes),
    }


def section(text: str, name: str) -> str:
    return text.split(f"\n## {name}\n")[1].split("\n## ")[0]


def tables(text: str) -> list[list[str]]:
    """The rows of each table, as they are written."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


@pytest.fixture(scope="module")
def record() -> str:
    return write(document(), EXAMPLE)


def test_all_sections_in_their_order(record: str) -> None:
    assert [line[3:] for line in record.splitlines() if line.startswith("## ")] == list(SECTIONS)


def test_the_head_says_what_was_found_and_how_far_to_trust_it(record: str) -> None:
    head = record.split("\n## ")[0]
    assert head.startswith("# long-prefill-mix: max-num-batched-tokens 128 against 2048\n")
    assert "> **SIMULATED**" in head
    assert "ITL p99 4.2 × lower (3.6 to 4.8), TTFT p95 22.0 % higher (18.0 to 27.0 %): a trade.**" in head
    assert "**SUSPECT** (1 check not passed, see [Limits](#limits))" in head


def test_figures_of_a_real_server_carry_no_banner() -> None:
    text = write(document(simulated=False), EXAMPLE)
    assert "SIMULATED" not in text
    assert "> **RANDOM WEIGHTS**" in write(document(random_weights=True), EXAMPLE)


def test_problem_and_baseline(record: str) -> None:
    problem = section(record, "Problem")
    assert "expose prefill interference" in problem
    assert "| load | poisson" in problem
    assert "document (10 %): normal(" in problem
    assert "ttft p95 < 2s, itl p99 < 500ms" in problem
    assert "| ITL p99 | 500 ms | 500 ms | 500 ms |" in section(record, "Baseline")


def test_the_effect_has_interval_floor_p_and_n(record: str) -> None:
    effect = section(record, "Effect")
    row = "| ITL p99 | primary | 500 ms | 120 ms | 0.24 × | 0.21 to 0.28 × | 2.3 % | 0.031 | 0.031 | 6 | **better** |"
    assert row in effect
    assert "- ITL p99: p 0.031, and beyond the 3 % that matter" in effect
    assert "Estimated, not tested" in effect
    assert "`base-again`, the base run a second time in every repeat" in effect
    assert "smallest p that so many runs can give 0.031" in effect
    assert "| ITL p99 | `2048` | 500 ms, 500 ms" in effect


def test_a_floor_that_was_not_measured_is_said_to_be_none() -> None:
    assert "The noise between equal arms (A/A) was not measured" in write(document(noise_floor=None), EXAMPLE)


def test_change_names_what_was_meant_and_what_else_differs(record: str) -> None:
    change = section(record, "Change")
    assert f"| `128` | candidate | `{KEY}=128` | 6 |" in change
    assert f"Changed on purpose: `{KEY}`" in change
    assert "- `128`, observed: server.kv_cache.blocks: 25 → 26" in change
    named = [each for each in result()["differences"] if each["named"]]
    assert "Nothing else differs." in write(document(differences=named), EXAMPLE)


def test_correctness_and_side_effects(record: str) -> None:
    assert "93.8 % of 16 probes answered alike" in section(record, "Correctness")
    side = section(record, "Side effects")
    assert "| KV cache in use, p95 | 40 % | 50 % | 40 % | +25.0 % |" in side
    assert "- not measured: energy per output token (no GPU)" in side


def test_environment_names_hardware_software_model_shapes_load_and_warm_up(record: str) -> None:
    environment = section(record, "Environment")
    for words in (
        "Intel(R) Xeon(R) Processor · 2 cores · 25 GB",
        "no NVIDIA driver on this machine",
        "vllm · 0.32.0 · http://127.0.0.1:8123",
        "tiny-random · LlamaForCausalLM · 4,849,664 parameters · 4 layers of 256 · bfloat16",
        "524,288 tokens · blocks of 128 · auto · prefix caching on",
        "server_tokenizer, exact by the server's count",
        "input mean 202.0",
        "5.00 s of warm-up (stated) · 60.00 s measured",
        "latencies from `scheduled`",
    ):
        assert words in environment


def test_limits(record: str) -> None:
    limits = section(record, "Limits")
    assert "- **warn** `pairs.lost`: 1 of 7 pairs is lost → --retry-failed" in limits
    assert "- lost: r03-128: the server died" in limits
    assert "TTFT p95 rests on" not in limits  # 249 samples are enough for p95
    assert "client and server shared one machine" in limits
    few = copy.deepcopy(EXAMPLE)
    few["metrics"]["itl"] |= {"n": 40, "below_floor": ["p99"]}
    assert "ITL p99 rests on 40 samples a run" in write(document(), few)


def test_how_to_repeat_is_a_command_for_a_shell(record: str) -> None:
    assert "```sh\nservebench ab long-prefill-mix --hypothesis 'it'\"'\"'s better' --vary sim.x=1,2\n```" in record


def test_an_experiment_without_any_run_still_has_a_record() -> None:
    gone = {name: arm | {"used": 0, "figures": {}, "paths": []} for name, arm in result()["arms"].items()}
    text = write(document(arms=gone), None)
    assert "nothing is known of it" in section(text, "Environment")
    assert "| ITL p99 | – | – | – |" in section(text, "Baseline")
    assert "Whether anything else differs is not known" in write(document(arms=gone, differences=[]), None)


def test_every_table_has_as_many_cells_in_each_row(record: str) -> None:
    found = tables(record)
    assert len(found) >= 7
    for block in found:
        assert len({row.replace("\\|", "").count("|") for row in block}) == 1


def test_it_is_written_beside_the_experiment(tmp_path: Path) -> None:
    asked = document()
    folder = tmp_path / asked["result"]["arms"]["2048"]["paths"][0]
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(EXAMPLE))
    path = write_record(tmp_path, asked)
    assert path == tmp_path / "record.md"
    assert path.read_text() == write(asked, EXAMPLE)


class TestMarkdown:
    def test_pipes_and_breaks_stay_inside_their_cell(self) -> None:
        assert table(["a"], [["x|y\nz"]]).splitlines()[2] == "| x\\|y z |"

    def test_figures_are_aligned_to_the_right(self) -> None:
        assert table(["a", "b"], [["x", "−3 %"], ["y", "–"]]).splitlines()[1] == "| --- | ---: |"

    def test_lists_and_code(self) -> None:
        assert bullets(["a\nb", "c"]) == "- a b\n- c"
        assert code("a`b") == "`` a`b ``"
