import json
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from servebench.errors import UsageError
from servebench.record.rundir import RunDir
from servebench.report import write_reports
from servebench.testing.synthetic import open_run


def test_summary_is_written_and_returned(run_path: Path) -> None:
    run = open_run(requests=60, warmup=0.5, cooldown=0.5).write(run_path)
    summary = write_reports(run)
    assert json.loads(run.summary_path.read_text(encoding="utf-8")) == summary


def test_writing_again_gives_the_same_bytes(run_path: Path) -> None:
    open_run(requests=60, warmup=0.5, cooldown=0.5).write(run_path)
    written = []
    for _ in range(2):
        run = RunDir.open(run_path)
        write_reports(run)
        written.append((run.summary_path.read_bytes(), run.histogram_path.read_bytes()))
    assert written[0] == written[1]


def test_a_moved_directory_gives_the_same_bytes(run_path: Path, tmp_path: Path) -> None:
    run = open_run(requests=60, warmup=0.5, cooldown=0.5).write(run_path)
    write_reports(run)
    before = run.summary_path.read_bytes()
    moved = tmp_path / "elsewhere"
    run_path.rename(moved)
    write_reports(RunDir.open(moved))
    assert (moved / "summary.json").read_bytes() == before


def test_histograms_hold_every_sample(run_path: Path) -> None:
    from servebench.record.histogram import Histogram

    made = open_run(requests=200, warmup=1, cooldown=1)
    run = made.write(run_path)
    write_reports(run)
    totals: dict[str, int] = {}
    for line in run.histogram_path.read_text().splitlines():
        if line.startswith("Tag="):
            tag, _, length, _, encoded = line[4:].split(",")
            assert float(length) == 1.0
            totals[tag] = totals.get(tag, 0) + Histogram.decode(encoded).total
    assert totals == {"ttft": 200, "e2e": 200, "icl": 200 * 39}


def test_long_runs_have_longer_intervals(run_path: Path) -> None:
    run = open_run(requests=200, rate=0.5, tokens=2, warmup=1, cooldown=1).write(run_path)
    write_reports(run)
    lengths = {line.split(",")[2] for line in run.histogram_path.read_text().splitlines() if line.startswith("Tag=")}
    assert lengths == {"5.000"}


def test_a_damaged_plan_is_a_clear_error(run_path: Path) -> None:
    made = open_run(requests=20, warmup=0, cooldown=0)
    run = made.write(run_path)
    other = open_run(requests=20, warmup=0, cooldown=0, seed=2).plan
    stored = made.plan
    object.__setattr__(stored, "output_tokens", np.asarray(other.output_tokens + 1))
    stored.write(run.plan_path)
    run.plan_path.write_bytes(_with_other_hash(run.plan_path))
    with pytest.raises(UsageError, match="does not match its stored hash"):
        write_reports(run)


def _with_other_hash(path: Path) -> bytes:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    metadata = {**table.schema.metadata, b"servebench.hash": b"0" * 64}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path.read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_a_directory_that_cannot_be_written_is_a_clear_error(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(requests=20, warmup=0, cooldown=0).write(run_path)
    run_path.chmod(stat.S_IRUSR | stat.S_IXUSR)

    def refuse(*args: object, **kwargs: object) -> None:  # root may write anywhere
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    try:
        with pytest.raises(UsageError, match=r"cannot write the report into .*: Permission denied"):
            write_reports(run)
    finally:
        run_path.chmod(stat.S_IRWXU)
