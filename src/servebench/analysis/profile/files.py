"""Answers for a profiler's files from anywhere: cut to a part on request, and joined to a run's requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.analysis.profile.answers import answers
from servebench.errors import UsageError
from servebench.profile.readers import Told, open_files
from servebench.profile.stacks import Stacks
from servebench.profile.timeline import Timeline

if TYPE_CHECKING:
    from servebench.analysis.data import RunData

Capture = Timeline | Stacks | Told
Interval = tuple[int, int]

FREE = "free"  # the kind of a window that is meant for no particular traffic


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of some files.

    Attributes:
        rundir: the run whose requests were in flight meanwhile.
        part: seconds after the capture's beginning, first and last; None for all of it.
        pattern: of the names of engine steps.
    """

    rundir: Path | None = None
    part: tuple[float, float] | None = None
    pattern: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked beyond what a capture itself shows."""
        return self == Question()


def analyze(paths: Sequence[Path], question: Question) -> tuple[dict[str, Any], Capture]:
    """Open the files, and answer.

    Returns:
        the document of `answers.answers`, and what was opened, cut to the part that was asked for where it is stacks.

    Raises:
        UsageError: a file cannot be read, the part lies outside it, the run cannot be joined to it, or the pattern is
            no regular expression or nothing for such a file.
    """
    capture = open_files(paths)
    name = paths[0].name or str(paths[0])
    if isinstance(capture, Stacks):
        return _of_stacks(name, capture, question)
    if isinstance(capture, Told):
        return _as_told(name, capture, question), capture
    window = _part(capture.span, question.part)
    document = answers(
        capture,
        name=name,
        kind=FREE,
        tool=capture.source,
        version=_version(capture),
        start_ns=window[0],
        end_ns=window[1],
        run=_run(question.rundir, capture, window),
        facts={"files": [path.name for path in paths]},
        pattern=question.pattern,
    )
    return document, capture


def _as_told(name: str, told: Told, question: Question) -> dict[str, Any]:
    if not question.is_plain:
        raise UsageError(
            f"{name} is what {told.tool} says of kernels: it has no instants, so ask for no part, steps or run"
        )
    facts = {told.section: told.document, "files": [name]}
    return answers(
        None,
        name=name,
        kind=FREE,
        tool=told.tool,
        version=None,
        start_ns=None,
        end_ns=None,
        run=None,
        facts=facts,
    )


def _of_stacks(name: str, stacks: Stacks, question: Question) -> tuple[dict[str, Any], Capture]:
    if question.pattern is not None:
        raise UsageError(f"{name} holds stacks, in which no steps are marked: leave --steps out")
    window = _stacks_window(name, stacks, question)
    if question.part is not None and window is not None:
        stacks = stacks.between(*window)
    if not stacks.total:
        raise UsageError(f"{name} holds no sample in this part")
    document = answers(
        None,
        name=name,
        kind=FREE,
        tool="perf",
        version=_version(stacks),
        start_ns=window[0] if window else None,
        end_ns=window[1] if window else None,
        run=_run(question.rundir, stacks, window) if window else None,
        stacks=stacks,
        facts={"files": [name], "notes": stacks.notes},
    )
    return document, stacks


def _stacks_window(name: str, stacks: Stacks, question: Question) -> Interval | None:
    """From the first sample to the last; None where stacks are mere counts, which must be asked for nothing else."""
    if stacks.time is None:
        asked = "--window" if question.part is not None else "--run" if question.rundir is not None else None
        if asked:
            raise UsageError(
                f"{name} holds counts of stacks without instants: {asked} needs the perf.data they are from"
            )
        return None
    if not stacks.total:
        return None
    return _part((int(stacks.time.min()), int(stacks.time.max()) + 1), question.part)


def _version(capture: Timeline | Stacks) -> str | None:
    version = capture.facts.get("version")
    return None if version is None else str(version)


def _part(span: Interval, part: tuple[float, float] | None) -> Interval:
    """The part on the capture's clock."""
    if part is None:
        return span
    start, end = (span[0] + round(1e9 * seconds) for seconds in part)
    if start >= span[1]:
        length = (span[1] - span[0]) / 1e9
        raise UsageError(f"--window {part[0]:g}s..{part[1]:g}s lies outside the capture, which lasts {length:.3g} s")
    return start, min(end, span[1])


def _run(path: Path | None, capture: Timeline | Stacks, window: Interval) -> RunData | None:
    """The run, if its clock is the capture's and it was up meanwhile."""
    if path is None:
        return None
    if capture.alignment is None:
        raise UsageError(f"cannot join {path}: the capture's instants are on a clock of its own, not on the run's")
    run = _load(path)
    begin, end = _life(run)
    if begin is None or end is None or window[0] >= end or window[1] <= begin:
        when = "which sent no request" if begin is None or end is None else f"{_clock(begin)} to {_clock(end)}"
        raise UsageError(
            f"cannot join {path}, {when}: the capture is from {_clock(window[0])} to {_clock(window[1])}, another time"
        )
    return run


def _load(path: Path) -> RunData:
    from servebench.analysis.data import load
    from servebench.record.rundir import RunDir

    try:
        return load(RunDir.open(path))
    except ValueError as error:
        raise UsageError(f"{path} cannot be analysed: {error}") from error


def _life(run: RunData) -> tuple[int | None, int | None]:
    """First and last instant of its requests, ns; None without any."""
    from servebench.analysis.data import MISSING

    requests = run.requests
    known = [column[column != MISSING] for column in (requests.sent, requests.end, requests.last_token)]
    known = [column for column in known if column.size]
    if not known:
        return None, None
    return min(int(column.min()) for column in known), max(int(column.max()) for column in known)


def _clock(instant_ns: int) -> str:
    return f"{datetime.fromtimestamp(instant_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
