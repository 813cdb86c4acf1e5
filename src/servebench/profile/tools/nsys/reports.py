"""A report of nsys, exported and read."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from servebench.profile.readers.nsys import read_nsys
from servebench.profile.timeline import Timeline
from servebench.profile.tool import TIMELINE, ProfileError
from servebench.profile.tools.nsys.command import run_nsys

SUFFIX = ".nsys-rep"
SETTLED_S = 0.5  # a report that grows no more for so long is written


def export(nsys: Path, report: Path, limit_s: float) -> Path:
    """Write a report's SQLite export beside it.

    Raises:
        ProfileError: nsys failed or took too long; a full disk is said to be one.
    """
    target = report.with_suffix(".sqlite")
    arguments = ["export", "--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={target}", str(report)]
    try:
        run_nsys(nsys, arguments, limit_s)
    except ProfileError as error:
        target.unlink(missing_ok=True)  # half a file reads like a whole one
        raise ProfileError(f"{report.name} could not be exported: {error}{full_disk(report.parent)}") from None
    if not target.is_file():
        raise ProfileError(f"nsys export of {report.name} wrote nothing{full_disk(report.parent)}")
    return target


def to_timeline(sqlite: Path) -> Timeline:
    """Read an export and store the timeline beside it.

    Raises:
        ProfileError: it cannot be read or stored.
    """
    try:
        timeline = read_nsys(sqlite)
        timeline.write(sqlite.with_name(TIMELINE))
    except ValueError as error:
        raise ProfileError(str(error)) from None
    except OSError as error:
        raise ProfileError(f"cannot store the timeline: {error.strerror or error}") from None
    return timeline


def await_report(report: Path, limit_s: float) -> Path:
    """Wait until a report that nsys writes at its own end is there and whole. Raises ProfileError."""
    deadline = time.monotonic() + limit_s
    size = -1
    while time.monotonic() < deadline:
        now = report.stat().st_size if report.is_file() else -1
        if now >= 0 and now == size:
            return report
        size = now
        time.sleep(SETTLED_S)
    raise ProfileError(f"nsys wrote no {report.name} within {limit_s:g} s of the server's end: no capture range began?")


def remove_raw(said: str) -> None:
    """Remove the raw data of a report that nsys failed to write, from where it said that they are."""
    for path in re.findall(r"Generating '([^']+\.qdstrm)'", said):
        Path(path).unlink(missing_ok=True)


def full_disk(folder: Path) -> str:
    """What to add to a failure where there is no more space, which nsys often does not say."""
    free = shutil.disk_usage(folder).free
    return f" (only {free / 1e6:.0f} MB are free in {folder})" if free < 256e6 else ""
