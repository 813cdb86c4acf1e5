"""What tests of perf share: a busy program with known shares, stacks by hand, and whether perf may record here."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servebench.errors import UsageError
from servebench.profile.perf_program import environment, find_perf
from servebench.profile.stacks import Frame, StackGatherer, Stacks, Thread

BUSY = """
#include <stdlib.h>
#include <time.h>
volatile unsigned long sink;
__attribute__((noinline)) void hot_a(void) { for (int i = 0; i < 300000; i++) sink += i; }
__attribute__((noinline)) void hot_b(void) { for (int i = 0; i < 100000; i++) sink += i; }
int main(int argc, char **argv) {
    time_t end = time(0) + atoi(argv[1]);
    while (time(0) < end) { hot_a(); hot_b(); }
    return 0;
}
"""
SPIN = """
import time
end = time.time() + {seconds}
while time.time() < end:
    sum(range(1000))
"""


def why_no_perf() -> str:
    """Why perf cannot record here; empty if it can."""
    try:
        program = find_perf()
    except UsageError as error:
        return str(error)
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "record", "-o", f"{folder}/perf.data", "--", "true"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=30)
    return f"perf may not record here: {done.stderr.strip()}" if done.returncode else ""


def compiled(folder: Path) -> Path:
    """The busy program: three quarters of its time in hot_a, one in hot_b."""
    source, program = folder / "busy.c", folder / "busy program"  # the kernel calls its thread so: with a space
    source.write_text(BUSY)
    compiler = shutil.which("gcc") or shutil.which("cc") or "cc"
    subprocess.run([compiler, "-O0", "-fno-omit-frame-pointer", "-o", program, source], check=True, timeout=60)
    return program


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*map(str, command)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def spinning(seconds: float) -> tuple[str, ...]:
    """The command of a Python process that is busy."""
    return sys.executable, "-c", SPIN.format(seconds=seconds)


def stacks_of(*lines: str) -> Stacks:
    """Stacks of one thread from `outer inner[module] 3`: frames, then a count."""
    gathered = StackGatherer()
    for line in lines:
        *names, count = line.split()
        frames = [Frame(*_parts(name)) for name in names]
        gathered.add(Thread(7, "serve", 8, "worker"), map(gathered.frame, frames), int(count))
    return gathered.stacks(timed=False)


def _parts(name: str) -> tuple[str, str]:
    function, _, module = name.partition("[")
    return function, module.rstrip("]")
