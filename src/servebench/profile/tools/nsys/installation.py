"""The nsys of this machine: where it is, its version, and whether it can export what it captures."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from servebench.errors import UsageError
from servebench.profile.tool import ProfileError
from servebench.profile.tools.nsys.command import run_nsys

# Where NVIDIA's packages, its CUDA toolkit and Debian put it, later versions last in each
PLACES = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/local/bin/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
)
IMPORTER = "QdstrmImporter"
INSTALL = (
    "scripts/install-nsys installs it on Debian and Ubuntu; elsewhere install NVIDIA Nsight Systems (its CLI is enough)"
)


@dataclass(frozen=True, slots=True)
class Installation:
    """An nsys that answers.

    Attributes:
        path: of the program.
        version: such as "2022.4.2.1".
        importer: the program that turns a capture into a report; None where it is not beside nsys.
        headers: the folder of the NVTX headers that it ships; None without.
    """

    path: Path
    version: str
    importer: Path | None
    headers: Path | None


def find_nsys() -> Installation:
    """Find nsys on PATH, else in the usual places, the latest version first.

    Raises:
        UsageError: there is none, it does not start, or it lacks the part that writes reports; with what to do.
    """
    path = next(iter(_candidates()), None)
    if path is None:
        raise UsageError(f"nsys is neither on PATH nor in the usual places: {INSTALL}")
    installation, home = inspect(path), _home(path)
    if installation.importer is None and home.name.startswith("target-"):
        raise UsageError(
            f"{path} has no {IMPORTER} in {home.parent}/host-linux-*, so that it cannot write reports: install the "
            f"host part of Nsight Systems, or link its folder there (scripts/install-nsys does for Debian's package)"
        )
    return installation


def inspect(path: Path) -> Installation:
    """Ask an nsys for its version and look at what it came with.

    Raises:
        UsageError: it does not start, or is something else.
    """
    try:
        said = run_nsys(path, ["--version"], 30.0)
    except ProfileError as error:
        raise UsageError(f"{path} does not work: {error}") from None
    found = re.search(r"version (\d[\w.]*)", said)
    if found is None:
        raise UsageError(f"{path} is not NVIDIA's nsys: it calls itself {said.strip()[:80]!r}")
    home = _home(path)
    headers = home / "nvtx" / "include"
    return Installation(path, found[1], _importer(home), headers if headers.is_dir() else None)


def _candidates() -> Iterable[Path]:
    on_path = shutil.which("nsys")
    if on_path:
        yield Path(on_path)
    for place in PLACES:
        found = [name for name in glob.glob(place) if os.access(name, os.X_OK)]  # noqa: PTH207 - patterns are absolute
        yield from (Path(name) for name in sorted(found, key=_numbers, reverse=True))


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _home(path: Path) -> Path:
    """The folder of the program itself: what is on PATH may be a link, or a script beside `target-linux-*`."""
    real = path.resolve()
    if real.parent.name.startswith("target-"):
        return real.parent
    return next(iter(sorted(real.parent.parent.glob("target-linux-*"))), real.parent)


def _importer(home: Path) -> Path | None:
    return next(iter(sorted(home.parent.glob(f"host-linux-*/{IMPORTER}"))), None)
