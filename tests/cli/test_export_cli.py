"""`servebench export` as its user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servebench.cli.main import main
from servebench.errors import ExitCode
from servebench.experiment.directory import ExperimentDir
from servebench.record.columns import Outcome
from servebench.report.exports import OURS
from servebench.testing.synthetic import open_run

EXAMPLE = Path(__file__).parents[2] / "results" / "example-chat"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_prints_what_it_wrote(here: Path, capsys: Capture) -> None:
    assert main(["export", str(EXAMPLE), "--to", "csv"]) == ExitCode.GOOD
    told = capsys.readouterr()
    names = ("requests.csv", "telemetry.csv", "columns.md")
    assert told.out.splitlines() == [f"example-chat.csv/{name}" for name in names]
    assert told.err == ""


def test_out_and_force(here: Path, capsys: Capture) -> None:
    arguments = ["export", str(EXAMPLE), "--to", "markdown", "--out", "page.md"]
    assert main(arguments) == ExitCode.GOOD
    assert main(arguments) == ExitCode.USAGE
    assert "page.md exists already; choose another --out, or replace it with --force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == ExitCode.GOOD
    assert capsys.readouterr().out == "page.md\n"


def test_a_run_that_was_cut_short_is_exported_with_a_note(here: Path, capsys: Capture) -> None:
    run = open_run(requests=100, warmup=1, cooldown=1)
    run.manifest["status"] = "running"
    run.manifest.pop("phases")
    run.write(here / "run")
    assert main(["export", "run", "--to", "prometheus"]) == ExitCode.GOOD
    told = capsys.readouterr()
    assert told.out == "run.prometheus\n"
    assert "note: run did not come to its end: what was recorded of it is exported" in told.err
    assert 'marks="INCOMPLETE"' in (here / "run.prometheus").read_text("utf-8")


def test_an_invalid_run_is_exported_with_a_note(here: Path, capsys: Capture) -> None:
    run = open_run(requests=50, warmup=1, cooldown=1)
    for index in range(50):
        run.fail(index, Outcome.HTTP_ERROR, "HTTP 500", 500)
    run.write(here / "run")
    assert main(["export", "run", "--to", "vllm"]) == ExitCode.GOOD
    assert "note: the figures of run are INVALID" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--to", "csv"], "nowhere is no run directory"),
        ([str(EXAMPLE), "--to", "parket"], 'no format "parket": expected csv, parquet, hlog, vllm'),
        ([str(EXAMPLE), "--to", "parket"], '(did you mean "parquet"?)'),
        ([str(EXAMPLE), "--to", ""], 'no format ""'),
        ([str(EXAMPLE)], "Missing option '--to'"),
        (["--to", "csv"], "Missing argument 'RUNDIR'"),
        ([str(EXAMPLE), "--to", "csv", "--oot", "x"], '"--oot" (did you mean "--out"?)'),
        ([str(EXAMPLE), "--to", "markdown", "--out", "/proc/x/page"], "cannot write /proc/x/page"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], words: str, here: Path, capsys: Capture) -> None:
    assert main(["export", *arguments]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert words in told.err
    assert len(told.err.strip().splitlines()) == 1
    assert list(here.iterdir()) == []


def test_an_experiment_is_many_runs(here: Path, capsys: Capture) -> None:
    ExperimentDir.begin(here / "e", "sweep", "t", {}, ["servebench"])
    assert main(["export", "e", "--to", "csv"]) == ExitCode.USAGE
    assert "an export is of one run: give a folder below e/cells" in capsys.readouterr().err


def test_help_lists_the_formats(capsys: Capture) -> None:
    assert main(["export", "--help"]) == ExitCode.GOOD
    shown = " ".join(capsys.readouterr().out.split())
    for name, text in OURS.items():
        assert f"{name} {text}" in shown


def test_help_imports_no_exporter() -> None:
    script = (
        "import sys; from servebench.cli.main import main; assert main(['export', '--help']) == 0;"
        "heavy = ('numpy', 'pyarrow', 'prometheus_client', 'rich', 'importlib.metadata');"
        "print('loaded', *(m for m in heavy if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["loaded"]
