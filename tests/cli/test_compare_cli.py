from __future__ import annotations

import json
from pathlib import Path

import pytest

from ab_runs import manifest, store, summary
from servebench.cli.main import main


def sets(folder: Path, factor: float = 0.8, **changes: object) -> tuple[str, str]:
    """Two folders of six runs, the second `factor` times as slow."""
    for name, slower in (("old", 1.0), ("new", factor)):
        for n in range(6):
            ttft = 100.0 * slower * (1 + n / 300)
            made = summary(f"p{n}", ttft_p99=ttft, itl_p99=10.0)
            made["plan"]["seeds"] = {"arrivals": n}
            store(folder / name / f"run-{n}", (made, manifest(**(changes if name == "new" else {}))), created=n)
    return str(folder / "old"), str(folder / "new")


def test_report_answers_the_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *sets(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "VALID" in shown
    assert "better" in shown
    assert "−20.0 %" in shown


def test_json_is_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--primary", "itl.p99", "--metric", "e2e.p50", "--alpha", "0.1", "--min-effect", "5%", "--json"]
    assert main(["compare", *sets(tmp_path), *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["kind"] == "compare"
    assert result["design"]["family"] == ["itl.p99", "ttft.p99", "e2e.p50"]
    assert (result["design"]["alpha"], result["design"]["min_effect"]) == (0.1, 0.05)


def test_refusal_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = sets(tmp_path, endpoint__model="other")
    assert main(["compare", *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "the models differ: simulated against other" in err


def test_forced_is_suspect_everywhere_and_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = sets(tmp_path, endpoint__model="other")
    assert main(["compare", *given, "--force"]) == 3
    shown = capsys.readouterr().out
    assert "SUSPECT" in shown
    assert "forced: the models differ" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--primary", "ttft.p"], 'no figure "ttft.p"'),
        (["--min-effect", "little"], '"little" is no share such as 3% or 0.03'),
        (["--min-effect", "300%"], "--min-effect 3"),
        (["--alpha", "2"], "--alpha 2"),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *sets(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path / "none"), str(tmp_path)]) == 2
    assert f"there is no {tmp_path / 'none'}" in capsys.readouterr().err
