"""Any profiler's file, opened by what it holds, whatever it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from servebench.errors import ServebenchError, UsageError
from servebench.profile.readers.formats import Format, identify
from servebench.profile.tool import STACKS, TIMELINE

if TYPE_CHECKING:
    from servebench.profile.stacks import Stacks
    from servebench.profile.timeline import Timeline

OURS = (TIMELINE, STACKS)  # made of what lies beside them, and on the run's clock
UNDERSTOOD = (
    "SQLite exports of nsys, Chrome traces of the torch profiler (.json, .json.gz), perf.data, folded stacks, "
    "XSpace files of XLA (.xplane.pb), servebench's timelines"
)
MOST_FILES = 5000  # of a folder, before it is too large to search
MOST_NAMED = 6


def open_file(path: Path) -> Timeline | Stacks:
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


def _about(path: Path, text: str) -> str:
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


READERS: dict[str, Callable[[Path], Timeline | Stacks]] = {
    "nsys": _nsys,
    "kineto": _kineto,
    "perf": _perf,
    "stacks": _stacks,
    "timeline": _timeline,
    "xplane": _xplane,
}
