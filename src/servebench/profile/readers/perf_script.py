"""Reads perf's recordings: runs `perf script` on a `perf.data`, and makes stacks of what it prints."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from servebench.clock import Anchor
from servebench.errors import UsageError
from servebench.profile.modules import JIT, PYTHON, UNKNOWN, module_of
from servebench.profile.perf_program import environment, find_perf
from servebench.profile.readers.perf_text import FIELDS, PerfText, Sample, split_frame
from servebench.profile.stacks import Frame, StackGatherer, Stacks, Thread
from servebench.profile.symbols import demangle, python_name
from servebench.profile.timeline import Alignment

MAGIC = (b"PERFILE2", b"2ELIFREP")
KERNELS_LIMIT = 127  # frames: kernel.perf_event_max_stack by default, sometimes one more; debug data have no limit
DEEPEST = 2000  # frames
NAMELESS = {UNKNOWN: "unknown", JIT: "generated code"}
NO_STACK = Frame("[no stack]", UNKNOWN)
SECONDS = 600.0


def read_perf(path: Path, anchors: Sequence[Anchor] = ()) -> Stacks:
    """Read a `perf.data`; every sample keeps its instant.

    Args:
        path: the recording.
        anchors: the two clocks read together while it was made; without any, the pair that the file itself states.

    Returns:
        stacks on CLOCK_REALTIME if it was recorded with `-k CLOCK_MONOTONIC`, else on perf's own clock (no alignment).

    Raises:
        UsageError: there is no perf to read it with; it is no recording, damaged, or holds no sample.
    """
    _check_magic(path)
    text, gathered = PerfText(), _Gathered()
    with tempfile.TemporaryFile("w+", errors="replace") as complaints:
        with _script(path, complaints) as lines:
            for sample in text.samples(lines):
                gathered.add(sample)
        complaints.seek(0)
        complaint = complaints.read()
    if not gathered.samples:
        raise UsageError(f"{path}: {_why_empty(text, complaint)}")
    stacks = gathered.stacks(text.facts, _notes(text, gathered, complaint))
    return _on_realtime(stacks, text, anchors)


class _Gathered:
    """Samples on their way to `Stacks`: names of threads and functions are only complete at the end."""

    def __init__(self) -> None:
        self.samples = 0
        self.deep = 0  # samples at the kernel's limit
        self.deepest = 0
        self._gatherer = StackGatherer()
        self._frames: dict[str, int] = {}  # by a frame's line: most are seen a thousand times
        self._names: dict[tuple[int, int], str] = {}  # a thread's last name is the one that it gave itself

    def add(self, sample: Sample) -> None:
        path: list[int] = []
        for line in reversed(sample.frames):
            number = self._frames.get(line)
            if number is None:
                number = self._frames[line] = self._gatherer.frame(frame_of(line))
            if not path or path[-1] != number or not self._is_unknown(line):
                path.append(number)
        self._names[sample.process, sample.thread] = sample.name
        thread = Thread(sample.process, "", sample.thread, "")
        self._gatherer.add(thread, path or [self._gatherer.frame(NO_STACK)], 1, sample.time_ns)
        self.samples += 1
        self.deep += len(sample.frames) >= KERNELS_LIMIT
        self.deepest = max(self.deepest, len(sample.frames))

    @staticmethod
    def _is_unknown(line: str) -> bool:
        return " [unknown] (" in line  # a run of these is one: how many says nothing

    def stacks(self, facts: dict[str, Any], notes: Iterable[str]) -> Stacks:
        stacks = self._gatherer.stacks(facts=facts, notes=notes)
        plain = demangle(frame.name for frame in stacks.frames)
        return replace(
            stacks,
            frames=tuple(Frame(plain.get(name, name), module) for name, module in stacks.frames),
            threads=tuple(self._named(thread) for thread in stacks.threads),
        )

    def _named(self, thread: Thread) -> Thread:
        own = self._names[thread.process, thread.thread]
        process = self._names.get((thread.process, thread.process), own)
        return Thread(thread.process, process, thread.thread, own)


def frame_of(line: str) -> Frame:
    """The frame that a line of perf's text tells of; a function of no name is called after its module."""
    symbol, dso = split_frame(line)
    module = module_of(dso)
    if module == JIT and (name := python_name(symbol)) is not None:
        return Frame(name, PYTHON)
    if symbol == "[unknown]":
        return Frame(f"[{NAMELESS.get(module) or module.partition('.')[0]}]", module)
    return Frame(symbol, module)


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if not start:
        raise UsageError(f"{path} is empty: perf was ended before it wrote anything")
    if start not in MAGIC:
        raise UsageError(f"{path} is no recording of perf's")


