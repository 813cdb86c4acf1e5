"""Stacks: where threads were found when a profiler looked, sample by sample, and the folded text form of it.

A folded file has a line for each different stack: `process 12;thread 13;outermost [module];...;innermost [module] 7`,
with the number of samples last. Names hold no semicolon; a frame of unknown module has no brackets. Other tools that
read folded stacks (flame graph scripts, speedscope) take such a file as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servebench.profile.timeline import Alignment


class Frame(NamedTuple):
    """A function on a stack, and the short name of the module that it lies in ("" where that is not known)."""

    name: str
    module: str

    def __str__(self) -> str:
        return f"{self.name} [{self.module}]" if self.module else self.name


class Thread(NamedTuple):
    """A thread of a process; both have a name and a number."""

    process: int
    process_name: str
    thread: int
    name: str


@dataclass(frozen=True, slots=True)
class Stacks:
    """Samples of stacks: one row a sample, or one row a stack with its count where instants are not known.

    Attributes:
        frames: what `paths` points into.
        paths: each different stack, outermost frame first.
        threads: each thread that was sampled.
        path: int32, index into `paths`, per row.
        thread: int32, index into `threads`, per row.
        count: int64, samples that a row stands for.
        time: int64 ns of CLOCK_REALTIME, per row (of the file's own clock where `alignment` is None); None where the
            rows are counts.
        alignment: None where the instants are not known to be the run's clock.
        facts: what else the file says: "event", "frequency", "version", ...; JSON values only.
        notes: what a reader must know: samples that the profiler lost, lines that were not understood.
    """

    frames: tuple[Frame, ...]
    paths: tuple[tuple[int, ...], ...]
    threads: tuple[Thread, ...]
    path: NDArray[np.int32]
    thread: NDArray[np.int32]
    count: NDArray[np.int64]
    time: NDArray[np.int64] | None = None
    alignment: Alignment | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Samples in all."""
        return int(self.count.sum())

    def between(self, start_ns: int, end_ns: int) -> Stacks:
        """Return the samples taken at start ≤ t < end. Raises ValueError where the instants are not known."""
        if self.time is None:
            raise ValueError("these stacks are counts: when their samples were taken is not known")
        rows = (self.time >= start_ns) & (self.time < end_ns)
        return replace(
            self, path=self.path[rows], thread=self.thread[rows], count=self.count[rows], time=self.time[rows]
        )

    def counts(self) -> Counter[tuple[int, int]]:
        """Samples by (index into `threads`, index into `paths`); those of none left out."""
        counts: Counter[tuple[int, int]] = Counter()
        for thread, path, count in zip(self.thread.tolist(), self.path.tolist(), self.count.tolist(), strict=True):
            counts[thread, path] += count
        return +counts

    def per_path(self) -> Counter[int]:
        """Samples by index into `paths`, over all threads."""
        counts: Counter[int] = Counter()
        for (_, path), count in self.counts().items():
            counts[path] += count
        return counts

    def per_thread(self) -> dict[Thread, int]:
        """Samples of each thread, the busiest first."""
        counts: Counter[Thread] = Counter()
        for (thread, _), count in self.counts().items():
            counts[self.threads[thread]] += count
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def folded(self) -> Iterator[str]:
        """Its lines in the folded form, in alphabetical order."""
        lines: Counter[str] = Counter()
        for (thread, path), count in self.counts().items():
            who = self.threads[thread]
            names = [f"{who.process_name} {who.process}", f"{who.name} {who.thread}"]
            names += [str(self.frames[frame]) for frame in self.paths[path]]
            lines[";".join(map(_one_field, names))] += count
        for text in sorted(lines):
            yield f"{text} {lines[text]}"

    def write(self, path: Path) -> None:
        """Store it folded (instants are not kept). Raises OSError."""
        scratch = path.with_name(f".{path.name}.new")
        scratch.write_text("".join(f"{line}\n" for line in self.folded()), "utf-8")
        scratch.replace(path)

    @classmethod
    def read(cls, path: Path, alignment: Alignment | None = None) -> Stacks:
        """Read a folded file: what `write` stored, or another tool's.

        Args:
            alignment: what was known of its samples' instants, which such a file does not tell.

        Raises:
            OSError, ValueError: there is none, or it holds something else.
        """
        gathered = StackGatherer()
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    _add_folded(gathered, line.rstrip("\n"), f"{path}, line {number}")
        if not len(gathered):
            raise ValueError(f"{path} holds no stacks")
        return gathered.stacks(timed=False, alignment=alignment)


class StackGatherer:
    """Collects samples into `Stacks`, each different frame, stack and thread once."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._paths: dict[tuple[int, ...], int] = {}
        self._threads: dict[Thread, int] = {}
        self._rows: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def frame(self, frame: Frame) -> int:
        """The number of a frame."""
        return self._frames.setdefault(frame, len(self._frames))

    def add(self, thread: Thread, path: Iterable[int], count: int = 1, time_ns: int = 0) -> None:
        """Add a sample; `path` is of `frame`'s numbers, outermost first."""
        stack = tuple(path)
        self._rows.append(
            (
                self._threads.setdefault(thread, len(self._threads)),
                self._paths.setdefault(stack, len(self._paths)),
                count,
                time_ns,
            )
        )

    def stacks(
        self,
        *,
        timed: bool = True,
        alignment: Alignment | None = None,
        facts: dict[str, Any] | None = None,
        notes: Iterable[str] = (),
    ) -> Stacks:
        """What was added so far."""
        table = np.array(self._rows, np.int64).reshape(-1, 4)
        return Stacks(
            frames=tuple(self._frames),
            paths=tuple(self._paths),
            threads=tuple(self._threads),
            path=table[:, 1].astype(np.int32),
            thread=table[:, 0].astype(np.int32),
            count=table[:, 2].copy(),
            time=table[:, 3].copy() if timed else None,
            alignment=alignment,
            facts=facts or {},
            notes=tuple(notes),
        )


def _one_field(text: str) -> str:
    """A name without what separates fields and lines."""
    return text.replace(";", ":").replace("\n", " ").replace("\r", " ")


def _add_folded(gathered: StackGatherer, line: str, where: str) -> None:
    text, _, count = line.rpartition(" ")
    if not text or not count.isascii() or not count.isdigit():
        raise ValueError(f"{where}: not a folded stack (frames joined by semicolons, a space, a count)")
    first, *names = text.split(";")
    process_name, process = _numbered(first)
    thread_name, thread = first, process
    if process and names and _numbered(names[0])[1]:
        thread_name, thread = _numbered(names.pop(0))
    gathered.add(
        Thread(process, process_name, thread, thread_name),
        [gathered.frame(_frame(name)) for name in names],
        int(count),
    )


def _numbered(text: str) -> tuple[str, int]:
    """The name and the number of `name 123`; number 0 where it has none."""
    name, _, number = text.rpartition(" ")
    return (name, int(number)) if name and number.isascii() and number.isdigit() else (text, 0)


def _frame(text: str) -> Frame:
    name, bracket, module = text.rpartition(" [")
    if bracket and module.endswith("]") and " " not in module:
        return Frame(name, module[:-1])
    return Frame(text, "")
