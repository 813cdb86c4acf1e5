"""Any profiler's file, opened by what it holds, whatever it is called."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.errors import ServebenchError, UsageError
from servebench.profile.readers.formats import KINETO, Format, identify
from servebench.profile.tool import STACKS, TIMELINE

if TYPE_CHECKING:
    from servebench.profile.stacks import Stacks
    from servebench.profile.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool says that is neither a timeline nor stacks.

    Attributes:
        tool: its name, see `servebench.profile.tools.NAMES`.
        section: of a window's answers, which it becomes as it is.
        document: JSON values only.
    """

    tool: str
    section: str
    document: dict[str, Any]


OURS = (TIMELINE, STACKS)  # made of what lies beside them, and on the run's clock
UNDERSTOOD = (
    "reports of nsys and their SQLite exports, Chrome traces of the torch profiler (.json, .json.gz), perf.data, "
    "folded stacks, XSpace files of XLA (.xplane.pb), tables of ncu --csv, logs of "
    "Compute Sanitizer, servebench's timelines"
)
MOST_FILES = 5000  # of a folder, before it is too large to search
MOST_NAMED = 6
EXPORT_S = 900.0  # a report of gigabytes takes minutes


def open_file(path: Path) -> Timeline | Stacks | Told:
    """Read a profiler's file, or the only one below a folder; what it is is decided by its content.

    Raises:
        UsageError: it is missing, empty, damaged or nothing that is understood, with what it seems to be; or a folder
            with none or several, with their names.
    """
    path = find_capture(path)
    found = identify(path)
    if found.key not in READERS:
        raise UsageError(f"{path} seems to be {found.title}; {found.advice or f'understood are {UNDERSTOOD}'}")
    try:
        return READERS[found.key](path)
    except ServebenchError as error:
        raise UsageError(_about(path, str(error))) from error
    except (ValueError, OSError, EOFError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise UsageError(_about(path, f"it seems to be {found.title}, but cannot be read: {reason}")) from error


def open_files(paths: Sequence[Path]) -> Timeline | Stacks | Told:
    """Read one file as `open_file` does, or the traces of several ranks of one capture into one timeline.

    Raises:
        UsageError: as `open_file`; or several files that are not all traces of the torch profiler.
    """
    if len(paths) == 1:
        return open_file(paths[0])
    for path in paths:
        if identify(path).key != KINETO.key:
            raise UsageError(
                f"{path} seems to be {identify(path).title}: several files are read together only where they are the "
                "torch profiler's traces of the ranks of one capture"
            )
    from servebench.profile.readers.kineto import read_ranks

    try:
        return read_ranks(paths)
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise UsageError(str(error) or type(error).__name__) from error


def _about(path: Path, text: str) -> str:
    text = " ".join(text.split())  # some libraries tell more than a line
    return text if str(path) in text else f"{path}: {text}"


def find_capture(path: Path) -> Path:
    """The file itself, or the capture below a folder. Raises UsageError when there is none, or a choice to be made."""
    if not path.is_dir():
        return path
    for name in OURS:
        if (path / name).is_file():
            return path / name
    found = sorted(each for each, kind in _below(path) if kind.key in READERS)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"{path} is a folder without a profiler's file; understood are {UNDERSTOOD}")
    ours = [each for each in found if each.name in OURS]
    names = [str(each.parent if each.name in OURS else each) for each in ours or found]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    raise UsageError(f"{path} holds {len(names)} captures, choose one: {', '.join(names[:MOST_NAMED])}{more}")


def _below(folder: Path) -> Iterator[tuple[Path, Format]]:
    for number, path in enumerate(folder.rglob("*")):
        if number >= MOST_FILES:
            raise UsageError(f"{folder} holds more than {MOST_FILES:,} files: give the one that a profiler wrote")
        if path.is_file() and not path.name.startswith("."):
            try:
                yield path, identify(path)
            except UsageError:
                continue  # empty or not ours to read: no capture


def _nsys(path: Path) -> Timeline:
    from servebench.profile.readers.nsys import read_nsys

    return read_nsys(path)


def _nsys_report(path: Path) -> Timeline:
    """A report is read through nsys's own export, in a folder that is gone afterwards: nothing is left beside it."""
    from servebench.profile.readers.nsys import read_nsys
    from servebench.profile.tools.nsys import find_nsys
    from servebench.profile.tools.nsys.reports import export

    try:
        nsys = find_nsys().path
    except UsageError as error:
        raise UsageError(
            f"{path} is a report of Nsight Systems, which only nsys reads; where it is: nsys export --type sqlite "
            f"{path.name} (here: {error})"
        ) from error
    with tempfile.TemporaryDirectory(prefix="servebench-") as folder:
        report = Path(folder) / "capture.nsys-rep"
        report.symlink_to(path.absolute())
        return read_nsys(export(nsys, report, EXPORT_S))


def _kineto(path: Path) -> Timeline:
    from servebench.profile.readers.kineto import read_kineto

    return read_kineto(path)


def _perf(path: Path) -> Stacks:
    from servebench.profile.readers.perf_script import read_perf

    return read_perf(path)


def _stacks(path: Path) -> Stacks:
    from servebench.profile.stacks import Stacks

    return Stacks.read(path)


def _timeline(path: Path) -> Timeline:
    from servebench.profile.timeline import Timeline

    return Timeline.read(path)


def _xplane(path: Path) -> Timeline:
    from servebench.profile.readers.xplane import read_xplane

    return read_xplane(path)


def _ncu(path: Path) -> Told:
    from servebench.profile.readers.ncu_csv import read_ncu

    return Told("ncu", "kernel_replay", {"kernel": None, "rows": read_ncu(path)})


def _sanitizer(path: Path) -> Told:
    from servebench.profile.readers.sanitizer_log import read_sanitizer

    return Told("sanitizer", "sanitizer", {"check": None, **read_sanitizer(path)})


READERS: dict[str, Callable[[Path], Timeline | Stacks | Told]] = {
    "nsys": _nsys,
    "nsys_report": _nsys_report,
    "kineto": _kineto,
    "perf": _perf,
    "stacks": _stacks,
    "timeline": _timeline,
    "xplane": _xplane,
    "ncu": _ncu,
    "sanitizer": _sanitizer,
}