@contextmanager
def _script(path: Path, complaints: IO[str]) -> Iterator[IO[str]]:
    """Run `perf script`; its text line by line. It is ended when the text is no longer wanted, or takes too long."""
    # -f: whoever owns the file, it was named on purpose. --no-inline: resolving inlined calls takes minutes with torch.
    command = [find_perf(), "script", "-f", "-i", str(path), "--header", "--ns", "--no-inline", "--show-lost-events"]
    process = subprocess.Popen(
        [*command, "--max-stack", str(DEEPEST), "-F", FIELDS],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,
        encoding="utf-8",
        errors="replace",
        env=environment(),
    )
    limit = threading.Timer(SECONDS, process.kill)
    limit.start()
    assert process.stdout is not None
    try:
        yield process.stdout
        if process.wait() == -signal.SIGKILL:
            raise UsageError(f"{path}: perf script took longer than {SECONDS:.0f} s, and was ended")
    finally:
        limit.cancel()
        process.kill()
        process.stdout.close()
        process.wait()


def _why_empty(text: PerfText, complaints: str) -> str:
    """Why a recording gave no sample."""
    if "incompatible file format" in complaints or "failed to process" in complaints or not text.facts:
        lines = [line.strip() for line in complaints.splitlines() if line.strip()]
        return f"damaged, or of another kind of machine: {lines[-1] if lines else 'perf script says nothing'}"
    if "size field is 0" in complaints:
        return "perf was killed before it wrote a sample"
    return "not one sample: nothing ran on a CPU in that time, or perf was not permitted to look"


def _notes(text: PerfText, gathered: _Gathered, complaint: str) -> list[str]:
    notes = []
    if "failed to process" in complaint or "size field is 0" in complaint:
        notes.append("the recording ends early: perf was killed, or the file was cut; what it holds was read")
    if text.facts.get("kernel") is False:
        notes.append("what the kernel did is left out: this user may not look into it (kernel.perf_event_paranoid)")
    if text.lost:
        notes.append(f"{text.lost} samples were lost: the machine was too busy for perf to fetch them")
    if text.malformed:
        notes.append(f"{text.malformed} lines of perf's text were not understood and are left out")
    if KERNELS_LIMIT <= gathered.deepest <= KERNELS_LIMIT + 1:
        share = 100 * gathered.deep / gathered.samples
        notes.append(
            f"{share:.0f} % of the stacks are deeper than the {KERNELS_LIMIT} frames that the kernel records "
            "(kernel.perf_event_max_stack): their outer ends are missing"
        )
    return notes


def _on_realtime(stacks: Stacks, text: PerfText, anchors: Sequence[Anchor]) -> Stacks:
    """Bring the samples' instants onto CLOCK_REALTIME, where the recording's clock is CLOCK_MONOTONIC."""
    assert stacks.time is not None
    if text.reference is None:
        note = "recorded by perf's own clock (no -k CLOCK_MONOTONIC): the samples cannot be put on the run's clock"
        return replace(stacks, notes=(*stacks.notes, note))
    pair = anchors[0] if anchors else text.reference
    offset = pair.realtime_ns - pair.monotonic_ns
    return replace(stacks, time=stacks.time + offset, alignment=_alignment(text.reference, anchors))


def _alignment(reference: Anchor, anchors: Sequence[Anchor]) -> Alignment:
    if not anchors:
        reason = "perf read its two clocks one after the other, to the microsecond"
        return Alignment("the instant that the recording states on both clocks", reason=reason)
    offsets = [anchor.realtime_ns - anchor.monotonic_ns for anchor in anchors]
    moved = max(offsets) - min(offsets)
    return Alignment(
        "stamped by CLOCK_MONOTONIC; read together with CLOCK_REALTIME while it was recorded",
        offset_ns=offsets[0] - (reference.realtime_ns - reference.monotonic_ns),
        residual_ns=moved + max(anchor.error_ns for anchor in anchors) // 2,
    )
