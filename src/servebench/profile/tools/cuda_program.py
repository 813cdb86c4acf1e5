"""A program of the CUDA toolkit that a server is launched under, and that writes what it found when the server ends."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from servebench.errors import UsageError
from servebench.profile.tools.nsys import supervise
from servebench.profile.tools.nsys.options import has_gpu

ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class CudaProgram:
    """A program of NVIDIA's.

    Attributes:
        name: of its file.
        title: what NVIDIA calls it.
        places: patterns of where its packages put it, beside PATH.
    """

    name: str
    title: str
    places: tuple[str, ...]

    def find(self) -> Path:
        """Its file, on PATH or else the latest in the usual places.

        Raises:
            UsageError: it, or a GPU, is not here; with all that is missing.
        """
        path = next(iter(self._candidates()), None)
        missing = [] if has_gpu() else ["no NVIDIA driver is loaded"]
        if path is None:
            missing.append(f"{self.name} is neither on PATH nor in the usual places")
        if path is None or missing:
            raise UsageError(
                f"{self.name} needs an NVIDIA GPU and {self.title} (of the CUDA toolkit) on PATH, on the machine that "
                f"runs the server: {' and '.join(missing)}"
            )
        return path

    def _candidates(self) -> Iterable[Path]:
        if on_path := shutil.which(self.name):
            yield Path(on_path)
        for place in self.places:
            found = [name for name in glob.glob(place) if os.access(name, os.X_OK)]  # noqa: PTH207 - patterns are absolute
            yield from (Path(name) for name in sorted(found, key=_numbers, reverse=True))

    def version(self, path: Path) -> str:
        """What it says its version is. Raises UsageError when it does not work."""
        try:
            done = subprocess.run(
                [str(path), "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{path} does not work: {error}") from None
        found = re.search(r"[Vv]ersion (\d[\w.]*)", done.stdout + done.stderr)
        if found is None:
            said = " ".join((done.stdout + done.stderr).split())[:120]
            raise UsageError(f"{path} does not say its version, but: {said or 'nothing'}")
        return found[1]


def around(path: Path, arguments: Sequence[str], pid_file: Path) -> tuple[str, ...]:
    """What to put before a server's command so that the program outlives the server and can write.

    A program told to end together with its server would write nothing, so a supervisor passes on the signal to the
    server alone, whose process id is in `pid_file`.
    """
    file = str(pid_file.resolve())
    ours = (sys.executable, "-I", "-S", supervise.__file__, file)
    return (*ours, str(path), *arguments, *supervise.SHELL, file)


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]
