"""The client bench: reading the truth, the marks at missed limits, and one small bench from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from _bench import ROWS, cell, limits
from _bench_truth import Truth, read_truth, stamped_tokens

from servebench.record.raw import RawWriter

REPOSITORY = Path(__file__).parents[2]
BODY = b'data: {"t_ns":1000,"x":[]}\n\ndata: {"x":1,"t_ns": 2000}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("cut", range(1, len(BODY)))
def test_a_token_has_the_stamp_of_the_read_that_completed_it(cut: int) -> None:
    first, second = BODY.index(b"\n\n") + 2, BODY.index(b"\n\n", BODY.index(b"2000")) + 2
    late = [10 if end <= cut else 20 for end in (first, second)]
    assert list(stamped_tokens([BODY[:cut], BODY[cut:]], [10, 20])) == [(1000, late[0]), (2000, late[1])]


def test_a_token_that_was_cut_off_has_none() -> None:
    assert list(stamped_tokens([BODY[:-14][:-4]], [10])) == [(1000, 10)]


def test_the_truth_of_a_run_joins_reads_and_send_instants(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    writer = RawWriter(run_path / "raw", 0)
    writer.add(7, [BODY[:5]], [1100])
    writer.add(3, [BODY], [2500])
    writer.add(7, [BODY[5:]], [2200])
    writer.close()
    sent = pa.table({"index": [3, 7], "sent_ns": [400, 900]})
    monkeypatch.setattr("_bench_truth.RunDir.open", lambda path: type("Run", (), {"requests": lambda self: sent})())
    truth = read_truth(run_path, 5)
    assert sorted(truth.lateness_ns) == [200, 500, 1200, 1500]
    assert sorted(truth.ttft_ns) == [100, 600]
    assert truth.missing == 1


def test_percentiles_are_ranks_and_the_last_is_the_maximum() -> None:
    truth = Truth(np.arange(1, 101, dtype=np.int64) * 1000, np.array([50_000_000, 60_000_000]), 100)
    assert [truth.late_us(50), truth.late_us(99), truth.late_us(100)] == [50, 99, 100]
    assert truth.ttft_ms == 55


def test_a_missed_limit_and_a_missing_figure_are_marked() -> None:
    row = next(row for row in ROWS if row.name == "stamp error p99 us")
    assert [row.misses(64, 200), row.misses(64, 201), row.misses(512, 999), row.misses(64, float("nan"))] == [
        False,
        True,
        False,
        True,
    ]
    result = {"figures": {row.name: 201.0}, "missed": [row.name]}
    assert cell(row, result) == "!201.0"
    assert limits(row, [64, 8, 512]) == "<= 200 / - / <= 1000"


def test_a_small_bench_runs_from_end_to_end() -> None:
    script = REPOSITORY / "scripts" / "_bench.py"
    command = [sys.executable, str(script), "--streams", "4", "--waves", "2", "--tokens", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    (result,) = json.loads(done.stdout)["results"]
    assert result["tokens lost"] == 0
    assert result["figures"]["tokens not stamped"] == 0
    assert 0 < result["figures"]["stamp error p50 us"] < 10_000  # after the server sent, and before the next step
    assert result["figures"]["the server's"] > 50
