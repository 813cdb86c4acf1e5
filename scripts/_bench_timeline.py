"""The bench of `analyze`: a large export of nsys is made, then read and analysed in a process of its own.

Two devices, each with a process that launches every kernel of its own accord: as many calls as kernels, the most rows
that a capture can have. Steps of 500 kernels follow each other every 11 ms, one kernel in 25 is a collective, one in 11
runs on a second stream and overlaps its neighbour; each step ends with a copy and a wait, and has an NVTX range.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from nsys_files import NsysFile, global_pid, global_tid  # noqa: E402

KERNELS = 8_000_000
LIMIT_S, LIMIT_BYTES = 30.0, 2e9
STEP = 500  # kernels
PIDS = (4_242, 4_243)
LAYERS = 40  # kernels by name, beside the collective; the call that launches them is the next string
LAUNCH = "cudaLaunchKernel_v7000"
COLLECTIVE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

# row i of device i % 2 is its kernel j = i / 2; SQLite's own loop makes the rows, at two million a second
ROWS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {last}) "
START = "(1000000000 + i / 2 / 500 * 11000000 + i / 2 % 500 * 20000)"
FILL = {
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        "start": f"{START} - (i / 2 % 11 = 0) * 4000",
        "end": f"{START} + 8000 + i / 2 * 37 % 11900",
        "deviceId": "i % 2",
        "contextId": "1",
        "streamId": "7 + (i / 2 % 11 = 0)",
        "correlationId": "i / 2 + 1",
        "globalPid": f"{global_pid(PIDS[0])} + (i % 2 << 24)",
        "demangledName": f"CASE i / 2 % 25 WHEN 0 THEN 1 ELSE 2 + i / 2 % {LAYERS} END",
        "shortName": f"2 + i / 2 % {LAYERS}",
        "mangledName": f"2 + i / 2 % {LAYERS}",
        "registersPerThread": "64",
        "gridX": "i % 4096",
        "gridY": "1",
        "gridZ": "1",
        "blockX": "256",
        "blockY": "1",
        "blockZ": "1",
        "dynamicSharedMemory": "49152",
        "localMemoryTotal": "140000000",
        "gridId": "i / 2",
        "sharedMemoryExecuted": "102400",
    },
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        "start": f"{START} - 12000",
        "end": f"{START} - 9000",
        "globalTid": f"{global_tid(PIDS[0], PIDS[0])} + (i % 2 << 24)",
        "correlationId": "i / 2 + 1",
        "nameId": f"{LAYERS + 2}",
    },
}


def main() -> int:
    """Make the file, measure, print; 1 when a limit is passed."""
    options = arguments()
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-timeline-") as folder:
        path = Path(folder) / "large.sqlite"
        began = time.monotonic()
        generate(path, options.kernels)
        size = path.stat().st_size
        print(
            f"{path.name}: {options.kernels:,} kernels, {size / 1e9:.2f} GB, made in {time.monotonic() - began:.0f} s"
        )
        found = in_a_process_of_its_own(path)
    return report(found, options.kernels)


def arguments() -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(prog="scripts/bench-timeline", description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=KERNELS, help="rows of kernels (default %(default)s)")
    parser.add_argument(
        "--measure", type=Path, metavar="FILE", help="only read and analyse FILE, and print the figures"
    )
    return parser.parse_args()


def generate(path: Path, kernels: int) -> None:
    """Write the export."""
    few(kernels).write(path)
    with closing(sqlite3.connect(path)) as database:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            database.execute(f"PRAGMA {pragma}")
        for table, values in FILL.items():
            missing = [
                row[1] for row in database.execute(f"PRAGMA table_info({table})") if row[3] and row[1] not in values
            ]
            columns = ", ".join(f'"{name}"' for name in (*values, *missing))
            chosen = ", ".join([*values.values(), *("0" for _ in missing)])
            database.execute(f"INSERT INTO {table} ({columns}) {ROWS.format(last=kernels - 1)} SELECT {chosen} FROM n")
        database.commit()


def few(kernels: int) -> NsysFile:
    """What there are not millions of: names, steps, copies and waits; the tables of the rest with one row each."""
    layers = [f"void layer_{number}<__nv_bfloat16, {number}>(float*)" for number in range(LAYERS)]
    strings = {name: number for number, name in enumerate([COLLECTIVE, *layers, LAUNCH], start=1)}
    file = NsysFile("3.13", strings=strings, correlations=Counter(dict.fromkeys(PIDS, kernels)))
    file.kernel(COLLECTIVE, 999_980_000, 999_985_000, pid=PIDS[0], launch=(999_970_000, 999_971_000), api=LAUNCH)
    for step in range(kernels // 2 // STEP):
        for device, pid in enumerate(PIDS):
            at = 1_000_000_000 + step * 11_000_000
            launch = (at + 9_990_000, at + 9_995_000)
            file.range("execute_context_0(0)_generation_32(32)", at - 20_000, at + 10_900_000, pid=pid, tid=pid)
            file.copy(
                "DtoH", at + 10_100_000, at + 10_110_000, device=device, pid=pid, tid=pid, launch=launch, size=4_096
            )
            file.api("cudaStreamSynchronize_v3020", at + 9_996_000, at + 10_120_000, pid=pid, tid=pid)
    return file


def in_a_process_of_its_own(path: Path) -> dict[str, Any]:
    """What a fresh process measures."""
    child = subprocess.run([sys.executable, __file__, "--measure", path], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(child.stdout)
    return figures


def measured(path: Path) -> dict[str, Any]:
    """Read and analyse a file, and say how long that took and how much memory."""
    from servebench.analysis.profile.answers import answers
    from servebench.profile.readers.nsys import read_nsys

    began = time.monotonic()
    timeline = read_nsys(path)
    read, read_bytes = time.monotonic(), peak_bytes()
    version = timeline.facts["version"]
    names = {"name": "file", "kind": "free", "tool": "nsys", "version": version}
    document = answers(timeline, **names, start_ns=None, end_ns=None, run=None)
    return {
        "rows": len(timeline),
        "kernels": document["counts"]["kernels"],
        "read_s": read - began,
        "read_bytes": read_bytes,
        "all_s": time.monotonic() - began,
        "all_bytes": peak_bytes(),
        "cpu_s": time.process_time(),
    }


def peak_bytes() -> int:
    """Most memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def report(found: dict[str, Any], kernels: int) -> int:
    """Print the figures, and whether they hold."""
    print(f"{found['rows']:,} rows read in {found['read_s']:.1f} s, {found['read_bytes'] / 1e9:.2f} GB")
    print(
        f"read and analysed in {found['all_s']:.1f} s, {found['all_bytes'] / 1e9:.2f} GB; {found['cpu_s']:.1f} s of CPU"
    )
    if found["kernels"] < kernels:
        print(f"only {found['kernels']:,} kernels were found")
        return 1
    held = found["all_s"] <= LIMIT_S and found["all_bytes"] <= LIMIT_BYTES
    print(f"within {LIMIT_S:.0f} s and {LIMIT_BYTES / 1e9:.0f} GB: {'yes' if held else 'no'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
