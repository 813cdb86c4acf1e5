"""Where an export goes: never over anything unasked, never over a run's own data, and only as a whole."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servebench.analysis.facts import gather
from servebench.analysis.profile.stored import summary_of
from servebench.analysis.summary import document
from servebench.errors import UsageError
from servebench.record.rundir import RunDir
from servebench.report.exports import find
from servebench.report.exports.exporter import Exporter
from servebench.report.summary_io import read


@dataclass(frozen=True, slots=True)
class Exported:
    """An export that was made.

    Attributes:
        files: that were written.
        summary: of the run.
    """

    files: list[Path]
    summary: dict[str, Any]


def export(path: Path, name: str, out: Path | None = None, force: bool = False) -> Exported:
    """Export the run in `path`.

    Args:
        path: a run directory, finished or not; it is only read.
        name: of the format.
        out: the file or folder to write; by default the run directory's name, dot, `name`, where the process works.
        force: replace a file that is there, or in a folder that is there the files of this export.

    Raises:
        UsageError: no run, no such format, `out` is taken or lies where it must not, or cannot be written.
    """
    exporter, run = find(name), RunDir.open(path)
    place = choose(run, name, out, force)
    summary = document(gather(read(run)), summary_of(run.path))
    return Exported(_write(exporter, run, summary, place), summary)


def choose(run: RunDir, name: str, out: Path | None, force: bool) -> Path:
    """The place of the export; raises UsageError when it may not go there."""
    own = run.path.resolve()
    place = out if out is not None else Path(f"{own.name}.{name}")
    inside = place.resolve().is_relative_to(own)
    if out is None and inside:
        raise UsageError(f"{place} would be inside the run directory, where nothing is written unasked; give --out")
    if not place.exists():
        return place
    if not (place.is_file() or place.is_dir()):
        raise UsageError(f"{place} is neither a file nor a folder; choose another --out")
    if inside:
        raise UsageError(f"{place} is part of the run directory, where nothing is replaced; choose another --out")
    if not force:
        raise UsageError(f"{place} exists already; choose another --out, or replace it with --force")
    return place


def _write(exporter: Exporter, run: RunDir, summary: dict[str, Any], place: Path) -> list[Path]:
    """Let the exporter write into a folder beside `place`, then move what it wrote; return the final paths."""
    target = place.resolve()  # what a link leads to is replaced, not the link
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".servebench-", dir=target.parent) as folder:
            scratch = Path(folder) / "export"
            files = exporter.write(run, summary, scratch)
            if scratch.exists():
                _move(scratch, target)
    except OSError as error:
        raise UsageError(f"cannot write {place}: {error.strerror or error}") from error
    return [place / file.relative_to(scratch) if file.is_relative_to(scratch) else file for file in files]


def _move(scratch: Path, place: Path) -> None:
    if place.exists() and place.is_dir() != scratch.is_dir():
        kinds = ("a folder", "a file") if place.is_dir() else ("a file", "a folder")
        raise UsageError(f"{place} is {kinds[0]} and this export is {kinds[1]}; choose another --out")
    if not (place.is_dir() and scratch.is_dir()):
        scratch.replace(place)
        return
    for file in sorted(path for path in scratch.rglob("*") if path.is_file()):
        target = place / file.relative_to(scratch)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
