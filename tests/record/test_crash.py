"""A worker that is killed in mid-run leaves all it finished more than a second before."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from servebench.record.journal import FLUSH_AFTER_NS
from servebench.record.rundir import RunDir

WORKER = """
import sys, time
import numpy as np
from pathlib import Path
from servebench.record.columns import RequestRecord
from servebench.record.journal import JournalWriter

writer = JournalWriter(Path(sys.argv[1]), 0)
tokens, channel, nbytes = np.ones(20, np.int32), np.zeros(20, np.int8), np.ones(20, np.int32)
index = 0
while True:
    now = time.time_ns()
    record = RequestRecord(index=index, worker=0, class_id=0, scheduled_ns=now, outcome="ok", input_planned=1,
                           output_planned=20, end_ns=now, chunks=20)
    print(index, now, flush=True)  # said before the row is kept, so the list below is never short
    writer.add(record, now + np.arange(20), tokens, channel, nbytes)
    index += 1
    time.sleep(0.02)
"""


def test_kill_9_loses_at_most_the_last_second(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    said = tmp_path / "said"
    with said.open("wb") as out, subprocess.Popen([sys.executable, "-c", WORKER, run.journal_dir], stdout=out) as child:
        deadline = time.monotonic() + 30
        while run.requests().num_rows < 60 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        child.kill()
        killed_ns = time.time_ns()
    finished = np.array([line.split() for line in said.read_bytes().splitlines()], np.int64)
    due = finished[finished[:, 1] < killed_ns - FLUSH_AFTER_NS - 100_000_000, 0]
    reopened = RunDir.open(tmp_path / "run")
    assert reopened.incomplete
    assert len(due) >= 60
    assert set(due.tolist()) <= set(reopened.requests()["index"].to_pylist())
    assert reopened.chunks().num_rows == 20 * reopened.requests().num_rows
    reopened.finalise()
    assert reopened.chunks().num_rows == 20 * reopened.requests().num_rows
    assert RunDir.open(tmp_path / "run").incomplete
