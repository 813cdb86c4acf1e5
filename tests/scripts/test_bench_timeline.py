"""The bench of `analyze` on a file small enough for a test: all rows are found, and the figures are printed."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "_bench_timeline.py"


def test_a_small_file_is_within_the_limits() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--kernels", "20000"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    made, read, analysed, verdict = done.stdout.splitlines()
    assert made.startswith("large.sqlite: 20,000 kernels, ")
    assert read.startswith(
        "40,162 rows read in "
    )  # kernels and calls; of 20 steps on two devices 4 each; the first pair
    assert analysed.startswith("read and analysed in ")
    assert verdict == "within 30 s and 2 GB: yes"
